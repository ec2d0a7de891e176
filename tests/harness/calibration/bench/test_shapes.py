"""Shapes come from the presets."""

from functools import cache

import pytest
from msgspec.structs import replace

from advisor.models.presets import load_model, model_names
from harness.calibration.bench.cases import (
    ATTENTION,
    BANDWIDTH,
    COLLECTIVES,
    HOST_COPIES,
    HOST_TIMES,
    LATENT_ATTENTION,
    Case,
    CaseKind,
)
from harness.calibration.bench.shapes import (
    BURST,
    COMPARED_TOKENS,
    EXPERT_TOKENS,
    SUSTAINED,
    core_cases,
    preset_cases,
    with_attention,
)


@cache
def presets() -> frozenset[Case]:
    """Made when a test asks: seconds that collecting need not take."""
    return frozenset(preset_cases())


def test_every_case_stands_once_and_has_work() -> None:
    assert len(presets()) == len(preset_cases())
    assert all(case.work > 0 for case in presets())
    apart = {CaseKind.SUSTAINED_GEMM, CaseKind.ALL_REDUCE, *HOST_TIMES}  # TP has SP
    assert {case.kind for case in presets()} == set(CaseKind) - apart


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_linear_layers_of_llama3_8b(tp: int) -> None:
    """qkv 6144, fc1 2 x 14336, both from 4096; forward and both gradients."""
    for width in (6144 // tp, 28672 // tp):
        for sizes, variant in (
            ((8192, width, 4096), "tn"),
            ((8192, 4096, width), "nn"),
            ((width, 4096, 8192), "nt"),
        ):
            assert Case(kind=CaseKind.GEMM, sizes=sizes, variant=variant) in presets()


def test_the_output_layer_is_never_in_8_bits() -> None:
    rows = load_model("llama3_8b").padded_vocab_size(1)
    assert Case(kind=CaseKind.GEMM, sizes=(4096, rows, 4096), variant="tn") in presets()
    assert not any(c.kind is CaseKind.GEMM_FP8 and rows in c.sizes for c in presets())


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_other_layers_of_llama3_8b(tp: int) -> None:
    """Attention keeps its groups; norms and additions are cut by sequence parallelism."""
    for kind in ATTENTION:
        assert Case(kind=kind, sizes=(1, 8192, 32 // tp, 8 // tp, 128)) in presets()
    for kind in (CaseKind.NORM, CaseKind.ADD):
        assert Case(kind=kind, sizes=(8192 // tp, 4096)) in presets()


def test_swiglu_writes_half_of_what_it_reads_and_collectives_carry_the_whole_sequence() -> None:
    assert Case(kind=CaseKind.SWIGLU, sizes=(8192, 14336)) in presets()
    for kind in (CaseKind.ALL_GATHER, CaseKind.REDUCE_SCATTER):
        assert Case(kind=kind, sizes=(8192 * 4096 * 2,)) in presets()


def test_every_preset_gives_gemms() -> None:
    for name in model_names():
        hidden = load_model(name).hidden_size
        assert any(case.kind is CaseKind.GEMM and hidden in case.sizes for case in presets()), name


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_of_any_length_of_which_none_takes_long(kind: CaseKind) -> None:
    shapes = [(tokens, 32, 8) for tokens in (2048, 16384, 32768)]
    for shape in (*shapes, (65536, 4, 1), (131072, 4, 1)):
        assert Case(kind=kind, sizes=(1, *shape, 128)) in presets()
    long = [case for case in presets() if case.kind is kind and case.sizes[1] > 8192]
    assert max(case.flops for case in long) < 7e13, "0.2 s at 350 TFLOP/s"


@pytest.mark.parametrize("kind", LATENT_ATTENTION)
def test_latent_attention_has_two_widths(kind: CaseKind) -> None:
    """DeepSeek V3: 128 heads, 128 + 64 channels of queries and keys, 128 of values."""
    for tokens, heads in ((8192, 128), (8192, 16), (32768, 16)):
        assert Case(kind=kind, sizes=(1, tokens, heads, 192, 128)) in presets()


def test_experts_of_a_rank() -> None:
    """Mixtral: 8 experts of 4096 x 14336, gated; Qwen3 30B: 128 of 2048 x 768 over 8 ranks."""
    sizes = {case.sizes for case in presets() if case.kind is CaseKind.GROUPED_GEMM}
    for rows in EXPERT_TOKENS:
        assert {(8, rows, 28672, 4096), (8, rows, 4096, 14336)} <= sizes
        assert {(16, rows, 1536, 2048), (16, rows, 2048, 768)} <= sizes
    assert all(n % 8 == k % 8 == 0 for _, _, n, k in sizes)


def test_the_core_is_small_and_of_what_steps_are_made_of() -> None:
    core = core_cases()
    assert core <= presets()
    assert len(core) < 400
    single = {CaseKind.GEMM, CaseKind.GEMM_FP8, CaseKind.ADAM, CaseKind.COPY}
    kinds = {*single, *ATTENTION, *BANDWIDTH, *HOST_COPIES}
    assert {case.kind for case in core if case.kind not in COLLECTIVES} == kinds
    assert BURST in core
    assert SUSTAINED.flops == BURST.flops


def test_attention_comes_once_and_some_of_it_in_each_implementation() -> None:
    cases = with_attention(preset_cases(), ("flash", "cudnn"))
    attention = [case for case in cases if case.kind in ATTENTION]
    flash, cudnn = ([c for c in attention if c.variant == name] for name in ("flash", "cudnn"))
    assert len(flash) + len(cudnn) == len(attention)
    assert {replace(c, variant="") for c in flash} == {c for c in presets() if c.kind in ATTENTION}
    assert {case.sizes[1] for case in cudnn} == set(COMPARED_TOKENS)
    assert 10 < len(cudnn) < len(flash) / 10, "enough to compare, and little time"
    assert sum(case.kind in COLLECTIVES for case in cases) > 0
