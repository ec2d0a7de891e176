"""Seconds of the logged steps, from whatever the log tells: times, rates, or time stamps."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from harness.logs.records import Step
from harness.trial.trial import world_size

LOG: Final = "log"
STAMPS: Final = "log_stamps"
TIMERS: Final = "log_timers"


class Work(Struct, frozen=True, kw_only=True):
    """What one step of a run processes; None where nobody tells."""

    tokens_per_gpu: float | None = None
    samples: int | None = None


class TimedSteps(Struct, frozen=True, kw_only=True):
    """Steps that have a time, with it. interval: steps from one line to the next, as most are;
    missing: lines that should stand between them."""

    steps: tuple[Step, ...] = ()
    seconds: tuple[float, ...] = ()
    clock: str = LOG
    interval: int = 1
    missing: int = 0


def work_of(workload: Mapping[str, Any]) -> Work:
    """Work of one step of a workload as JSON, of which parts may be missing."""
    samples, length = workload.get("global_batch_size"), workload.get("seq_length")
    if samples is None or length is None:
        return Work(samples=samples)
    return Work(samples=samples, tokens_per_gpu=samples * length / world_size(workload))


def timed_steps(steps: Sequence[Step], work: Work) -> TimedSteps:
    """Every step whose time is known. Rates become times by the work of a step; timers of a step's
    parts stand where they tell of more steps, and where there is neither the distances of time
    stamps, which hold the writing of the log too."""
    known = [(step, seconds) for step in steps if (seconds := _seconds(step, work)) is not None]
    parts = [(step, step.timer_seconds) for step in steps if step.timer_seconds is not None]
    clock = LOG
    if len(parts) > len(known):
        known, clock = parts, TIMERS
    if not known:
        known, clock = list(_by_stamps(steps)), STAMPS
    gaps = [later.number - earlier.number for (earlier, _), (later, _) in pairwise(known)]
    interval = Counter(gaps).most_common(1)[0][0] if gaps else 1
    return TimedSteps(
        steps=tuple(step for step, _ in known),
        seconds=tuple(seconds for _, seconds in known),
        clock=clock,
        interval=interval,
        missing=sum(gap // interval - 1 for gap in gaps if gap > interval),
    )


def _seconds(step: Step, work: Work) -> float | None:
    if step.seconds is not None:
        return step.seconds
    if step.tokens_per_second_per_gpu is not None and work.tokens_per_gpu is not None:
        return work.tokens_per_gpu / step.tokens_per_second_per_gpu
    if step.samples_per_second is not None and work.samples is not None:
        return work.samples / step.samples_per_second
    return None


def _by_stamps(steps: Sequence[Step]) -> Iterator[tuple[Step, float]]:
    for earlier, later in pairwise(steps):
        if earlier.stamp is not None and later.stamp is not None and later.stamp > earlier.stamp:
            yield later, (later.stamp - earlier.stamp) / (later.number - earlier.number)
