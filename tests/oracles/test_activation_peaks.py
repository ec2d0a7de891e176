"""Activation peak of pipeline stages against Megatron Core's real schedules on fake tensors.

The bar is 1 %. The model is better than that: what it leaves out are scalars of the schedule and
the loss (token counts, loss values, and the one element that a sent output keeps), 2 to 8 bytes
each. A stage had at most 28 bytes of them.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from .megatron import CoreAttention, OracleCase
from .prediction import (
    GPT_22B,
    GPT_175B,
    LLAMA3_8B,
    LLAMA3_70B,
    NEMOTRON4_15B,
    QWEN3_32B,
    QWEN25_7B,
    assert_peaks,
    full,
    selective,
    tensor_parallel,
)

LLAMA = LLAMA3_70B.changed(seq_length=2048)
LLAMA_SP = LLAMA.changed(**tensor_parallel(4, True))
LLAMA_TP = LLAMA.changed(**tensor_parallel(4, False))
GPT_SP = GPT_175B.changed(**tensor_parallel(8, True))
GPT_TP = GPT_175B.changed(**tensor_parallel(8, False))
MODELS = {"llama_sp": LLAMA_SP, "llama_tp": LLAMA_TP, "gpt_sp": GPT_SP, "gpt_tp": GPT_TP}
UNFUSED: dict[str, Any] = {"attention": CoreAttention.UNFUSED}
BF16_SOFTMAX: dict[str, Any] = {**UNFUSED, "attention_softmax_in_fp32": False}
TWO_STAGES: dict[str, Any] = {"pipeline_model_parallel_size": 2, "num_microbatches": 3}
MLP = selective("mlp")


def pipeline(pp: int, vpp: int, microbatches: int, layers_per_chunk: int = 1) -> dict[str, Any]:
    return {
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        "num_microbatches": microbatches,
        "num_layers": pp * vpp * layers_per_chunk,
    }


@pytest.mark.parametrize(
    ("name", "recompute", "layers"),
    [
        (name, recompute, layers)
        for name in MODELS
        for recompute, layers in (
            ({}, 2),
            (MLP, 2),
            (selective("core_attn"), 1),
            (selective("layernorm"), 2),
            (selective("core_attn", "layernorm"), 1),
            (full("uniform", 1), 2),
            (full("uniform", 4), 4),
            (full("block", 2), 3),
        )
        if not ("gpt" in name and recompute == MLP)  # hangs in Megatron: see test_variants
    ],
)
def test_every_setting(name: str, recompute: dict[str, Any], layers: int) -> None:
    assert_peaks(MODELS[name].changed(**pipeline(2, 1, 2, layers), **recompute))


@pytest.mark.parametrize("recompute", [{}, MLP, full("uniform", 1)], ids=["none", "mlp", "full"])
@pytest.mark.parametrize("pp", [1, 4, 8])
def test_pipeline_depths(pp: int, recompute: dict[str, Any]) -> None:
    stages = {8: (1, 5)}.get(pp, range(pp))
    assert_peaks(LLAMA_SP.changed(**pipeline(pp, 1, pp + 1), **recompute), stages)


@pytest.mark.parametrize("pp", [4, 8])
def test_a_forward_of_the_steady_state_can_be_the_peak(pp: int) -> None:
    """Without SP, dropout and bias write four whole hidden states one after another."""
    assert_peaks(GPT_TP.changed(**pipeline(pp, 1, pp + 1)), (1, pp // 2))


@pytest.mark.parametrize(("pp", "microbatches"), [(4, 1), (4, 2), (4, 4), (4, 7), (2, 10)])
def test_microbatch_counts(pp: int, microbatches: int) -> None:
    """Fewer than stages, and more than the groups after which the schedule only repeats."""
    assert_peaks(LLAMA_TP.changed(**pipeline(pp, 1, microbatches)), (0, 1, pp - 1))


@pytest.mark.parametrize(
    ("pp", "vpp", "rounds", "recompute"),
    [
        (2, 2, 1, {}),
        (2, 2, 3, {}),
        (2, 2, 2, MLP),
        (2, 2, 2, full("block", 1)),
        (2, 5, 1, {}),
        (2, 5, 2, {}),
        (2, 5, 2, full("uniform", 1)),
        (4, 2, 1, {}),
        (4, 2, 2, {}),
        (4, 2, 3, MLP),
        (4, 5, 1, MLP),
    ],
)
def test_virtual_stages(pp: int, vpp: int, rounds: int, recompute: dict[str, Any]) -> None:
    stages = {(4, 5): (0, 2), (4, 2): (1, 3)}.get((pp, vpp), range(pp))
    assert_peaks(LLAMA_SP.changed(**pipeline(pp, vpp, rounds * pp), **recompute), stages)


@pytest.mark.parametrize("name", ["llama_tp", "gpt_sp", "gpt_tp"])
def test_virtual_stages_of_other_models(name: str) -> None:
    assert_peaks(MODELS[name].changed(**pipeline(2, 2, 6)), (0,))
    assert_peaks(MODELS[name].changed(**pipeline(2, 2, 4, 2), **full("uniform", 2)), (1,))


@pytest.mark.parametrize("softmax", [UNFUSED, BF16_SOFTMAX], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "recompute", [{}, selective("core_attn"), full("uniform", 1)], ids=["none", "core", "full"]
)
@pytest.mark.parametrize("name", MODELS)
def test_unfused_attention(name: str, recompute: dict[str, Any], softmax: dict[str, Any]) -> None:
    assert_peaks(MODELS[name].changed(**pipeline(2, 1, 2), **recompute, **softmax), (0,))


@pytest.mark.parametrize("method", [full("uniform", 1), full("uniform", 2), full("block", 1)])
@pytest.mark.parametrize("name", ["llama_tp", "gpt_tp"])
def test_distributed_saved_activations(name: str, method: dict[str, Any]) -> None:
    case = MODELS[name].changed(**pipeline(2, 1, 2, 2), **method)
    assert_peaks(case.changed(distribute_saved_activations=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", [{}, full("uniform", 2)], ids=["none", "full"])
def test_tied_embeddings(name: str, recompute: dict[str, Any]) -> None:
    """On one stage the output layer's gradient waits for the embedding's, then both are added."""
    case = MODELS[name].changed(share_embeddings_and_output_weights=True, **recompute)
    assert_peaks(case.changed(**pipeline(1, 1, 2, 2)))
    assert_peaks(case.changed(**pipeline(2, 1, 2, 2)), (1,))


VARIANTS: dict[str, OracleCase] = {
    "unfused_swiglu": LLAMA_SP.changed(bias_activation_fusion=False),
    "unfused_swiglu_mlp": LLAMA_SP.changed(bias_activation_fusion=False, **MLP),
    "unfused_gelu": GPT_SP.changed(bias_activation_fusion=False),
    "fused_bias_dropout": GPT_TP.changed(bias_dropout_fusion=True),
    "no_bias_mlp": GPT_SP.changed(add_bias_linear=False, bias_activation_fusion=False, **MLP),
    "no_bias_no_sp_mlp": GPT_TP.changed(add_bias_linear=False, bias_activation_fusion=False, **MLP),
    "no_dropout": GPT_TP.changed(hidden_dropout=0.0, attention_dropout=0.0),
    "tp1_micro_batch_2": LLAMA3_8B,
    "tp1_micro_batch_2_all": LLAMA3_8B.changed(**selective("core_attn", "mlp", "layernorm")),
    "tp1_gpt": GPT_22B.changed(micro_batch_size=1),
    "squared_relu": NEMOTRON4_15B.changed(**tensor_parallel(8, True)),
    "squared_relu_mlp": NEMOTRON4_15B.changed(**tensor_parallel(8, True), **MLP),
    "qk_layernorm": QWEN3_32B.changed(**tensor_parallel(8, True)),
    "qk_layernorm_full": QWEN3_32B.changed(**full("uniform", 2)),
    "qkv_bias_mlp": QWEN25_7B.changed(**tensor_parallel(2, False), **MLP),
    "shared_groups": QWEN3_32B.changed(num_query_groups=4, **tensor_parallel(8, True)),
    "shared_groups_no_sp": QWEN3_32B.changed(num_query_groups=4, **tensor_parallel(8, False)),
    "shared_groups_unfused": QWEN3_32B.changed(
        num_query_groups=4, **tensor_parallel(8, False), **UNFUSED
    ),
    "cp2": LLAMA3_8B.changed(context_parallel_size=2),
    "cp2_mlp": LLAMA3_8B.changed(context_parallel_size=2, **tensor_parallel(2, True), **MLP),
    "native_wgrad_fusion": LLAMA_SP.changed(gradient_accumulation_fusion=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    """Two stages of two layers; fused weight gradients take the place of unfused ones, because
    Megatron's own linear layer returns a placeholder of the same size."""
    assert_peaks(VARIANTS[name].changed(num_layers=4, **TWO_STAGES))


UNEVEN: dict[str, dict[str, Any]] = {
    "first": {**pipeline(3, 1, 4), "num_layers": 5, "num_layers_in_first_pipeline_stage": 1},
    "last": {**pipeline(3, 1, 4), "num_layers": 5, "num_layers_in_last_pipeline_stage": 1},
    "both_vpp": {
        **pipeline(3, 2, 6),
        "num_layers": 10,
        "num_layers_in_first_pipeline_stage": 2,
        "num_layers_in_last_pipeline_stage": 4,
    },
}


@pytest.mark.parametrize(
    ("split", "recompute"),
    [
        ("first", {}),
        ("first", full("block", 1)),
        ("last", MLP),
        ("last", full("uniform", 1)),
        ("both_vpp", {}),
        ("both_vpp", full("block", 1)),
    ],
)
def test_uneven_pipelines(split: str, recompute: dict[str, Any]) -> None:
    """block N counts the layers of each chunk, however many it has."""
    assert_peaks(LLAMA_SP.changed(**UNEVEN[split], **recompute))
