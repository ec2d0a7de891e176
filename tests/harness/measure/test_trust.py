"""Concerns on synthetic series."""

import itertools
import random
from collections.abc import Sequence

import pytest

from harness.measure.nvml import GpuReading
from harness.measure.trust import (
    SeenSteps,
    concerns,
    drift,
    is_warm,
    median_at_least,
    settled,
    spread,
)
from harness.trial.result import Concern
from harness.trial.trial import Device, MeasurementPlan

PLAN = MeasurementPlan()
CALM = (1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 1.01, 0.99, 1.0)


def found(device: Device = Device.CUDA, **seen: object) -> dict[str, Concern]:
    evidence = SeenSteps(**({"seconds": CALM} | seen))
    return {concern.name: concern for concern in concerns(evidence, PLAN, device)}


def test_a_calm_series_raises_nothing() -> None:
    assert found() == {}
    quiet = GpuReading(sm_clock_mhz=1980, throttle_reasons=("gpu_idle",))
    noted = {"other_processes": 0, "uncorrected_ecc_errors": 0, "host_seconds": CALM}
    assert found(readings=(quiet, quiet), **noted) == {}
    assert found(seconds=(*CALM[:9], 5.0)) == {}, "one slow step in ten"
    assert found(seconds=tuple(1.0 + 0.004 * i for i in range(10))) == {}, "a slow drift"


def test_one_percent_noise_is_calm_and_ten_is_not() -> None:
    noise = random.Random(7)
    quiet, loud = (
        sum(
            "spread" in found(seconds=tuple(noise.gauss(1.0, sigma) for _ in range(10)))
            for _ in range(300)
        )
        for sigma in (0.01, 0.10)
    )
    assert quiet == 0
    assert loud > 250


def test_a_wide_series() -> None:
    concern = found(seconds=(1.0, 1.2) * 5)["spread"]
    assert (concern.seen, concern.limit) == ("IQR 18.2 % of the median", "5.0 %")
    assert concern.fatal


def test_a_cpu_may_scatter_as_it_likes() -> None:
    assert "spread" not in found(Device.CPU, seconds=(1.0, 1.1) * 5)
    wild = found(Device.CPU, seconds=(1.0, 1.0, 1.0, 2.0, 3.0), warmup_seconds=(9.0, 1.0, 5.0))
    assert {name: seen.fatal for name, seen in wild.items()} == {"spread": False, "drift": False}
    assert "not judged" in wild["spread"].advice


@pytest.mark.parametrize("sign", [1, -1])
def test_a_drift_is_seen_both_ways(sign: int) -> None:
    concern = found(seconds=tuple(1.0 + sign * 0.01 * i for i in range(10)))["drift"]
    assert concern.fatal
    assert concern.seen.startswith("+8." if sign > 0 else "-9.")


def test_few_steps_are_said_and_not_fatal() -> None:
    concern = found(seconds=CALM[:4])["few_steps"]
    assert (concern.seen, concern.limit, concern.fatal) == ("4 steps", "5", False)


def test_statistics_of_next_to_nothing() -> None:
    assert spread(()) == spread((1.0,)) == drift(()) == drift((1.0, 2.0)) == 0.0


def test_a_warm_up_that_never_agreed() -> None:
    most = PLAN.max_warmup_steps
    restless = tuple(1.0 + i % 2 for i in range(most))
    assert "warmup" in found(warmup_seconds=restless)
    assert found(warmup_seconds=(1.0,) * most) == {}
    assert found(warmup_seconds=restless[:5]) == {}


def test_heat_is_fatal_and_the_power_cap_is_not() -> None:
    readings = (
        GpuReading(throttle_reasons=("sw_power_cap",)),
        GpuReading(throttle_reasons=("hw_thermal_slowdown", "gpu_idle")),
        GpuReading(),
    )
    seen = found(readings=readings)
    assert {name: (one.seen, one.fatal) for name, one in seen.items()} == {
        "throttling": ("hw_thermal_slowdown", True),
        "power_cap": ("sw_power_cap", False),
    }


def test_the_range_of_the_clock() -> None:
    readings = tuple(GpuReading(sm_clock_mhz=clock) for clock in (1980, 1700))
    assert found(readings=readings)["clock_range"].seen == "SM clock 1700 to 1980 MHz"
    assert found(readings=readings[:1]) == {}


def test_neighbours_retries_and_errors() -> None:
    seen = found(other_processes=2, allocator_retries=3, uncorrected_ecc_errors=1)
    assert {name: concern.fatal for name, concern in seen.items()} == {
        "allocator_retries": True,
        "other_processes": True,
        "ecc_errors": False,
    }


def test_two_clocks_that_disagree() -> None:
    seen = found(host_seconds=tuple(1.1 * seconds for seconds in CALM))
    assert seen["clocks_disagree"].seen == "events -9.1 % against the host clock"
    assert not seen["clocks_disagree"].fatal


def test_fatal_ones_come_first() -> None:
    evidence = SeenSteps(seconds=(1.0, 1.5, 1.0), other_processes=1)
    fatal = [concern.fatal for concern in concerns(evidence, PLAN, Device.CUDA)]
    assert fatal == sorted(fatal, reverse=True)
    assert False in fatal


def steps_until_warm(series: Sequence[float], least: int, most: int) -> int:
    plan = MeasurementPlan(min_warmup_steps=least, max_warmup_steps=most, warmup_tolerance=0.05)
    return next(n for n in itertools.count() if is_warm(series[:n], plan))


@pytest.mark.parametrize(
    ("series", "least", "most", "steps"),
    [
        pytest.param([1.0] * 9, 3, 6, 3, id="calm from the start: the least"),
        pytest.param([53.0, 1.0, 1.0, 1.0, 1.0], 3, 6, 4, id="a compiling first step"),
        pytest.param([9.0, 4.0, 1.04, 1.0, 1.02, 1.0], 3, 6, 5, id="within 5 % of their median"),
        pytest.param([9.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0], 3, 6, 6, id="a late slow step: the most"),
        pytest.param([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0], 3, 6, 6, id="never calm: the most"),
        pytest.param([1.0] * 9, 5, 9, 5, id="the least is always run"),
        pytest.param([9.0, 5.0, 3.0, 2.0, 1.0], 4, 2, 4, id="a most below the least"),
        pytest.param([9.0, 1.0], 1, 1, 1, id="one step is a whole warm-up"),
    ],
)
def test_the_warm_up_ends_by_rule(series: list[float], least: int, most: int, steps: int) -> None:
    assert steps_until_warm(series, least, most) == steps


def test_agreement_is_range_over_median_of_at_least_three() -> None:
    assert settled([7.0, 1.0, 1.0, 1.05], 0.05 + 1e-9)
    assert not settled([7.0, 1.0, 1.0, 1.06], 0.05 + 1e-9)
    assert not settled([1.0, 1.0], 0.05)


def test_the_bound_is_an_order_statistic_of_the_binomial() -> None:
    """P(all n above the median) = 2^-n: 1/16 of four steps, 1/32 of five; of eight, 9/256 that at
    most one is below it."""
    assert median_at_least([3.0, 1.0, 2.0, 4.0]) is None
    assert median_at_least([5.0, 3.0, 1.0, 2.0, 4.0]) == 1.0
    assert median_at_least([float(n) for n in range(8, 0, -1)]) == 2.0
    assert median_at_least([3.0, 1.0, 2.0, 4.0], level=0.9) == 1.0


def test_it_holds_with_the_stated_probability() -> None:
    chance = random.Random(0)
    draws = [[chance.expovariate(1.0) for _ in range(10)] for _ in range(2000)]
    above = sum((median_at_least(draw) or 0.0) > 0.6931 for draw in draws)  # ln 2
    # of ten: P(at most one below) = 11/1024; five standard errors of 2,000 draws
    assert above / 2000 == pytest.approx(11 / 1024, abs=5 * (0.0107 * 0.99 / 2000) ** 0.5)
