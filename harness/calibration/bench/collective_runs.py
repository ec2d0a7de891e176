"""Times collectives over all ranks of a torchrun; every rank runs the same cases in step."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from harness.backends.training_rank import COLLECTIVES, torch_device
from harness.calibration.bench.case_order import ordered
from harness.calibration.bench.cases import Case, CaseKind, Sample
from harness.calibration.bench.timer import Call
from harness.measure.timing import slowest_rank, stopwatch
from harness.measure.trust import spread
from harness.trial.trial import Device

_WARM_CALLS: Final = 3
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
    for case in ordered(cases):
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
    for number in range(_WARM_CALLS):
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
