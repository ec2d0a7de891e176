"""What a sweep knows when it decides what to run next: no Optuna, no files, no processes."""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

from harness.base.collections import known
from harness.execution.runner import FAILED, MEASURED
from harness.sweeps.space import Point, Space
from harness.trial.result import TrialResult, TrialStatus, reason
from harness.trial.trial import Prediction


class Expected(Struct, frozen=True, kw_only=True):
    """What is known of a point before it runs: its place in the advisor's order (1 first), the
    predicted step in seconds, the predicted reserved peak in bytes and the probability that it
    fits; None where the advisor does not say. skip: why it is never run; empty: it may be."""

    rank: int | None = None
    step_seconds: float | None = None
    peak_bytes: int | None = None
    fit_probability: float | None = None
    skip: str = ""


class Task(Struct, frozen=True, order=True):
    """What is run once and by one worker: one process of a point. repeat 0 is its first."""

    point: Point
    repeat: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """A finished task: median step of its slowest rank in seconds, and the largest peak of a rank
    in bytes (reserved where the device says, else allocated); None where it was not measured. name:
    of the trial. steps: seconds of each measured step. wall_seconds: how long the trial took.
    processes: how many it is of, where it stands for all repeats of a point."""

    name: str
    status: TrialStatus
    step_seconds: float | None = None
    peak_bytes: int | None = None
    reason: str = ""
    steps: tuple[float, ...] = ()
    wall_seconds: float = 0.0
    processes: int = 1

    @property
    def timed(self) -> bool:
        """Whether there is a step time, of a trial that was pruned too."""
        return self.step_seconds is not None

    @property
    def measured(self) -> bool:
        """Whether there are figures of a whole measurement."""
        return self.status in MEASURED and None not in (self.step_seconds, self.peak_bytes)

    def within(self, budget: int | None) -> bool:
        """Whether its peak is at most `budget` bytes; None: any is."""
        return budget is None or (self.peak_bytes is not None and self.peak_bytes <= budget)

    @property
    def failed(self) -> bool:
        """Whether it says nothing about the point."""
        return self.status in FAILED or (self.status in MEASURED and not self.measured)


class History(Struct, frozen=True, kw_only=True):
    """All that has happened in a sweep. finished: outcomes of each point by repeat. running: tasks
    that a living worker has claimed and not finished. spent_seconds: wall time so far."""

    finished: Mapping[Point, Mapping[int, Outcome]] = field(default_factory=dict)
    running: frozenset[Task] = frozenset()
    spent_seconds: float = 0.0


def outcome_of(result: TrialResult) -> Outcome:
    """A result as the two objectives."""
    steps = result.times.seconds if result.times else ()
    peaks = [m.allocated if m.reserved is None else m.reserved for m in result.memory]
    return Outcome(
        name=result.name,
        status=result.status,
        step_seconds=median(steps) if steps else None,
        peak_bytes=max(known(peaks), default=None),
        reason=reason(result.evidence) if result.evidence is not None else "",
        steps=steps,
        wall_seconds=result.wall_seconds,
    )


def over_repeats(outcomes: Sequence[Outcome]) -> Outcome:
    """The processes of one point as one: the median of their median steps, the largest peak, and
    the status of the first that was not measured. Those that failed count only where all did."""
    outcomes = [one for one in outcomes if not one.failed] or outcomes
    first = next((one for one in outcomes if not one.measured), outcomes[0])
    times = known(one.step_seconds for one in outcomes)
    return replace(
        first,
        step_seconds=median(times) if times else None,
        peak_bytes=max(known(one.peak_bytes for one in outcomes), default=None),
        steps=tuple(step for one in outcomes for step in one.steps),
        wall_seconds=sum(one.wall_seconds for one in outcomes),
        processes=len(outcomes),
    )


def expectations(space: Space) -> dict[Point, Expected]:
    """What is expected of every point of a space, in its order."""
    found = {}
    for point, planned in space.planned.items():
        predicted = planned.trial.prediction or Prediction()
        found[point] = Expected(
            rank=planned.rank,
            step_seconds=predicted.step_time_seconds,
            peak_bytes=predicted.peak_reserved_bytes,
            fit_probability=predicted.fit_probability,
            skip=planned.skip,
        )
    return found
