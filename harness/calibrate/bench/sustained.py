"""One kernel back to back for seconds: the rate, clock and power that a GPU keeps under load.

A burst of a few calls runs at the highest clock. A training step draws the full power for hours,
and the clock goes down until the power is within its limit.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import torch

from harness.calibrate.bench.cases import Load
from harness.calibrate.bench.timer import Call, Timing, time_call
from harness.measure.nvml import GpuReading, NvmlGpu
from harness.measure.timing import stopwatch
from harness.measure.trust import spread
from harness.trial import Device

_BATCH_SECONDS: Final = 0.05
_LEAST_BATCHES: Final = 4
_GUESS_SECONDS: Final = 0.01


def time_sustained(
    call: Call, device: Device, *, hold_seconds: float, gpu: NvmlGpu | None
) -> tuple[Timing, Load]:
    """Seconds of a call in the second half of `hold_seconds` without a pause, and what NVML read
    meanwhile. The device always has the next batch when it ends one."""
    guess = time_call(call, device, wanted_seconds=_GUESS_SECONDS).seconds
    size = max(1, round(_BATCH_SECONDS / guess))
    batches = max(_LEAST_BATCHES, round(hold_seconds / (size * guess)))
    readings: list[GpuReading] = []
    watch = stopwatch(device)
    watch.mark()
    began, ended = time.perf_counter(), _nothing
    for done in range(1, batches + 1):
        for number in range(size):
            call(number)
        watch.mark()
        before, ended = ended, _passed(device)
        if gpu is not None:
            readings.append(gpu.reading())
        before()
        if done >= _LEAST_BATCHES and time.perf_counter() - began > hold_seconds:
            break
    laps = [seconds / size for seconds in watch.laps()]
    late = laps[len(laps) // 2 :]
    timing = Timing(median(late), spread(late), len(late))
    return timing, load(readings[len(readings) // 2 :], _highest_clock(gpu))


def load(readings: Sequence[GpuReading], max_sm_clock_mhz: float | None) -> Load:
    """Medians of what was read, and all reasons together; None for what was never told."""
    reasons = [r.throttle_reasons for r in readings if r.throttle_reasons is not None]
    return Load(
        sm_clock_mhz=_median([r.sm_clock_mhz for r in readings]),
        max_sm_clock_mhz=max_sm_clock_mhz,
        power_watts=_median([r.power_watts for r in readings]),
        throttle_reasons=tuple(sorted(set().union(*reasons))) if reasons else None,
    )


def _median(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return float(median(told)) if told else None


def _highest_clock(gpu: NvmlGpu | None) -> float | None:
    return None if gpu is None else gpu.identity().max_sm_clock_mhz


def _nothing() -> None:
    """Nothing to wait for."""


def _passed(device: Device) -> Callable[[], None]:
    """What waits until the device is done with all that is queued now."""
    if device is Device.CPU:
        return _nothing
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait
