"""Calls by the host's clock, and under lasting load: what is read of the GPU meanwhile."""

from typing import Any

import pytest

from harness.calibration.bench import timer
from harness.calibration.bench.timer import Timing, time_call, time_sustained
from harness.measure.nvml import GpuIdentity, GpuReading
from harness.trial.result import GpuLoad
from harness.trial.trial import Device


class Heating:
    """A GPU whose calls take 0.01 s, and 0.0125 s once 40 have run; it tells a lower clock then."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def call(self, _: int) -> None:
        self.calls += 1
        self.now += 0.0125 if self.hot else 0.01

    @property
    def hot(self) -> bool:
        return self.calls > 40

    def reading(self) -> GpuReading:
        return GpuReading(
            sm_clock_mhz=1500 if self.hot else 1980,
            power_watts=700.0 if self.hot else 500.0,
            throttle_reasons=("sw_power_cap",) if self.hot else (),
        )

    def identity(self) -> GpuIdentity:
        return GpuIdentity(max_sm_clock_mhz=1980)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    gpu = Heating()
    monkeypatch.setattr(timer, "time_call", lambda *_, **__: Timing(0.01, 0.0, 5))
    monkeypatch.setattr(timer.time, "perf_counter", lambda: gpu.now)
    monkeypatch.setattr(timer, "stopwatch", lambda _: module_watch(gpu))
    return gpu


def module_watch(gpu: Heating) -> Any:
    from harness.measure.timing import Stopwatch

    return Stopwatch(lambda: gpu.now)


def test_the_second_half_is_what_counts(gpu: Any) -> None:
    timing, seen = time_sustained(gpu.call, Device.CPU, hold_seconds=1.0, gpu=gpu)
    assert timing.seconds == pytest.approx(0.0125)
    assert timing.spread == pytest.approx(0.0)
    assert seen == GpuLoad(
        sm_clock_mhz=1500,
        max_sm_clock_mhz=1980,
        power_watts=700.0,
        throttle_reasons=("sw_power_cap",),
    )
    assert 1.0 <= gpu.now < 1.0 + 2 * 5 * 0.0125, "held as long as asked, to the batch"


def test_a_long_call_is_held_for_a_few_batches_at_least(gpu: Any) -> None:
    timing, _ = time_sustained(gpu.call, Device.CPU, hold_seconds=0.0, gpu=gpu)
    assert gpu.calls == 4 * 5
    assert timing.runs == 2


def test_without_nvml_the_rate_alone_is_known(gpu: Any) -> None:
    timing, seen = time_sustained(gpu.call, Device.CPU, hold_seconds=1.0, gpu=None)
    assert timing.seconds == pytest.approx(0.0125)
    assert seen == GpuLoad()


def test_queueing_follows_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    ticks = iter(range(100))
    monkeypatch.setattr(timer.time, "perf_counter", lambda: float(next(ticks)))
    timing = timer.time_queueing(calls.append, Device.CPU, calls=4)
    assert timing.seconds == 0.25
    assert timing.spread == 0.0
    assert calls == [0, 1, *[0, 1, 2, 3] * timing.runs]


def test_a_long_call_is_timed_a_few_times_and_a_short_one_often() -> None:
    calls: list[int] = []
    few = time_call(calls.append, Device.CPU, wanted_seconds=0.0)
    assert few.runs == 5
    assert calls == [0, 1, 0, 1, 2, 3, 4], "two to warm up"
    assert time_call(calls.append, Device.CPU, wanted_seconds=1.0).runs == 100
