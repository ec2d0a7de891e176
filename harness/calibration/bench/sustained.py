"""One kernel back to back for seconds: the rate, clock and power that a GPU keeps under load.

A burst of a few calls runs at the highest clock. Under lasting load the clock goes down until the
power is within its limit.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch

from harness.calibration.bench.timer import Call, Timing, time_call
from harness.measure.nvml import GpuReading, NvmlGpu, load_of
from harness.measure.timing import stopwatch
from harness.measure.trust import spread
from harness.trial.result import GpuLoad
from harness.trial.trial import Device

_BATCH_SECONDS: Final = 0.05
_LEAST_BATCHES: Final = 4
_GUESS_SECONDS: Final = 0.01


def time_sustained(
    call: Call, device: Device, *, hold_seconds: float, gpu: NvmlGpu | None
) -> tuple[Timing, GpuLoad]:
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
    return timing, load_of(readings[len(readings) // 2 :], gpu) or GpuLoad()


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
