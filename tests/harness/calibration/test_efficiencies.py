"""The fit finds the constants that synthetic samples were made of."""

import random
from functools import cache

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.time.gemm import matmul_seconds
from advisor.time.machine import gemm_rates
from harness.calibration.bench import shapes
from harness.calibration.bench.cases import ATTENTION, COLLECTIVES, Case, CaseKind, Sample
from harness.calibration.efficiencies import (
    RESOURCES,
    Ramp,
    Rates,
    Resource,
    by_shape,
    fit,
    fitted_samples,
    large,
    left_out_errors,
    work,
)

KERNEL, COLLECTIVE, RANKS = 5e-6, 2e-5, 8
TRUE = {
    Resource.GEMM: 700e12,
    Resource.GEMM_FP8: 1200e12,
    Resource.ATTENTION_FORWARD: 500e12,
    Resource.ATTENTION_BACKWARD: 400e12,
    Resource.BANDWIDTH: 2.7e12,
    Resource.OPTIMIZER: 3e12,
    Resource.COLLECTIVE: 350e9,
    Resource.TO_DEVICE: 50e9,
    Resource.TO_HOST: 45e9,
}
RAMP = Ramp(rows=32_768.0, tokens=1_024.0)


@cache
def cases() -> list[Case]:
    """Every GEMM is too many; of what moves memory there are few that are large."""
    every = shapes.with_attention(shapes.preset_cases(), ("flash",))
    known = [case for case in every if case.kind in RESOURCES or case.kind is CaseKind.COPY]
    gemms = (CaseKind.GEMM, CaseKind.GEMM_FP8)
    return [case for index, case in enumerate(known) if case.kind not in gemms or index % 5 == 0]


def seconds(case: Case) -> float:
    """A machine that is exactly as the advisor thinks machines are."""
    if case.kind is CaseKind.COPY:
        return case.work / 3e12
    resource = RESOURCES[case.kind]
    fixed = COLLECTIVE if case.kind in COLLECTIVES else case.kernels * KERNEL
    return work(case, RANKS) * RAMP.of(case) / TRUE[resource] + fixed


def samples(noise: float = 0.0) -> list[Sample]:
    source = random.Random(3)
    return [
        Sample(case=case, seconds=seconds(case) * source.lognormvariate(0.0, noise))
        for case in cases()
    ]


def test_exact_times_give_the_constants_back() -> None:
    rates = fit(samples(), RANKS)
    assert set(rates.of) == set(TRUE)
    for resource, rate in rates.of.items():
        assert rate.value == pytest.approx(TRUE[resource], rel=0.02), resource
        assert rate.low <= rate.value <= rate.high
        assert rate.count > 0
    assert rates.ramp == RAMP
    assert rates.kernel_seconds == pytest.approx(KERNEL, rel=0.2)
    assert rates.collective_seconds == pytest.approx(COLLECTIVE, rel=0.2)


def test_noise_and_wild_outliers_move_little() -> None:
    noisy = [
        replace(sample, seconds=sample.seconds * (50 if index % 10 == 0 else 1))
        for index, sample in enumerate(samples(0.05))
    ]
    rates = fit(noisy, RANKS)
    for resource in (Resource.GEMM, Resource.GEMM_FP8, Resource.BANDWIDTH):
        assert rates.of[resource].value == pytest.approx(TRUE[resource], rel=0.05), resource


def test_left_out_shapes_are_predicted_to_the_noise() -> None:
    errors = left_out_errors(samples(), RANKS)
    assert len(errors) > 100
    assert max(abs(error) for error in errors) < 0.05
    noisy = sorted(abs(error) for error in left_out_errors(samples(0.10), RANKS))
    assert 0.05 < noisy[len(noisy) // 2] < 0.10


def test_the_sign_of_an_error_is_predicted_over_measured() -> None:
    """One kernel is slower than all others: it is predicted too fast."""
    gemms = [s for s in samples() if s.case.kind is CaseKind.GEMM]
    slow = max(gemms, key=lambda sample: sample.case.work)
    changed = [replace(s, seconds=s.seconds * 2) if s is slow else s for s in gemms]
    assert min(left_out_errors(changed)) == pytest.approx(-0.5, abs=0.01)


def test_without_short_kernels_their_cost_is_unknown() -> None:
    long = [s for s in samples() if s.seconds > 1e-3 and s.case.kind not in COLLECTIVES]
    rates = fit(long)
    assert rates.kernel_seconds is None
    assert rates.of[Resource.GEMM].value == pytest.approx(TRUE[Resource.GEMM], rel=0.02)


def test_next_to_nothing() -> None:
    rates = fit([])
    assert rates.of == {}
    assert rates.kernel_seconds is rates.collective_seconds is None
    assert left_out_errors([]) == ()
    one = Sample(case=Case(kind=CaseKind.GEMM, sizes=(4096, 4096, 4096)), seconds=1e-3)
    rate = fit([one]).of[Resource.GEMM]
    assert rate.value == rate.low == rate.high == one.rate
    tiny = [Sample(case=Case(kind=CaseKind.ADD, sizes=(1, n)), seconds=5e-6) for n in range(1, 9)]
    assert large(tiny, costs=Rates(kernel_seconds=5e-6)) == [], "all fixed cost"


def attention(variant: str, rate: float, lengths: range) -> list[Sample]:
    """Forward and backward of sequences of so many thousands."""
    return [
        Sample(case=case, seconds=case.flops / rate)
        for kind in ATTENTION
        for case in (
            Case(kind=kind, sizes=(1, 1024 * n, 8, 8, 128), variant=variant) for n in lengths
        )
    ]


def test_what_the_native_backend_runs_is_fitted_though_another_is_faster() -> None:
    found = attention("cudnn", 600e12, range(1, 9)) + attention("flash", 500e12, range(1, 5))
    rates = fit(found)
    for resource in (Resource.ATTENTION_FORWARD, Resource.ATTENTION_BACKWARD):
        assert rates.of[resource].value == pytest.approx(500e12)
    assert {s.case.variant for s in fitted_samples(found)} == {"flash"}
    assert all(abs(error) < 1e-6 for error in left_out_errors(found))


def test_the_ramp_counts_rows_over_sequences_and_heads() -> None:
    case = Case(kind=CaseKind.ATTENTION_FORWARD, sizes=(2, 4096, 8, 4, 128))
    assert RAMP.of(case) == 1 + 32_768 / (2 * 4096 * 8) + 1_024 / 4096
    assert RAMP.of(Case(kind=CaseKind.GEMM, sizes=(8, 8, 8))) == 1.0
    assert fit(attention("flash", 500e12, range(2, 7))).ramp == Ramp(), "few shapes: one rate"


def test_kinds_that_share_a_rate_weigh_as_a_layer_moves_them() -> None:
    """4, 6 and 17.5 tensors of hidden size, at 2, 4 and 1 TB/s."""
    rates = {CaseKind.NORM: 2e12, CaseKind.ADD: 4e12, CaseKind.SWIGLU: 1e12}
    found = [
        Sample(case=case, seconds=case.work / rates[kind])
        for kind in rates
        for case in (Case(kind=kind, sizes=(2**13, 2**n)) for n in range(12, 16))
    ]
    expected = 27.5 / (4 / 2 + 6 / 4 + 17.5 / 1) * 1e12
    assert fit(found).of[Resource.BANDWIDTH].value == pytest.approx(expected)


def test_what_alone_was_timed_is_taken() -> None:
    """On a CPU that is torch's; where flash attention is refused, cuDNN's."""
    for variant in ("torch", "cudnn"):
        rates = fit(attention(variant, 400e12, range(1, 5)))
        assert rates.of[Resource.ATTENTION_BACKWARD].value == pytest.approx(400e12)


@pytest.mark.parametrize(("kind", "passes"), [(CaseKind.ALL_GATHER, 1), (CaseKind.ALL_REDUCE, 2)])
def test_work_of_a_collective_is_what_a_ring_sends(kind: CaseKind, passes: int) -> None:
    assert work(Case(kind=kind, sizes=(800,)), ranks=4) == passes * 600


def test_the_host_takes_equally_long_for_each_operation() -> None:
    cases = [case for case in shapes.HOST_CASES if case.kind is not CaseKind.HOST_LAUNCH]
    found = [Sample(case=case, seconds=2e-5 * shapes.host_operations(case)) for case in cases]
    assert fit(found).host_native_call_seconds == pytest.approx(2e-5)
    replayed = [one for one in found if one.case.kind is CaseKind.HOST_REPLAY]
    assert fit(replayed).host_native_call_seconds is None


H100 = load_gpu("H100")
_ALONE = ("gemm_sustained_share", "gemm_training_share")
ALONE = replace(load_calibration(H100), **dict.fromkeys(_ALONE, 1.0))
GEMM_SHARES = {"gemm_efficiency": 0.83, "fp8_gemm_efficiency": 0.61}
KINDS = {CaseKind.GEMM: Precision.BF16, CaseKind.GEMM_FP8: Precision.FP8_CURRENT}


def gemms(kind: CaseKind) -> list[Sample]:
    rates = gemm_rates(H100, replace(ALONE, **GEMM_SHARES), KINDS[kind])
    sizes = [(m, n, k) for m in (2048, 8192) for n in (4096, 6144, 28672) for k in (1024, 4096)]
    return [
        Sample(case=Case(kind=kind, sizes=size, variant="tn"), seconds=matmul_seconds(rates, *size))
        for size in sizes
    ]


def test_the_efficiency_that_the_samples_were_made_with_is_found() -> None:
    found = by_shape(ALONE, H100, [one for kind in KINDS for one in gemms(kind)])
    assert found == pytest.approx(GEMM_SHARES, rel=1e-4)
    assert by_shape(ALONE, H100, []) == {}


@pytest.mark.parametrize(
    ("factor", "calibration"),
    [
        pytest.param(3, ALONE, id="one odd kernel"),
        pytest.param(1, replace(ALONE, gemm_training_share=0.9), id="a share of steps alone"),
    ],
)
def test_it_stays_the_same(factor: int, calibration: Calibration) -> None:
    timed = gemms(CaseKind.GEMM)
    odd = replace(timed[-1], seconds=factor * timed[-1].seconds)
    expected = pytest.approx({"gemm_efficiency": GEMM_SHARES["gemm_efficiency"]}, rel=1e-4)
    assert by_shape(calibration, H100, [*timed[:-1], odd]) == expected
