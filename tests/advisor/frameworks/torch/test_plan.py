"""Which blocks and operators are replayed: exact on a toy."""

from dataclasses import replace

import pytest

from advisor.frameworks.torch.plan import Semantics, chunk_plan, kept_by_budget, kept_by_policy
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    OpPolicy,
    TorchSetting,
    budget,
    every,
    op,
    sequential,
    uniform,
)
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import DENSE
from advisor.models.spec import ModelSpec, TransformerImpl
from advisor.recompute import Checkpoint, kept_tensors, replayed_operators

TOY = ModelSpec(
    name="toy", num_layers=7, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2,
    num_query_groups=1, kv_channels=4, vocab_size=32, max_position_embeddings=64,
    transformer_impl=TransformerImpl.TORCH,
)  # fmt: skip
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


@pytest.mark.parametrize(("setting", "expected"), [
    (NONE, [1] * 7),
    (FULL, [-1] * 7),
    (every(2), [1, -1, 1, -1, 1, -1, 1]),
    (every(3), [1, 1, -1, 1, 1, -1, 1]),
    (uniform(3), [-3, -3, -1]),
    (sequential(3), [-2, -2, 1, 1, 1]),
    (sequential(7), [-1] * 6 + [1]),
    (op(OpPolicy.SAVE_MATMUL), [1] * 7),
])  # fmt: skip
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
    kept = kept_by_policy(LAYER, OpPolicy.TORCHTITAN)
    assert kept == {"core_attention", "wq", "wv", "w1", "w2"}
    assert kept_by_policy(LAYER, OpPolicy.SAVE_ATTENTION) == {"core_attention"}
    linear = {"wq", "wk", "wv", "wo", "w1", "w3", "w2"}
    assert kept_by_policy(LAYER, OpPolicy.SAVE_MATMUL) == linear


def test_a_bias_makes_another_operator() -> None:
    biased = transformer_layer(replace(SHAPE, model=replace(TOY, add_bias_linear=True)))
    kept = kept_by_policy(biased, OpPolicy.TORCHTITAN, counts_addmm=False)
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
        again = {operator.name for operator in replayed_operators(LAYER, segment)}
        assert again == {operator.name for operator in LAYER} - {"core_attention"} - spared


def test_early_stop_spares_the_last_matmul() -> None:
    (segment,) = chunk_plan(FULL, SHAPE, (DENSE,), Semantics()).segments
    flops = [o.forward_flops for o in replayed_operators(LAYER, segment)]
    w2 = next(operator for operator in LAYER if operator.name == "w2")
    assert sum(flops) == sum(operator.forward_flops for operator in LAYER) - w2.forward_flops


def test_a_budget_keeps_more_the_larger_it_is() -> None:
    assert kept_by_budget(LAYER, 0.0) == frozenset()
    half, all_of_them = kept_by_budget(LAYER, 0.5), kept_by_budget(LAYER, 1.0)
    assert half < all_of_them
    assert all_of_them == {"wq", "wk", "wv", "core_attention", "wo", "w1", "w3"}
    (segment,) = chunk_plan(budget(1.0), SHAPE, (DENSE,), Semantics()).segments
    assert segment.runs[0].keeps == all_of_them
