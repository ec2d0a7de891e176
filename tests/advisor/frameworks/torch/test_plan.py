"""Which blocks and operators are replayed: exact on a toy."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.plan import Semantics, chunk_plan, kept_by_policy
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Modifier,
    OpPolicy,
    TorchSetting,
    budget,
    every,
    op,
    sequential,
    uniform,
    with_options,
)
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import (
    ON_DEVICE,
    ON_HOST,
    Checkpoint,
    InputStorage,
    kept_tensors,
    replayed_operators,
)
from advisor.time.communication import Link
from advisor.time.machine import machine
from advisor.time.passes import chunk_times
from advisor.time.rank_links import Network
from tests.advisor.toys import toy_model

TOY = toy_model(
    *(7, 8, 16, 2, 1),
    vocab_size=32,
    max_position_embeddings=64,
    transformer_impl=TransformerImpl.TORCH,
)
SHAPE = RankShape(model=TOY, seq_length=4, micro_batch_size=1)
LAYER = transformer_layer(SHAPE)


def regimes(setting: TorchSetting, layers: int = 7, how: Semantics = Semantics()) -> list[int]:  # noqa: B008
    """Blocks of each segment; negative where they are one checkpoint."""
    plan = chunk_plan(setting, SHAPE, (DENSE,) * layers, how)
    assert plan.num_layers == layers
    return [
        -segment.num_layers if segment.whole else segment.num_layers
        for segment in plan.segments
        for _ in range(segment.copies)
    ]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (NONE, [1] * 7),
        (FULL, [-1] * 7),
        (every(2), [1, -1, 1, -1, 1, -1, 1]),
        (every(3), [1, 1, -1, 1, 1, -1, 1]),
        (uniform(3), [-3, -3, -1]),
        (sequential(3), [-2, -2, 1, 1, 1]),
        (sequential(7), [-1] * 6 + [1]),
        (op(OpPolicy.SAVE_MATMUL), [1] * 7),
    ],
)
def test_segments(setting: TorchSetting, expected: list[int]) -> None:
    assert regimes(setting) == expected


def test_hugging_face_begins_with_the_first_layer() -> None:
    how = Semantics(starts_with_first=True)
    assert regimes(every(3), how=how) == [-1, 1, 1, -1, 1, 1, -1]


def test_kinds_of_checkpoint() -> None:
    assert Semantics().checkpoint(FULL) is Checkpoint.EARLY_STOP
    assert Semantics(use_reentrant=True).checkpoint(FULL) is Checkpoint.REENTRANT
    asked = replace(FULL, use_reentrant=False)
    assert Semantics(use_reentrant=True).checkpoint(asked) is Checkpoint.EARLY_STOP


def test_policies_by_the_order_of_matmuls() -> None:
    kept = kept_by_policy(LAYER, OpPolicy.TORCHTITAN, Semantics())
    assert kept == {"core_attention", "wq", "wv", "w1", "w2"}
    assert kept_by_policy(LAYER, OpPolicy.SAVE_ATTENTION, Semantics()) == {"core_attention"}
    linear = {"wq", "wk", "wv", "wo", "w1", "w3", "w2"}
    assert kept_by_policy(LAYER, OpPolicy.SAVE_MATMUL, Semantics()) == linear


def test_a_bias_makes_another_operator() -> None:
    biased = transformer_layer(replace(SHAPE, model=replace(TOY, add_bias_linear=True)))
    kept = kept_by_policy(biased, OpPolicy.TORCHTITAN, Semantics(counts_addmm=False))
    assert kept == {"core_attention"}


def test_bytes_kept_by_torchtitans_policy() -> None:
    """4 tokens of 2 bytes an element: the input (8 wide), wq (8), wv (4), attention (8) and its
    log-sum-exp (2 heads in fp32), w1 (16), w2 (8)."""
    (segment,) = chunk_plan(op(OpPolicy.TORCHTITAN), SHAPE, (DENSE,), Semantics()).segments
    kept = kept_tensors(LAYER, segment.runs)
    assert sum(tensor.num_bytes for tensor in kept.values()) == 4 * 2 * (8 + 8 + 4 + 8 + 16 + 8) + (
        4 * 2 * 4
    )


def test_what_a_policy_computes_again() -> None:
    early = Semantics()
    late = Semantics(hooked=Checkpoint.NON_REENTRANT)
    setting = op(OpPolicy.SAVE_ATTENTION)
    for how, spared in ((early, {"w2", "ffn_residual"}), (late, set())):
        (segment,) = chunk_plan(setting, SHAPE, (DENSE,), how).segments
        again = {operator.name for operator in replayed_operators(LAYER, segment.replay)}
        assert again == {operator.name for operator in LAYER} - {"core_attention"} - spared


def test_early_stop_spares_the_last_matmul() -> None:
    (segment,) = chunk_plan(FULL, SHAPE, (DENSE,), Semantics()).segments
    flops = [o.forward_flops for o in replayed_operators(LAYER, segment.replay)]
    w2 = next(operator for operator in LAYER if operator.name == "w2")
    assert sum(flops) == sum(operator.forward_flops for operator in LAYER) - w2.forward_flops


def kept_under(fraction: float, how: Semantics) -> dict[str, int]:
    plan = chunk_plan(budget(fraction), SHAPE, (DENSE,), how)
    return {t.name: t.num_bytes for t in kept_tensors(LAYER, plan.segments[0].runs).values()}


def test_what_a_budget_keeps() -> None:
    """Of 4 tokens of 2 bytes an element: 8 wide are the input, norms, queries, attention and wo's
    output, 4 wide keys and values, 16 wide what w1, w3 and their product write. A norm keeps 4
    bytes a token, attention as many a head, of which there are 2, and cuDNN's two numbers."""
    how = Semantics(attention=AttentionKernel.CUDNN)
    assert kept_under(0.0, how) == {"layer_input": 64}
    most = {
        "layer_input": 64,
        "attention_norm.rstd": 16,
        "wq_out_rope": 64,
        "wk_out_rope": 32,
        "wv_out": 32,
        "core_attention_out": 64,
        "softmax_lse": 32,
        "core_attention.seed": 8,
        "core_attention.offset": 8,
        "wo_out": 64,
        "ffn_norm.rstd": 16,
        "w1_out": 128,
        "w3_out": 128,
        "attention_norm_out": 64,
        "ffn_norm_out": 64,
        "product": 128,
    }
    assert kept_under(1.0, how) == most
    cheap = ("attention_norm_out", "ffn_norm_out", "product")  # a norm, or silu times w3_out
    listed = {name: size for name, size in most.items() if name not in cheap}
    assert kept_under(0.9, how) == listed


def test_what_a_budget_computes_again() -> None:
    for fraction, again in ((1.0, set()), (0.0, {"wq", "wk", "wv", "wo", "w1", "w3"})):
        (segment,) = chunk_plan(budget(fraction), SHAPE, (DENSE,), Semantics()).segments
        assert {o.name for o in replayed_operators(LAYER, segment.replay) if o.gemm} == again


def test_a_budget_is_as_unsure_as_the_kernels_differ() -> None:
    flash, cudnn = (
        chunk_plan(budget(0.3), SHAPE, (DENSE,) * 3, Semantics(attention=kernel))
        for kernel in AttentionKernel
    )
    kept = [chunk_footprint(SHAPE, plan, False, False) for plan in (flash, cudnn)]
    assert [one.unsure for one in kept] == 2 * [abs(kept[0].kept - kept[1].kept)]
    assert kept[0].unsure > 0


def test_inputs_on_the_host() -> None:
    """Of DeepSpeed's checkpoints the newest stay, of others none."""
    setting = with_options(FULL, Modifier.CPU_CHECKPOINTING)
    engine = InputStorage(offloaded=True, overlapped=True, more=2)
    plan = chunk_plan(setting, SHAPE, (DENSE,) * 7, Semantics(offload=engine, newest_stay=2))
    assert [(s.copies, s.input) for s in plan.segments] == [(5, engine), (2, ON_DEVICE)]
    kept = SHAPE.hidden("x").num_bytes
    assert chunk_footprint(SHAPE, plan, False, False).kept == 2 * kept
    (segment,) = chunk_plan(setting, SHAPE, (DENSE,) * 7, Semantics()).segments
    assert segment.input == ON_HOST


def test_host_transfers_of_inputs() -> None:
    """Blocking copies wait for both ways, others for what the checkpoint's kernels do not hide."""
    rates = machine(load_gpu("H100"), load_calibration(load_gpu("H100")), Precision.BF16)
    alone = Link(bytes_per_second=1.0, latency_seconds=0.0)
    network = Network(tensor=alone, context=alone, tensor_ranks=1, context_ranks=1)
    setting = with_options(FULL, Modifier.OFFLOAD)
    copy = SHAPE.hidden("x").num_bytes / rates.host_bytes_per_second
    for overlapped, expected in ((False, 7 * 2 * copy), (True, 0.0)):
        how = Semantics(offload=InputStorage(offloaded=True, overlapped=overlapped))
        plan = chunk_plan(setting, SHAPE, (DENSE,) * 7, how)
        offload = chunk_times(SHAPE, rates, network, plan).offload
        assert offload == pytest.approx(expected)
