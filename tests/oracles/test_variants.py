"""Saved bytes and peaks of Gemma 2, Gemma 3 and Llama 4, equal to the byte to Megatron Core's.

Two functions are compiled on a GPU, and others stand for them on fake tensors, which keep what the
compiled ones keep (see the last test): torch's GELU for fast_gelu, an RMSNorm for the L2 norm.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core import activations
from megatron.core.transformer.torch_norm import L2Norm

from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import NormPlacement
from harness.backends.megatron_core.fake import saved
from harness.backends.megatron_core.fake.gpu_kernels import FlashLikeAttention

from .megatron import Activation, CoreAttention, OracleCase, peak, saved_bytes_per_layer
from .prediction import (
    SCALARS_BYTES,
    full,
    predicted_peak,
    predicted_saved_bytes,
    selections,
    tensor_parallel,
)
from .variants import (
    CHUNK,
    WINDOW,
    CappedAttention,
    ChunkedAttention,
    WindowedCappedAttention,
    chunks_of,
    gemma_ends,
)

GEMMA2_9B = OracleCase(
    num_layers=2,
    hidden_size=3584,
    ffn_hidden_size=14336,
    num_attention_heads=16,
    num_query_groups=8,
    kv_channels=256,
    seq_length=2048,
    micro_batch_size=2,
    activation=Activation.GEGLU,
    bias_activation_fusion=False,
    attention=CoreAttention.UNFUSED,
    attention_softmax_in_fp32=False,
)
GEMMA3_27B = GEMMA2_9B.changed(
    hidden_size=5376,
    ffn_hidden_size=21504,
    num_attention_heads=32,
    num_query_groups=16,
    kv_channels=128,
    qk_layernorm=True,
    attention=CoreAttention.FLASH,
)
LLAMA4 = OracleCase(
    num_layers=2,
    hidden_size=5120,
    ffn_hidden_size=16384,
    num_attention_heads=40,
    num_query_groups=8,
    kv_channels=128,
    seq_length=2048,
    micro_batch_size=2,
    qk_layernorm=True,
)
L2_NORM = {"qk_layernorm": False, "qk_l2_norm": True}
POST: dict[str, Any] = {"norm_placement": NormPlacement.PRE_AND_POST}
CAPPED = {**POST, "attn_logit_softcapping": 50.0}
MODELS: dict[str, tuple[OracleCase, Any, dict[str, Any]]] = {
    "gemma2": (GEMMA2_9B, chunks_of(CappedAttention, post_norms=True), CAPPED),
    "gemma2, window": (
        GEMMA2_9B,
        chunks_of(WindowedCappedAttention, post_norms=True),
        {**CAPPED, "window_size": WINDOW},
    ),
    "gemma3": (GEMMA3_27B, chunks_of(FlashLikeAttention, post_norms=True), POST),
    "llama4": (LLAMA4, chunks_of(FlashLikeAttention), L2_NORM),
    "llama4, chunks": (
        LLAMA4,
        chunks_of(ChunkedAttention),
        {**L2_NORM, "attention_chunk_size": CHUNK},
    ),
    "llama4, no rotary": (
        LLAMA4.changed(qk_layernorm=False),
        chunks_of(FlashLikeAttention, no_rope_freq=1),
        {**L2_NORM, "no_rope_freq": LayerPattern("1"), "attention_chunk_size": CHUNK},
    ),
}
# Bridge cuts chunks outside of what core_attn replays, the stand-in inside.
SETTINGS = selections("mlp,layernorm", "core_attn")
CASES = [
    *((name, "none") for name in MODELS),
    ("gemma2, window", "core_attn"),
    ("gemma3", "mlp,layernorm"),
    ("llama4", "mlp,layernorm"),
]


def assert_equal(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    case, build, fields = MODELS[name]
    monkeypatch.setattr(saved, "fake_chunks", build)
    case = case.changed(**changes)
    _, rows = saved_bytes_per_layer(case)
    rows = [row for row in rows if row.dtype != "float64"]  # Python's numbers, in host memory
    assert predicted_saved_bytes(case, **fields) == sum(row.nbytes for row in rows), "\n".join(
        map(str, rows)
    )


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_saved_bytes(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(name, monkeypatch, **tensor_parallel(2, True), **SETTINGS[setting])


def test_softmax_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal("gemma2, window", monkeypatch, attention_softmax_in_fp32=True)


@pytest.mark.parametrize(("name", "statistics"), [("fast_gelu", 0), ("L2Norm", 4)])
def test_what_the_compiled_functions_keep(name: str, statistics: int) -> None:
    """fast_gelu its input; the L2 norm also four bytes a row (its graph as Inductor splits it)."""
    inner = {"fast_gelu": activations.fast_gelu, "L2Norm": L2Norm(128)._norm}[name]
    function = inner._torchdynamo_orig_callable
    function = function.__get__(L2Norm(128)) if name == "L2Norm" else function
    x = torch.ones(4, 2, 8, 128, dtype=torch.bfloat16, requires_grad=True)
    kept: list[int] = []
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        torch.compile(function, backend="aot_eager_decomp_partition")(x)
    assert sorted(kept) == sorted(filter(None, [x.nbytes, 4 * 2 * 8 * statistics]))


@pytest.mark.parametrize(
    ("name", "setting"), [("gemma2, window", {}), ("gemma3", full("uniform", 1)), ("llama4", {})]
)
def test_peaks(name: str, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case, build, fields = MODELS[name]
    monkeypatch.setattr(peak, "fake_chunks", build)
    case = case.changed(**tensor_parallel(2, True), **setting)
    difference = peak.activation_peak(case, 0) - predicted_peak(case, 0, **fields)
    assert 0 <= difference <= SCALARS_BYTES


def test_capped_logits_and_scaled_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    case, build, fields = MODELS["gemma2"]
    monkeypatch.setattr(peak, "fake_chunks", lambda case: [*map(gemma_ends, build(case))])
    case = case.changed(**tensor_parallel(2, True), **full("uniform", 1), vocab_size=256000)
    ends = {"final_logit_softcapping": 30.0, "apply_embedding_scaling": True}
    measured, predicted = peak.activation_peak(case, 0), predicted_peak(case, 0, **fields, **ends)
    assert 0 <= measured - predicted <= SCALARS_BYTES
