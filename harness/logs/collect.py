"""Puts the records of a log together: the last attempt counts, all lines of a step add to it."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from harness.base.collections import known
from harness.logs.records import (
    Argument,
    Loss,
    Mark,
    Peak,
    Record,
    Step,
    Throughput,
    Timers,
    WholeRun,
)

_ROUNDING_SECONDS: Final = 0.0051
"""Bridge writes a step's seconds with two decimals beside Megatron's milliseconds."""


class Stream(Struct):
    """Steps as one rank writes them: their numbers rise, or the run was started again."""

    steps: dict[int, Step] = field(default_factory=dict)
    last: int = 0
    epoch: float = 0.0
    restarts: int = 0

    def goes_back(self, step: Step) -> bool:
        """Whether an earlier step is run again."""
        return step.number < self.last

    def add(self, step: Step) -> None:
        """Enter a step; what another line of it said already stays, the slower time counts."""
        known = self.steps.get(step.number)
        self.steps[step.number] = step if known is None else combined(known, step)
        self.last = step.number

    def next_number(self) -> int:
        """Number of a step that does not tell its own."""
        return self.last + 1

    def restart(self) -> None:
        """What was said so far belongs to an earlier attempt."""
        self.steps.clear()
        self.last, self.epoch = 0, 0.0
        self.restarts += 1


class Collector(Struct):
    """Records of one framework from one file."""

    streams: dict[int | None, Stream] = field(default_factory=dict)
    rates: list[Throughput] = field(default_factory=list)
    peaks: dict[int | None, Peak] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    timers: list[float | None] = field(default_factory=list)
    whole_run: WholeRun | None = None
    ended: bool = False

    def add(self, record: Record, rank: int | None) -> bool:
        """Enter what a line of `rank` says; whether it shows that training goes on."""
        match record:
            case Step():
                return self._step(record, rank)
            case Loss():
                return self._loss(record, rank)
            case Throughput():
                self.rates.append(record)
                self.ended = False
                return True
            case Timers():
                self.timers.append(record.seconds)
                self.ended = False
                return True
            case Peak():
                self._peak(record, rank)
            case Argument():
                self.arguments[record.name] = record.value
            case WholeRun():
                self.whole_run = latest_means(self.whole_run, record)
            case Mark.END:
                self.ended = True
            case Mark.START:
                self._start(rank)
        return False

    def steps(self) -> tuple[Step, ...]:
        """Steps of all ranks, by number; rates without a number go to the steps they belong to."""
        merged: dict[int, Step] = {}
        for stream in self.streams.values():
            for number, step in stream.steps.items():
                merged[number] = combined(merged[number], step) if number in merged else step
        found = [merged[number] for number in sorted(merged)]
        found = _with_timers(found, self.timers) if self.timers else found
        return tuple(_with_rates(found, self.rates)) if self.rates else tuple(found)

    @property
    def restarts(self) -> int:
        """How often the run began anew, as the rank says that saw most of it."""
        return max((stream.restarts for stream in self.streams.values()), default=0)

    def sorted_peaks(self) -> tuple[Peak, ...]:
        """Peaks by rank, that of an unknown rank first."""
        return tuple(
            self.peaks[r] for r in sorted(self.peaks, key=lambda r: -1 if r is None else r)
        )

    def _stream(self, rank: int | None) -> Stream:
        return self.streams.setdefault(rank, Stream())

    def _step(self, step: Step, rank: int | None) -> bool:
        stream = self._stream(rank)
        if stream.goes_back(step):
            self._again(rank)
        stream.add(step)
        self.ended = False
        return True

    def _loss(self, loss: Loss, rank: int | None) -> bool:
        stream = self._stream(rank)
        if loss.epoch < stream.epoch:
            self._again(rank)
        stream.epoch = loss.epoch
        stream.add(Step(number=stream.next_number(), loss=loss.value))
        self.ended = False
        return True

    def _peak(self, peak: Peak, writer: int | None) -> None:
        rank = writer if peak.rank is None else peak.rank
        self.peaks[rank] = larger_peak(replace(peak, rank=rank), self.peaks.get(rank))

    def _start(self, rank: int | None) -> None:
        """A run begins; another one was before it if anything was logged. Megatron's first rank
        says so, and its last one writes the steps."""
        writers = [key for key, stream in self.streams.items() if stream.steps]
        for writer in (rank,) if rank in writers else tuple(writers):
            self._again(writer)

    def _again(self, rank: int | None) -> None:
        """A rank begins anew. Where it alone writes steps, all that others said is as old."""
        stream = self._stream(rank)
        stream.restart()
        if any(other.steps for other in self.streams.values()):
            self.peaks.pop(rank, None)
            return
        self.rates.clear()
        self.timers.clear()
        self.peaks.clear()
        self.whole_run = None


def combined(one: Step, other: Step) -> Step:
    """Two lines of one step: the slower of two times, else whatever one of them says."""
    found = {}
    for name in Step.__struct_fields__:
        here, there = getattr(one, name), getattr(other, name)
        known = here if there is None else there
        both = here is not None and there is not None
        if both and name in ("seconds", "timer_seconds", "stamp"):
            known = max(here, there)
        elif both and name.endswith(("_per_gpu", "_per_second")):
            known = min(here, there)
        found[name] = known
    return Step(**found)


def latest_means(one: WholeRun | None, other: WholeRun) -> WholeRun:
    """Means as the last line tells them; what only an earlier one told stays."""
    if one is None:
        return other
    told = {name: value for name, value in asdict(other).items() if value is not None}
    return replace(one, **told)


def larger_peak(one: Peak, other: Peak | None) -> Peak:
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
    peaks: dict[int | None, Peak] = {}
    arguments: dict[str, str] = {}
    for one in files:
        peaks |= {rank: larger_peak(peak, peaks.get(rank)) for rank, peak in one.peaks.items()}
        arguments |= one.arguments
    return Collector(
        streams=dict(enumerate(streams)),
        rates=[rate for one in files for rate in one.rates],
        peaks=peaks,
        arguments=arguments,
        timers=next((one.timers for one in files if one.timers), []),
        whole_run=next((one.whole_run for one in files if one.whole_run), None),
        ended=_all_ended(files),
    )


def _all_ended(files: Sequence[Collector]) -> bool:
    """Whether every rank that writes steps came to its end, or one that writes none says so for
    all (Megatron's first)."""
    writers = [one for one in files if any(stream.steps for stream in one.streams.values())]
    silent = any(one.ended for one in files if one not in writers)
    return silent or (bool(writers) and all(one.ended for one in writers))


def _with_timers(steps: list[Step], timers: list[float | None]) -> list[Step]:
    """Timers as those of steps 1, 2, 3, …; none of them where one stands for several steps, or
    where the log has fewer of them than steps: then the run goes on from a checkpoint."""
    if None in timers or (steps and steps[-1].number > len(timers)):
        return steps
    known = {step.number: step for step in steps}
    return [
        replace(known.get(number, Step(number=number)), timer_seconds=seconds)
        for number, seconds in enumerate(timers, start=1)
    ]


def _with_rates(steps: list[Step], rates: list[Throughput]) -> list[Step]:
    """Rates in their order beside the steps in theirs; the time that both write must agree. A log
    with rates alone has steps without a total."""
    if not steps:
        return [
            Step(number=number, seconds=rate.seconds, tflops_per_gpu=rate.tflops_per_gpu)
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
