"""Measures one training step on one rank: times, memory, timeline, and what speaks against them;
by phase of a step peaks of allocated bytes (of fake storages, a CPU's, or the CUDA allocator's),
where its time goes, and how far the processor is ahead of the GPU."""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from operator import sub
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.grouping import grouped
from harness.measure.memory import CudaAllocator, StorageMeter, Timeline, sampled
from harness.measure.nvml import GpuReading, NvmlGpu, load_of, open_current_gpu
from harness.measure.timing import Stopwatch, differences, slowest_rank, stopwatch
from harness.measure.training_step import Measured, Silent, TrainingStep
from harness.measure.trust import SeenSteps, concerns, is_warm, median_at_least
from harness.trial.result import MemoryPeak, Phase, PhaseTime, StepTimes, TimelinePoint
from harness.trial.trial import Device, MeasurementPlan

PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Gauge(Struct, frozen=True):
    """Knows the highest number of bytes since it was restarted from what is allocated then."""

    peak: Callable[[], int]
    restart: Callable[[], None]


def meter_gauge(meter: StorageMeter) -> Gauge:
    """Of storages that a dispatch mode follows."""

    def restart() -> None:
        meter.peak_bytes = meter.live_bytes

    return Gauge(lambda: meter.peak_bytes, restart)


CUDA_GAUGE: Final = Gauge(torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)
"""Of the caching allocator."""


class PhasePeaks:
    """A recorder of a step that notes the peak of every phase."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._now = Phase.FORWARD
        self.peaks = dict.fromkeys(PHASES, 0)
        gauge.restart()

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self.close()
        self._now = phase

    def replay(self, begins: bool) -> None:
        """A replay is a part of the backward."""

    def close(self) -> None:
        """The running phase ends now."""
        self.peaks[self._now] = max(self.peaks[self._now], self._gauge.peak())
        self._gauge.restart()


class PhaseTimes:
    """A recorder of when each phase begins, for the GPU (idle at first) and its processor."""

    def __init__(self, watch: Stopwatch) -> None:
        watch.laps()
        self._watch = watch
        self._begun: list[Phase] = []

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self._watch.mark()
        self._begun.append(phase)

    def replay(self, begins: bool) -> None:
        """A stretch of the backward in which something is computed again."""
        self.phase(Phase.REPLAY if begins else Phase.BACKWARD)

    def ended(self) -> tuple[PhaseTime, ...]:
        """The step is over: each phase that it had. Waits for the GPU."""
        self._watch.mark()
        laps, host_laps = self._watch.laps(), self._watch.host_laps()
        ahead = map(sub, accumulate(laps), accumulate(host_laps))
        queued_ahead = [*list(ahead)[:-1], None]  # at its end the processor waits for the loss
        each = zip(laps, host_laps, queued_ahead, strict=True)
        stretches = grouped(zip(self._begun, each, strict=True))
        return tuple(
            PhaseTime(
                phase=phase,
                stretches=len(stretches[phase]),
                seconds=sum(seconds for seconds, _, _ in stretches[phase]),
                host_seconds=sum(seconds for _, seconds, _ in stretches[phase]),
                ahead_seconds=min(
                    (s for _, _, s in stretches[phase] if s is not None), default=None
                ),
            )
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.REPLAY, Phase.OPTIMIZER)
            if phase in stretches
        )


class _Window(Struct, frozen=True, kw_only=True):
    """The timed steps."""

    seconds: tuple[float, ...]
    host_seconds: tuple[float, ...]
    loss: tuple[float, ...]
    readings: tuple[GpuReading, ...]
    pruned: bool


def measure(
    step: TrainingStep, plan: MeasurementPlan, device: Device, limit_seconds: float | None = None
) -> Measured:
    """Warm up by rule, time plan.steps steps with nothing else running, then look at memory.
    limit_seconds: fewer steps, once their median is clearly above it on the slowest rank. All ranks
    of a process group call it together. What `step` raises is the caller's."""
    gpu = open_current_gpu() if device is Device.CUDA else None
    warmup = _warm_up(step, plan, device)
    allocator = CudaAllocator() if device is Device.CUDA else None
    window = _time(step, plan, device, gpu, limit_seconds)
    if window.pruned:
        plan = replace(plan, memory_timeline=False)
    memory, timeline = (
        _cpu_memory(step) if allocator is None else _cuda_memory(step, plan, allocator, gpu)
    )
    times = StepTimes(seconds=window.seconds, warmup_seconds=warmup, clock=stopwatch(device).clock)
    seen = SeenSteps(
        seconds=window.seconds,
        warmup_seconds=warmup,
        host_seconds=window.host_seconds if device is Device.CUDA else (),
        readings=window.readings,
        other_processes=None if gpu is None else gpu.other_processes(),
        allocator_retries=memory.allocator_retries,
        uncorrected_ecc_errors=None if gpu is None else gpu.identity().uncorrected_ecc_errors,
    )
    return Measured(
        times=times,
        memory=(memory,),
        timeline=timeline if plan.memory_timeline else (),
        phases=() if device is Device.CPU or window.pruned else phases(step),
        loss=window.loss,
        concerns=concerns(seen, plan, device),
        load=load_of(window.readings, gpu),
        pruned=window.pruned,
    )


def _warm_up(step: TrainingStep, plan: MeasurementPlan, device: Device) -> tuple[float, ...]:
    """Seconds of the dropped steps, of the slowest rank each: all ranks stop after the same one. A
    CPU drops `min_warmup_steps`, so that the measured ones are the same on every machine."""
    if device is Device.CPU:
        plan = replace(plan, max_warmup_steps=plan.min_warmup_steps)
    watch, recorder = stopwatch(device), Silent()
    seconds: list[float] = []
    while not is_warm(seconds, plan):
        watch.mark()
        step.run(recorder)
        watch.mark()
        seconds.append(slowest_rank(watch.laps()[0], device))
    return tuple(seconds)


def _time(
    step: TrainingStep,
    plan: MeasurementPlan,
    device: Device,
    gpu: NvmlGpu | None,
    limit_seconds: float | None,
) -> _Window:
    """Steps back to back, marked at their boundaries: nothing that happens between is left out,
    where there is a limit the ranks' agreement on it (one number reduced) neither."""
    watch, recorder = stopwatch(device), Silent()
    loss: list[float] = []
    pruned = False
    gc.collect()
    with _watched(gpu) as readings:
        watch.mark()
        began = [time.perf_counter()]
        while len(loss) < plan.steps and not pruned:
            loss.append(step.run(recorder))
            watch.mark()
            began.append(time.perf_counter())
            least = None if limit_seconds is None else median_at_least(differences(began))
            if limit_seconds is not None and least is not None:
                pruned = slowest_rank(least, device) > limit_seconds
        seconds = watch.laps()
    return _Window(
        seconds=seconds,
        host_seconds=watch.host_laps(),
        loss=tuple(loss),
        readings=tuple(readings),
        pruned=pruned and len(loss) < plan.steps,
    )


@contextmanager
def _watched(gpu: NvmlGpu | None) -> Iterator[list[GpuReading]]:
    """Readings of the GPU during the block, four a second."""
    readings: list[GpuReading] = []
    if gpu is None:
        yield readings
        return
    with sampled(lambda: readings.append(gpu.reading()), interval=0.25):
        yield readings


def _cuda_memory(
    step: TrainingStep, plan: MeasurementPlan, allocator: CudaAllocator, gpu: NvmlGpu | None
) -> tuple[MemoryPeak, tuple[TimelinePoint, ...]]:
    """The allocator's peaks over the timed steps, then one more step for the timeline. The caching
    allocator keeps what it took: what the driver calls used after the steps is also its peak."""
    peaks = allocator.peaks()
    used = None if gpu is None else gpu.reading().used_bytes
    memory = MemoryPeak(rank=_rank(), stage=step.stage, nvml_used=used, **peaks)
    if not plan.memory_timeline:
        return memory, ()
    timeline = Timeline(allocator.allocated)
    with sampled(timeline.sample):
        step.run(timeline)
        torch.cuda.synchronize()
    timeline.sample()
    return memory, timeline.points()


def phases(step: TrainingStep) -> tuple[PhaseTime, ...]:
    """One more step, with an event at the begin of each phase and replay; nothing where it fails,
    in whatever way: what was measured before must not be lost for it."""
    recorder = PhaseTimes(stopwatch(Device.CUDA))
    try:
        step.run(recorder)
        return recorder.ended()
    except Exception as error:
        print(f"harness: no phase times, as one more step failed: {error!r}", file=sys.stderr)
        return ()


def _cpu_memory(step: TrainingStep) -> tuple[MemoryPeak, tuple[TimelinePoint, ...]]:
    """One step under the meter; its seconds are longer than those of a timed step."""
    gc.collect()
    counted: list[Any] = []
    meter = StorageMeter(changed=lambda live: counted[0].add(live) if counted else None)
    meter.count_existing()
    timeline = Timeline(lambda: meter.live_bytes)
    counted.append(timeline)
    with meter.measuring():
        timeline.sample()
        step.run(timeline)
    timeline.sample()
    return MemoryPeak(rank=_rank(), stage=step.stage, allocated=meter.peak_bytes), timeline.points()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
