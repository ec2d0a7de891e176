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
    assert (
        found(
            readings=(quiet, quiet), other_processes=0, uncorrected_ecc_errors=0, host_seconds=CALM
        )
        == {}
    )


def test_one_percent_noise_is_calm_and_ten_is_not() -> None:
    noise = random.Random(7)
    quiet = sum("spread" in found(seconds=noisy(noise, 0.01)) for _ in range(300))
    loud = sum("spread" in found(seconds=noisy(noise, 0.10)) for _ in range(300))
    assert quiet == 0
    assert loud > 250


def noisy(noise: random.Random, sigma: float) -> tuple[float, ...]:
    return tuple(noise.gauss(1.0, sigma) for _ in range(10))


def test_one_slow_step_in_ten_is_neither_spread_nor_drift() -> None:
    assert found(seconds=(*CALM[:9], 5.0)) == {}


def test_a_wide_series() -> None:
    concern = found(seconds=(1.0, 1.2) * 5)["spread"]
    assert concern.fatal
    assert concern.seen == "IQR 18.2 % of the median"
    assert concern.limit == "5.0 %"


def test_a_cpu_may_scatter_as_it_likes() -> None:
    assert "spread" not in found(Device.CPU, seconds=(1.0, 1.1) * 5)
    wild = found(Device.CPU, seconds=(1.0, 1.0, 1.0, 2.0, 3.0), warmup_seconds=(9.0, 1.0, 5.0))
    assert {name: concern.fatal for name, concern in wild.items()} == {
        "spread": False,
        "drift": False,
    }
    assert "not judged" in wild["spread"].advice


@pytest.mark.parametrize("sign", [1, -1])
def test_a_drift_is_seen_both_ways(sign: int) -> None:
    concern = found(seconds=tuple(1.0 + sign * 0.01 * i for i in range(10)))["drift"]
    assert concern.fatal
    assert concern.seen.startswith("+8." if sign > 0 else "-9.")


def test_a_slow_drift_is_borne() -> None:
    assert found(seconds=tuple(1.0 + 0.004 * i for i in range(10))) == {}


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
    assert seen["throttling"].seen == "hw_thermal_slowdown"
    assert seen["throttling"].fatal
    assert seen["power_cap"].seen == "sw_power_cap"
    assert not seen["power_cap"].fatal


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


WARMUP_PLAN = MeasurementPlan(min_warmup_steps=3, max_warmup_steps=6, warmup_tolerance=0.05)


def steps_until_warm(series: Sequence[float], plan: MeasurementPlan = WARMUP_PLAN) -> int:
    return next(n for n in itertools.count() if is_warm(series[:n], plan))


@pytest.mark.parametrize(
    ("series", "steps"),
    [
        pytest.param([1.0] * 9, 3, id="calm from the start: the least"),
        pytest.param([53.0, 1.0, 1.0, 1.0, 1.0], 4, id="a compiling first step is waited out"),
        pytest.param([9.0, 4.0, 1.04, 1.0, 1.02, 1.0], 5, id="within 5 % of their median"),
        pytest.param([9.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0], 6, id="a late slow step, then the most"),
        pytest.param([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0], 6, id="never calm: the most"),
    ],
)
def test_the_warm_up_ends_by_rule(series: list[float], steps: int) -> None:
    assert steps_until_warm(series) == steps


def test_the_least_is_always_run() -> None:
    plan = MeasurementPlan(min_warmup_steps=5, max_warmup_steps=9)
    assert steps_until_warm([1.0] * 9, plan) == 5


def test_a_most_below_the_least_gives_the_least() -> None:
    plan = MeasurementPlan(min_warmup_steps=4, max_warmup_steps=2)
    assert steps_until_warm([9.0, 5.0, 3.0, 2.0, 1.0], plan) == 4


def test_one_step_can_be_a_whole_warm_up() -> None:
    plan = MeasurementPlan(min_warmup_steps=1, max_warmup_steps=1)
    assert steps_until_warm([9.0, 1.0], plan) == 1


@pytest.mark.parametrize(("last", "calm"), [(1.05, True), (1.06, False)])
def test_agreement_is_range_over_median(last: float, calm: bool) -> None:
    assert settled([7.0, 1.0, 1.0, last], 0.05 + 1e-9) is calm


def test_two_steps_never_agree() -> None:
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
