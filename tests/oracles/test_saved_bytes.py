"""Saved bytes of one layer against the real Megatron Core: equal to the byte, in every case.

The oracle runs Megatron's local spec on fake tensors; flash attention keeps what the kernel keeps
(q, k, v, output, log-sum-exp), and a function that Megatron compiles counts as one kernel.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from .megatron import CoreAttention, OracleCase, rows_of, saved_bytes_of_a_layer
from .prediction import MODELS, full, predicted_saved_bytes, selections, tensor_parallel

SETTINGS: dict[str, dict[str, Any]] = {
    **selections("core_attn", "mlp", "layernorm", "core_attn,mlp", "core_attn,layernorm"),
    **selections("mlp,layernorm", "core_attn,mlp,layernorm"),
    "full": full("uniform", 1),
    "block": full("block", 3),
}
UNFUSED: dict[str, Any] = {"attention": CoreAttention.UNFUSED}
BF16_SOFTMAX: dict[str, Any] = {**UNFUSED, "attention_softmax_in_fp32": False}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def assert_equal(case: OracleCase) -> None:
    measured = saved_bytes_of_a_layer(case)
    assert predicted_saved_bytes(case) == measured, rows_of(case)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ["llama3_70b", "gpt3_175b", "qwen3_32b"])
def test_every_setting(name: str, setting: str) -> None:
    assert_equal(MODELS[name].changed(**tensor_parallel(8, True), **SETTINGS[setting]))


@pytest.mark.parametrize(
    ("tp", "sp"), [(1, False), (2, False), (2, True), (4, False), (4, True), (8, False), (8, True)]
)
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_parallel_degree(name: str, tp: int, sp: bool) -> None:
    model = MODELS[name]
    if model.num_attention_heads % tp:
        tp = 4 if sp else 1  # 28 heads: no TP 8
    assert_equal(model.changed(**tensor_parallel(tp, sp)))


@pytest.mark.parametrize("setting", ["mlp", "layernorm", "full"])
@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_22b"])
def test_settings_without_sequence_parallelism(name: str, setting: str) -> None:
    assert_equal(MODELS[name].changed(**tensor_parallel(4, False), **SETTINGS[setting]))


@pytest.mark.parametrize("dropout", [{}, NO_DROPOUT], ids=["dropout", "no_dropout"])
@pytest.mark.parametrize("softmax", [UNFUSED, BF16_SOFTMAX], ids=["fp32", "bf16"])
@pytest.mark.parametrize("setting", ["none", "core_attn", "core_attn,mlp,layernorm"])
@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_22b", "qwen3_32b"])
def test_unfused_attention(name, setting, softmax, dropout) -> None:
    case = MODELS[name].changed(**tensor_parallel(8, True), **SETTINGS[setting])
    assert_equal(case.changed(**{**softmax, **dropout}))


@pytest.mark.parametrize("setting", ["none", "mlp"])
@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_22b"])
def test_unfused_activation(name: str, setting: str) -> None:
    case = MODELS[name].changed(**tensor_parallel(2, True), **SETTINGS[setting])
    assert_equal(case.changed(bias_activation_fusion=False))


@pytest.mark.parametrize(
    "changes",
    [
        NO_DROPOUT,
        {"hidden_dropout": 0.0},
        {"bias_dropout_fusion": True},
        {"position_embedding_type": "rope"},
        {"position_embedding_type": "none"},
        {"add_bias_linear": False, "bias_activation_fusion": False},
        {"normalization": "RMSNorm"},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_variants_of_a_gpt_layer(changes: dict[str, Any]) -> None:
    assert_equal(MODELS["gpt3_175b"].changed(**tensor_parallel(2, True), **changes))


@pytest.mark.parametrize("setting", ["none", "core_attn", "mlp"])
@pytest.mark.parametrize("attention", [{}, UNFUSED], ids=["flash", "unfused"])
def test_more_tensor_parallel_ranks_than_query_groups(attention, setting) -> None:
    """Ranks share key and value heads: each gathers the whole mixed_qkv and keeps it through V."""
    case = MODELS["qwen3_32b"].changed(num_query_groups=4, **tensor_parallel(8, True), **attention)
    assert_equal(case.changed(**SETTINGS[setting]))


def test_one_query_group() -> None:
    """With one group the query is a view: nothing is copied."""
    case = MODELS["llama3_70b"].changed(num_query_groups=1)
    assert_equal(case)
    assert_equal(case.changed(**tensor_parallel(4, True)))


@pytest.mark.parametrize("setting", ["none", "core_attn", "full"])
@pytest.mark.parametrize("name", ["llama3_70b", "gpt3_22b"])
def test_context_parallelism_halves_the_sequence(name: str, setting: str) -> None:
    case = MODELS[name].changed(context_parallel_size=2, **tensor_parallel(2, True))
    assert_equal(case.changed(**SETTINGS[setting]))


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_22b"])
def test_distributed_saved_activations(name: str) -> None:
    case = MODELS[name].changed(**tensor_parallel(4, False), **full("uniform", 1))
    assert_equal(case.changed(distribute_saved_activations=True))
