"""GEMM efficiencies leave to the advisor what its model of GEMMs adds by shape."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.time.gemm import matmul_seconds
from advisor.time.machine import gemm_rates
from harness.calibration.bench.cases import Case, Kind, Sample
from harness.calibration.gemm_shapes import by_shape

H100 = load_gpu("H100")
ALONE = replace(
    load_calibration(H100),
    gemm_sustained_share=1.0,
    gemm_training_share=1.0,
    quantized_training_share=1.0,
)
TRUE = {"gemm_efficiency": 0.83, "fp8_gemm_efficiency": 0.61}
KINDS = {Kind.GEMM: Precision.BF16, Kind.GEMM_FP8: Precision.FP8_CURRENT}


def samples(kind: Kind) -> list[Sample]:
    rates = gemm_rates(H100, replace(ALONE, **TRUE), KINDS[kind])
    sizes = [(m, n, k) for m in (2048, 8192) for n in (4096, 6144, 28672) for k in (1024, 4096)]
    return [
        Sample(case=Case(kind=kind, sizes=size, variant="tn"), seconds=matmul_seconds(rates, *size))
        for size in sizes
    ]


def test_the_efficiency_that_the_samples_were_made_with_is_found() -> None:
    found = by_shape(ALONE, H100, [one for kind in KINDS for one in samples(kind)])
    assert found == pytest.approx(TRUE, rel=1e-4)


def test_one_odd_kernel_changes_nothing() -> None:
    timed = samples(Kind.GEMM)
    odd = replace(timed[-1], seconds=3 * timed[-1].seconds)
    expected = pytest.approx(TRUE["gemm_efficiency"], rel=1e-4)
    assert by_shape(ALONE, H100, [*timed[:-1], odd])["gemm_efficiency"] == expected


def test_shares_of_a_step_are_no_part_of_it() -> None:
    """They scale what is predicted of steps, and no kernel that is timed alone."""
    in_steps = replace(ALONE, gemm_training_share=0.9)
    assert by_shape(in_steps, H100, samples(Kind.GEMM)) == pytest.approx(
        {"gemm_efficiency": TRUE["gemm_efficiency"]}, rel=1e-4
    )


def test_what_was_not_timed_has_none() -> None:
    assert by_shape(ALONE, H100, []) == {}
