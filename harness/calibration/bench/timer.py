"""Seconds of one call of a kernel: CUDA events or the host clock, many times; and of collectives
over all ranks of a torchrun, where every rank runs the same cases in step."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise, zip_longest
from statistics import median
from typing import Any, Final

import torch
from msgspec import Struct

from harness.backends.training_rank import COLLECTIVES, torch_device
from harness.calibration.bench.case_order import queued
from harness.calibration.bench.cases import Case, CaseKind, Sample
from harness.measure.nvml import GpuReading, NvmlGpu, load_of
from harness.measure.timing import slowest_rank, stopwatch
from harness.measure.trust import spread
from harness.trial.result import GpuLoad
from harness.trial.trial import Device

Call = Callable[[int], object]
"""One call of a kernel on input set number i, counted without end."""

_HOST_RUNS: Final = 7
_LEAST_RUNS: Final = 5
_MOST_RUNS: Final = 100
_WARM_CALLS: Final = 2
_GRAPH_CALLS: Final = 20
_SHORT_SECONDS: Final = 100e-6
_BATCH_SECONDS: Final = 0.05
_LEAST_BATCHES: Final = 4
_GUESS_SECONDS: Final = 0.01


class Timing(Struct, frozen=True):
    """Seconds of a call, IQR over median, and of how many timings. On a GPU the median; on a CPU
    the least: the rest of the system only ever adds to it, more than the kernel itself scatters."""

    seconds: float
    spread: float
    runs: int


def time_call(call: Call, device: Device, *, wanted_seconds: float, graph: bool = False) -> Timing:
    """Time `call` for about `wanted_seconds`, at least five times. `graph`: the call may be
    captured in a CUDA graph. Short kernels are then timed without the gaps that launching them one
    by one leaves, as a training step queues them ahead of the device."""
    for number in range(_WARM_CALLS):
        call(number)
    if device is Device.CUDA:
        seconds = _cuda_timings(call, wanted_seconds, graph)
        return Timing(median(seconds), spread(seconds), len(seconds))
    seconds = _host_timings(call, wanted_seconds)
    return Timing(min(seconds), spread(seconds), len(seconds))


def time_queueing(call: Call, device: Device, *, calls: int) -> Timing:
    """Seconds that the host takes to queue a call, `calls` of them without waiting for the device:
    fewer than the thousand that a device takes before its queue holds the host up."""
    for number in range(_WARM_CALLS):
        call(number)
    seconds = []
    for _ in range(_HOST_RUNS):
        _wait(device)
        before = time.perf_counter()
        for number in range(calls):
            call(number)
        seconds.append((time.perf_counter() - before) / calls)
    _wait(device)
    return Timing(median(seconds), spread(seconds), len(seconds))


def _wait(device: Device) -> None:
    if device is Device.CUDA:
        torch.cuda.synchronize()


def _host_timings(call: Call, wanted_seconds: float) -> list[float]:
    seconds: list[float] = []
    total = 0.0
    while len(seconds) < _LEAST_RUNS or (total < wanted_seconds and len(seconds) < _MOST_RUNS):
        before = time.perf_counter()
        call(len(seconds))
        seconds.append(time.perf_counter() - before)
        total += seconds[-1]
    return seconds


def _cuda_timings(call: Call, wanted_seconds: float, graph: bool) -> list[float]:
    """Batches of calls between events, all queued before any is waited for."""
    torch.cuda.synchronize()
    guess = _between_events([partial(call, number) for number in range(3)])[-1]
    batch, calls = call, 1
    if graph and guess < _SHORT_SECONDS:
        replay = _captured(call)
        if replay is not None:
            batch, calls = replay, _GRAPH_CALLS
            guess = _between_events([partial(batch, number) for number in range(2)])[-1] / calls
    runs = int(wanted_seconds / max(guess * calls, 1e-9))
    runs = min(max(runs, _LEAST_RUNS), _MOST_RUNS)
    queued = [partial(batch, number) for number in range(runs)]
    return [seconds / calls for seconds in _between_events(queued)]


def _between_events(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each call on the device."""
    make: Any = torch.cuda.Event
    events = [make(enable_timing=True) for _ in range(len(calls) + 1)]
    events[0].record()
    for call, after in zip(calls, events[1:], strict=True):
        call()
        after.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in pairwise(events)]


def _captured(call: Call) -> Call | None:
    """A graph of several calls; None where they cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    with suppress(RuntimeError):
        with torch.cuda.graph(graph):
            for number in range(_GRAPH_CALLS):
                call(number)
        graph.replay()
        torch.cuda.synchronize()
        return lambda _: graph.replay()
    return None


def time_sustained(
    call: Call, device: Device, *, hold_seconds: float, gpu: NvmlGpu | None
) -> tuple[Timing, GpuLoad]:
    """The rate, clock and power that a GPU keeps under load: a burst of a few calls runs at the
    highest clock, which goes down until the power is within its limit. Seconds of a call in the
    second half of `hold_seconds` without a pause, and what NVML read meanwhile."""
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


_WARM_COLLECTIVES: Final = 3
_RUNS: Final = 11


@contextmanager
def ranks(device: Device) -> Iterator[int]:
    """The number of ranks, in a process group for as long as the block runs; 1 without torchrun."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield 1
        return
    distributed: Any = torch.distributed
    torch_device(device)
    distributed.init_process_group(COLLECTIVES[device])
    try:
        yield world_size
    finally:
        distributed.destroy_process_group()


def measure_collectives(
    cases: Sequence[Case], device: Device, world_size: int, budget_seconds: float
) -> Iterator[Sample]:
    """Samples of the collectives among `cases`; rank 0's clock decides when time is up."""
    began = time.monotonic()
    rounds = zip_longest(*queued(cases).values())  # one of each kind in turn
    for case in (case for of_each in rounds for case in of_each if case is not None):
        if case.sizes[0] % (2 * world_size):
            continue
        if slowest_rank(time.monotonic() - began, device) >= budget_seconds:
            return
        try:
            call = _call(case, device, world_size)
            seconds = _timings(call, device)
        except (RuntimeError, NotImplementedError):  # gloo lacks some; all ranks fail alike
            continue
        middle = sorted(seconds)[len(seconds) // 2]
        yield Sample(case=case, seconds=middle, spread=spread(seconds), runs=len(seconds))


def _timings(call: Call, device: Device) -> list[float]:
    """Seconds of each call, of the rank that waited longest."""
    for number in range(_WARM_COLLECTIVES):
        call(number)
    watch = stopwatch(device)
    watch.mark()
    for number in range(_RUNS):
        call(number)
        watch.mark()
    return [slowest_rank(seconds, device) for seconds in watch.laps()]


def _call(case: Case, device: Device, world_size: int) -> Call:
    distributed: Any = torch.distributed
    count = case.sizes[0] // 2
    where: Any = {"device": device.value, "dtype": torch.bfloat16}
    whole = torch.randn(count, **where)
    part = torch.randn(count // world_size, **where)
    if case.kind is CaseKind.ALL_GATHER:
        return lambda _: distributed.all_gather_into_tensor(whole, part)
    if case.kind is CaseKind.REDUCE_SCATTER:
        return lambda _: distributed.reduce_scatter_tensor(part, whole)
    return lambda _: distributed.all_reduce(whole)
