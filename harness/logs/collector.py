"""What the lines of a log say, put together: steps by number, peaks by rank, means, timers."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from harness.base.collections import known
from harness.logs.records import (
    Argument,
    LoggedLoss,
    LoggedPeak,
    LoggedStep,
    Mark,
    Record,
    Throughput,
    Timers,
    WholeRun,
)

_ROUNDING_SECONDS: Final = 0.0051
"""Bridge writes a step's seconds with two decimals next to Megatron's milliseconds."""


class Stream(Struct):
    """Steps as one rank writes them: their numbers rise, or the run was started again."""

    steps: dict[int, LoggedStep] = field(default_factory=dict)
    last: int = 0
    epoch: float = 0.0
    restarts: int = 0
    beyond: int = 0
    failed: bool = False
    unread: int = 0

    def add(self, step: LoggedStep, most: int) -> None:
        """Enter a step; what another line of it said already stays, the slower time counts. Beyond
        `most` steps only the last is kept, and the first whose loss is no number."""
        known = self.steps.get(step.number)
        if known is None and len(self.steps) >= most:
            self.unread += self.steps.pop(self.beyond, None) is not None
            fails = step.loss is not None and not math.isfinite(step.loss)
            self.beyond = 0 if fails and not self.failed else step.number
            self.failed |= fails
        self.steps[step.number] = step if known is None else combined(known, step)
        self.last = step.number

    def restart(self) -> "Stream":
        """The next attempt: what was said so far belongs to an earlier one."""
        return Stream(restarts=self.restarts + 1)


class Collector(Struct):
    """Records of one framework in one file. most: steps kept of all ranks; least: of each."""

    most: int
    least: int = 0
    streams: dict[int | None, Stream] = field(default_factory=dict)
    rates: list[Throughput] = field(default_factory=list)
    peaks: dict[int | None, LoggedPeak] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    timers: list[float | None] = field(default_factory=list)
    num_timers: int = 0
    whole_run: WholeRun | None = None
    ended: bool = False

    def add(self, record: Record, rank: int | None) -> bool:
        """Enter what a line of `rank` says; whether it shows that training goes on."""
        goes_on = isinstance(record, LoggedStep | LoggedLoss | Throughput | Timers)
        self.ended = record is Mark.END or (self.ended and not goes_on)
        match record:
            case LoggedStep():
                self._step(record, rank)
            case LoggedLoss():
                self._loss(record, rank)
            case Throughput():
                self.rates += [record] * (len(self.rates) < self.most)
            case Timers():
                self.num_timers += 1
                self.timers += [record.seconds] * (len(self.timers) < self.most)
            case LoggedPeak():
                self._peak(record, rank)
            case Argument():
                self.arguments[record.name] = record.value
            case WholeRun():
                stated = {name: one for name, one in asdict(record).items() if one is not None}
                self.whole_run = replace(self.whole_run or WholeRun(), **stated)
            case Mark.START:
                self._start(rank)
        return goes_on

    def steps(self) -> tuple[LoggedStep, ...]:
        """Steps of all ranks, by number; rates without a number go to the steps they belong to."""
        merged: dict[int, LoggedStep] = {}
        for stream in self.streams.values():
            for number, step in stream.steps.items():
                merged[number] = combined(merged[number], step) if number in merged else step
        found = [merged[number] for number in sorted(merged)]
        if self.timers and (not found or found[-1].number <= self.num_timers):
            found = _with_timers(found, self.timers)
        return tuple(_with_rates(found, self.rates)) if self.rates else tuple(found)

    @property
    def restarts(self) -> int:
        """How often the run began anew, as the rank says that saw most of it."""
        return max((stream.restarts for stream in self.streams.values()), default=0)

    @property
    def full(self) -> bool:
        """Whether of every rank as many steps are known as are kept."""
        kept = [len(stream.steps) for stream in self.streams.values()]
        return bool(kept) and min(kept) >= self._room

    @property
    def _room(self) -> int:
        return max(self.least, self.most // len(self.streams))

    def _stream(self, rank: int | None) -> Stream:
        return self.streams.setdefault(rank, Stream())

    def _step(self, step: LoggedStep, rank: int | None) -> None:
        if step.number < self._stream(rank).last:  # an earlier step is run again
            self._again(rank)
        self._stream(rank).add(step, self._room)

    def _loss(self, loss: LoggedLoss, rank: int | None) -> None:
        if loss.epoch < self._stream(rank).epoch:
            self._again(rank)
        stream = self._stream(rank)
        stream.epoch = loss.epoch
        stream.add(LoggedStep(number=stream.last + 1, loss=loss.value), self._room)

    def _peak(self, peak: LoggedPeak, writer: int | None) -> None:
        rank = writer if peak.rank is None else peak.rank
        self.peaks[rank] = larger_peak(replace(peak, rank=rank), self.peaks.get(rank))

    def _start(self, rank: int | None) -> None:
        """A run begins, anew if anything was logged; Megatron's last rank writes the steps."""
        writers = [key for key, stream in self.streams.items() if stream.steps]
        for writer in (rank,) if rank in writers else tuple(writers):
            self._again(writer)

    def _again(self, rank: int | None) -> None:
        """A rank begins anew. Where it alone writes steps, all that others said is as old."""
        self.streams[rank] = self._stream(rank).restart()
        if any(other.steps for other in self.streams.values()):
            self.peaks.pop(rank, None)
            return
        self.rates.clear()
        self.timers.clear()
        self.num_timers = 0
        self.peaks.clear()
        self.whole_run = None


def combined(one: LoggedStep, other: LoggedStep) -> LoggedStep:
    """Two lines of one step: the slower of two times, else whatever one of them says."""
    found = {}
    for name in LoggedStep.__struct_fields__:
        here, there = getattr(one, name), getattr(other, name)
        known = here if there is None else there
        both = here is not None and there is not None
        if both and name in ("seconds", "timer_seconds", "stamp"):
            known = max(here, there)
        elif both and name.endswith(("_per_gpu", "_per_second")):
            known = min(here, there)
        found[name] = known
    return LoggedStep(**found)


def larger_peak(one: LoggedPeak, other: LoggedPeak | None) -> LoggedPeak:
    """The larger of two peaks of one rank, number by number."""
    if other is None:
        return one
    return replace(
        one,
        number=max(one.number, other.number),
        allocated=max(known((one.allocated, other.allocated)), default=None),
        reserved=max(known((one.reserved, other.reserved)), default=None),
    )


def merged_collectors(files: Sequence[Collector]) -> Collector:
    """Records of several ranks' files as those of one run."""
    streams = [stream for one in files for stream in one.streams.values()]
    peaks: dict[int | None, LoggedPeak] = {}
    arguments: dict[str, str] = {}
    for one in files:
        peaks |= {rank: larger_peak(peak, peaks.get(rank)) for rank, peak in one.peaks.items()}
        arguments |= one.arguments
    return Collector(
        most=files[0].most,
        streams=dict(enumerate(streams)),
        rates=[rate for one in files for rate in one.rates],
        peaks=peaks,
        arguments=arguments,
        timers=next((one.timers for one in files if one.timers), []),
        num_timers=next((one.num_timers for one in files if one.timers), 0),
        whole_run=next((one.whole_run for one in files if one.whole_run), None),
        ended=_all_ended(files),
    )


def _all_ended(files: Sequence[Collector]) -> bool:
    """Whether all ranks that write steps ended, or one that writes none (Megatron's first)."""
    writers = [one for one in files if any(stream.steps for stream in one.streams.values())]
    silent = any(one.ended for one in files if one not in writers)
    return silent or (bool(writers) and all(one.ended for one in writers))


def _with_timers(steps: list[LoggedStep], timers: list[float | None]) -> list[LoggedStep]:
    """Timers as those of steps 1, 2, 3, …; none where one stands for several steps."""
    if None in timers:
        return steps
    known = {step.number: step for step in steps}
    timed = [
        replace(known.pop(number, LoggedStep(number=number)), timer_seconds=seconds)
        for number, seconds in enumerate(timers, start=1)
    ]
    return [*timed, *known.values()]


def _with_rates(steps: list[LoggedStep], rates: list[Throughput]) -> list[LoggedStep]:
    """Rates in order next to steps in theirs, whose times must agree; alone they are the steps."""
    if not steps:
        return [
            LoggedStep(number=number, seconds=rate.seconds, tflops_per_gpu=rate.tflops_per_gpu)
            for number, rate in enumerate(rates, start=1)
        ]
    found = []
    for step, rate in zip_longest(steps, rates[: len(steps)]):
        fits = rate is not None and abs(rate.seconds - (step.seconds or 0)) <= _ROUNDING_SECONDS
        known = step.tflops_per_gpu is not None
        found.append(
            replace(step, tflops_per_gpu=rate.tflops_per_gpu) if fits and not known else step
        )
    return found
