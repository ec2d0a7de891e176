"""Concerns on synthetic series."""

import random

import pytest

from harness.measure.nvml import GpuReading
from harness.measure.trust import Evidence, concerns, drift, spread
from harness.trial.result import Concern
from harness.trial.trial import Device, MeasurementPlan

PLAN = MeasurementPlan()
CALM = (1.0, 1.01, 0.99, 1.0, 1.005, 0.995, 1.0, 1.01, 0.99, 1.0)


def found(device: Device = Device.CUDA, **seen: object) -> dict[str, Concern]:
    evidence = Evidence(**({"seconds": CALM} | seen))  # type: ignore[arg-type]
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
    evidence = Evidence(seconds=(1.0, 1.5, 1.0), other_processes=1)
    fatal = [concern.fatal for concern in concerns(evidence, PLAN, Device.CUDA)]
    assert fatal == sorted(fatal, reverse=True)
    assert False in fatal
