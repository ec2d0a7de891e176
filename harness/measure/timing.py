"""Step times by CUDA events and by the host clock."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

from harness.trial.trial import Device

HOST: Final = "host"
CUDA_EVENT: Final = "cuda_event"


class Stopwatch:
    """Marks moments of a stream of work and tells the seconds between them, by perf_counter."""

    clock: str = HOST

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._marks: list[float] = []
        self._laps: tuple[float, ...] = ()

    def mark(self) -> None:
        """Now, as the device sees it; does not wait for the device."""
        self._marks.append(self._now())

    def laps(self) -> tuple[float, ...]:
        """Seconds between successive marks, by `clock`; waits for the device, forgets the marks."""
        self._laps, self._marks = differences(self._marks), []
        return self._laps

    def host_laps(self) -> tuple[float, ...]:
        """The same by the host clock, as of the last `laps`."""
        return self._laps


class CudaStopwatch(Stopwatch):
    """CUDA events on the current stream, and the host clock next to them: laps of steps queued
    ahead of the device are exact, while the host's laps tell how long queueing took."""

    clock = CUDA_EVENT

    def __init__(self) -> None:
        super().__init__()
        self._events: list[Any] = []

    def mark(self) -> None:
        """Queue an event."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        super().mark()

    def laps(self) -> tuple[float, ...]:
        """Seconds between successive events; resolution about half a microsecond."""
        torch.cuda.synchronize()
        events, self._events = self._events, []
        super().laps()
        return tuple(start.elapsed_time(end) * 1e-3 for start, end in pairwise(events))


def stopwatch(device: Device) -> Stopwatch:
    """The clock that times of `device` are taken with."""
    return CudaStopwatch() if device is Device.CUDA else Stopwatch()


def differences(marks: Sequence[float]) -> tuple[float, ...]:
    """Distances of neighbours."""
    return tuple(after - before for before, after in pairwise(marks))


def slowest_rank(seconds: float, device: Device) -> float:
    """The longest of all ranks' `seconds`, so that all end their warm-up after the same step."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return seconds
    value = torch.tensor([seconds], dtype=torch.float64, device=device.value)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return float(value.item())
