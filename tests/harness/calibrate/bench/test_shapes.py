"""Shapes come from the presets."""

import pytest

from advisor.models.presets import load_model, model_names
from harness.calibrate.bench.cases import ATTENTION, COLLECTIVES, Case, Kind
from harness.calibrate.bench.shapes import preset_cases, with_attention

CASES = frozenset(preset_cases())


def test_every_case_stands_once_and_has_work() -> None:
    assert len(CASES) == len(preset_cases())
    assert all(case.work > 0 for case in CASES)
    assert {case.kind for case in CASES} == set(Kind) - {Kind.ALL_REDUCE}  # the presets' TP has SP


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_linear_layers_of_llama3_8b(tp: int) -> None:
    """qkv 6144, fc1 2 x 14336, both from 4096; forward and both gradients."""
    for width in (6144 // tp, 28672 // tp):
        for sizes, variant in (
            ((8192, width, 4096), "tn"), ((8192, 4096, width), "nn"), ((width, 4096, 8192), "nt"),
        ):  # fmt: skip
            assert Case(kind=Kind.GEMM, sizes=sizes, variant=variant) in CASES


def test_the_output_layer_is_never_in_8_bits() -> None:
    rows = load_model("llama3_8b").padded_vocab_size(1)
    assert Case(kind=Kind.GEMM, sizes=(4096, rows, 4096), variant="tn") in CASES
    assert not any(c.kind is Kind.GEMM_FP8 and rows in c.sizes for c in CASES)


def test_attention_keeps_its_groups() -> None:
    for tp in (1, 2, 4, 8):
        sizes = (1, 8192, 32 // tp, 8 // tp, 128)
        for kind in ATTENTION:
            assert Case(kind=kind, sizes=sizes) in CASES


def test_norms_and_additions_are_cut_by_sequence_parallelism() -> None:
    for kind in (Kind.NORM, Kind.ADD):
        for tp in (1, 2, 4, 8):
            assert Case(kind=kind, sizes=(8192 // tp, 4096)) in CASES


def test_swiglu_writes_half_of_what_it_reads() -> None:
    assert Case(kind=Kind.SWIGLU, sizes=(8192, 14336)) in CASES


def test_collectives_carry_the_whole_sequence() -> None:
    hidden = 8192 * 4096 * 2
    assert Case(kind=Kind.ALL_GATHER, sizes=(hidden,)) in CASES
    assert Case(kind=Kind.REDUCE_SCATTER, sizes=(hidden,)) in CASES


def test_every_preset_gives_gemms() -> None:
    for name in model_names():
        hidden = load_model(name).hidden_size
        assert any(case.kind is Kind.GEMM and hidden in case.sizes for case in CASES), name


def test_attention_comes_once_for_each_implementation() -> None:
    cases = with_attention(preset_cases(), ("flash", "cudnn"))
    attention = [case for case in cases if case.kind in ATTENTION]
    assert len(attention) == 2 * sum(case.kind in ATTENTION for case in CASES)
    assert {case.variant for case in attention} == {"flash", "cudnn"}
    assert sum(case.kind in COLLECTIVES for case in cases) > 0
