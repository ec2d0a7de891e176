"""Settings, limits and predictions, without torch; bytes and FLOPs of settings are compared with
torch's in test_recompute.py, test_experts.py and test_latent_attention.py."""

import subprocess
import sys

import pytest
from cases import EXPERTS, GPT, LLAMA, workload
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout
from advisor.layers.parameters import count_parameters
from advisor.models import options
from advisor.models.layer_pattern import LayerPattern
from harness.backends.native.predict import (
    as_native,
    native_plan,
    optimizer_bytes,
    predict_layer,
    unfused_bytes,
)
from harness.backends.native.setting import OpPolicy, parse_native_setting
from harness.trial.trial import Device
from tests.advisor.toys import latent

TOKENS = 2 * 32
HIDDEN = TOKENS * 64 * 2
WEIGHTED = 2 * TOKENS * 48 * 2
"""What experts of width 48 keep of the two rows of each token."""
LATENT = latent(LLAMA, 24, 16, 8, 12)


def test_prediction_is_of_one_rank() -> None:
    split = ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=True)
    whole = predict_layer(workload(LLAMA, "full:uniform:1"))[1]
    half = workload(LLAMA, "full:uniform:1", layout=split)
    assert predict_layer(half)[1] == whole // 2
    assert predict_layer(half)[0] == HIDDEN // 2


def test_native_model_is_the_local_one_with_flash_attention() -> None:
    fused = {"cross_entropy_fusion": options.CrossEntropyFusion.TE}
    asked = replace(LLAMA, attention_backend=options.AttentionBackend.AUTO, **fused)
    model = as_native(workload(asked).model)
    assert model.transformer_impl is options.TransformerImpl.LOCAL
    assert model.attention_backend is options.AttentionBackend.FLASH
    assert model.cross_entropy_fusion is options.CrossEntropyFusion.NONE
    assert model.hidden_size == asked.hidden_size


def test_plan_lists_checkpoints_one_by_one() -> None:
    deep = workload(replace(LLAMA, num_layers=7), "full:uniform:3")
    plan = native_plan(deep, parse_native_setting(deep.recompute))
    segments = [(segment.num_layers, segment.copies) for segment in plan.segments]
    assert segments == [(3, 1), (3, 1), (1, 1)]


def test_policies_are_parsed() -> None:
    assert parse_native_setting("op:torchtitan").policy is OpPolicy.TORCHTITAN
    assert parse_native_setting("selective:mlp").policy is None


BOTH = "cannot be both replayed and offloaded"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op:save_matmuls", "did you mean save_matmul"),
        ("op:save_matmul+offload=core_attn", "no operator policy"),
        ("none+offload=moe_act", "does not offload moe_act"),
        ("full:uniform:1+offload=core_attn", "replayed layers keep nothing"),
        ("selective:core_attn+offload=core_attn", f"core_attn: {BOTH}"),
        ("selective:layernorm+offload=attn_norm", f"attn_norm: {BOTH}"),
        ("full:block:1+distribute_saved_activations", "does not distribute saved activations"),
        ("everything", "is not a recompute setting"),
    ],
)
def test_settings_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_native_setting(text)


def split(**degrees: int) -> ParallelLayout:
    """A layout by the beginnings of Megatron's names."""
    return ParallelLayout(**{f"{name}_parallel_size": size for name, size in degrees.items()})


PIPELINE = split(pipeline_model=2)
TENSOR = split(tensor_model=2)
SEQUENCE = replace(TENSOR, sequence_parallel=True)
VIRTUAL = split(pipeline_model=2, virtual_pipeline_model=2)
ALTERNATING = replace(EXPERTS, moe_layer_freq=LayerPattern("[0,1]"))
TITAN = {"recompute": "op:torchtitan"}
UNFUSED, QUICK = options.AttentionBackend.UNFUSED, options.Activation.QUICK_GEGLU
WIDE_ROUTER = replace(EXPERTS, moe_router_dtype=options.RouterDType.FP64)
UNBALANCED = {"moe_router_load_balancing_type": options.LoadBalancing.SINKHORN}
SINKHORN = replace(EXPERTS, moe_aux_loss_coeff=0.0, **UNBALANCED)
GROUPS = replace(EXPERTS, moe_router_num_groups=2, moe_router_group_topk=1)
REFUSED = {
    "cp": (LLAMA, {"layout": split(context=2)}, "context_parallel"),
    "vpp": (replace(LLAMA, num_layers=4), {"layout": VIRTUAL}, "virtual_pipeline"),
    "shared groups": (LLAMA, {"layout": split(tensor_model=4)}, "share key and value heads"),
    "sequence": (LLAMA, {"seq_length": 33, "layout": SEQUENCE}, "must be divisible by TP = 2"),
    "policy with tp": (LLAMA, {**TITAN, "layout": TENSOR}, "without tensor parallelism"),
    "tied pipeline": (GPT, {"layout": PIPELINE}, "the native backend cannot tie weights"),
    "sharded pipeline": (
        LLAMA,
        {"layout": replace(PIPELINE, data_parallel_size=2), "global_batch_size": 8},
        "cannot combine FSDP2 with PP 2",
    ),
    "few microbatches": (LLAMA, {"layout": PIPELINE, "global_batch_size": 2}, "needs at least PP"),
    "tied shards": (GPT, {"layout": split(data=2)}, "does not shard tied weights"),
    "wide checkpoints of shards": (
        LLAMA,
        {"recompute": "full:uniform:2", "layout": split(data=2)},
        "gathers the weights of each layer twice",
    ),
    "batch": (LLAMA, {"global_batch_size": 3}, "must be divisible by micro_batch_size"),
    "unfused": (replace(LLAMA, attention_backend=UNFUSED), {}, "flash attention only"),
    "positions": (GPT, {"seq_length": 128}, "must be at most max_position_embeddings = 64"),
    "split latent attention": (LATENT, {"layout": TENSOR}, "does not split latent attention"),
    "offloaded": (LATENT, {"recompute": "none+offload=core_attn"}, "without latent attention"),
    "mtp": (replace(LLAMA, mtp_num_layers=1), {}, "has no multi-token prediction"),
    "window": (replace(LLAMA, window_size=8), {}, "has no sliding windows"),
    "l2 norm": (replace(LLAMA, qk_l2_norm=True), {}, "has no such layers"),
    "sinks": (
        replace(LLAMA, softmax_type=options.SoftmaxType.LEARNABLE),
        {},
        "has no attention sinks",
    ),
    "activation": (replace(LLAMA, activation=QUICK), {}, "does not have this activation"),
    "gelu experts": (replace(EXPERTS, activation=options.Activation.GEGLU), {}, "SwiGLU"),
    "experts with bias": (replace(EXPERTS, add_bias_linear=True), {}, "no biases in experts"),
    "capacity": (replace(EXPERTS, moe_expert_capacity_factor=1.0), {}, "drops no tokens; use null"),
    "router in fp64": (WIDE_ROUTER, {}, "does not compute the router in this dtype"),
    "sinkhorn": (SINKHORN, {}, "does not balance experts this way"),
    "limited groups": (GROUPS, {}, "supports groups only with an expert bias"),
    "expert tensor parallel": (EXPERTS, {"layout": SEQUENCE}, "does not split experts"),
    "expert parallel": (
        EXPERTS,
        {"layout": split(expert_model=2, data=2), "global_batch_size": 8},
        "does not support this split",
    ),
    "experts under a policy": (EXPERTS, TITAN, "in dense models"),
    "stages of two kinds": (ALTERNATING, {"layout": PIPELINE}, "same kinds of layers"),
    "fp16": (LLAMA, {"precision": Precision.FP16}, "computes in bf16"),
    "fp8": (LLAMA, {"precision": Precision.FP8_CURRENT}, "backend=megatron_core runs FP8"),
    "dropout on a GPU": (GPT, {**TITAN, "device": Device.CUDA}, "gives wrong gradients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_workloads_that_are_refused(name: str) -> None:
    model, changes, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        predict_layer(workload(model, **changes))


@pytest.mark.parametrize(
    ("setting", "replays"),
    [("none", 0), ("selective:mlp", 2), ("full:block:1", 1), ("selective:core_attn", 0)],
)
def test_traffic_of_what_is_not_fused(setting: str, replays: int) -> None:
    """Two microbatches of 2 x 32 tokens through two layers: activations [.., 96], 16 bits."""
    one = workload(LLAMA, setting)
    activated = 2 * 32 * 96 * 2
    query, key_value = 64 * 64, 64 * 32
    weights = query + 2 * key_value + query + 3 * 64 * 96 + 2 * 64
    sums = 2 * weights * 2 * 3
    assert unfused_bytes(one) == 2 * (sums + (2 * 8 + replays * 2) * activated)
    two_layers = 2 * (64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 256 + 256 + 64 + 4 * 64)
    assert unfused_bytes(workload(GPT)) == 2 * two_layers * 2 * 3, "a plain activation: no more"


@pytest.mark.parametrize(("setting", "replays"), [("none", 0), ("selective:moe_act", 1)])
def test_traffic_of_the_experts_activation(setting: str, replays: int) -> None:
    mlp = 4 * 3 * 64 * 48 + 4 * 64  # four experts and the router
    two_layers = 2 * (64 * 128 + 64 * 64 + mlp + 2 * 64)
    activations = 2 * (4 + 17 + replays * 4) * WEIGHTED
    assert unfused_bytes(workload(EXPERTS, setting)) == 2 * (two_layers * 2 * 3 + activations)


@pytest.mark.parametrize(
    ("layout", "own", "megatron"),
    [
        (ParallelLayout(), 42, 46 + 6),
        (ParallelLayout(tensor_model_parallel_size=2), 42 / 2, (46 + 6) / 2),
        (ParallelLayout(data_parallel_size=2), 42 / 2, 46 / 2 + 6),
        (ParallelLayout(data_parallel_size=2, use_distributed_optimizer=False), 42 + 4, 46 + 6),
    ],
)
def test_traffic_around_the_optimizer(layout: ParallelLayout, own: float, megatron: float) -> None:
    """Bytes a parameter: the gradient cast and zeroed (8), Adam (28), a copy (6), the mean over DP
    ranks without shards (4); Megatron's Adam (46 of a shard) and its buffer (6)."""
    found = optimizer_bytes(workload(LLAMA, layout=layout))
    assert found == pytest.approx((own - megatron) * count_parameters(LLAMA), rel=1e-3)


def test_predicting_loads_no_torch() -> None:
    code = "import sys, harness.backends.native.predict; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
