"""What a sweep runs next, and when it ends: decided from what is predicted and what was measured. A
policy is a pure function of its History: it holds no state, so that any worker of a sweep, and a
sweep that goes on after a kill, decides alike. It knows no Optuna storage, no folder and no clock.

The policy of `harness sweep` is: the advisor's best first, then where measuring promises most, then
repeats while leaders overlap; and the end.

A sweep is settled when the probability that any other point is more than 1 % faster than the leader
is below 5 %: half of that is left to points that were measured (Standing), half to those that were
not (prior.py), summed over the points, which bounds it (Bonferroni). That is the probability of
good selection as a stopping rule (Branke, Chick and Schmidt 2007, "Selecting a selection
procedure", Management Science 53).

A point's time is the median over its processes of each one's median step: steps of one process are
correlated, so a process counts once (harness.judge.stats). How much processes differ is pooled over
all points of the sweep, together with what is assumed before any was repeated, which counts as
_ASSUMED_FREEDOM degrees of freedom (a scaled inverse chi-squared prior; Gelman et al. 2013,
Bayesian Data Analysis, section 2.6). A mean is then Student-t distributed around the truth."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from statistics import median
from typing import Final

from msgspec import Struct

from advisor.base.errors import require
from advisor.base.units import percent
from harness.judge.metrics import TIME_NOISE
from harness.judge.stats import Seen, centre, log_medians, multiplier, step_noise
from harness.planner.launcher_options import Sampler, SweepOptions
from harness.sweeps.history import Expected, History, Outcome, Task, expectations
from harness.sweeps.prior import SECONDS, Observed, beliefs, fit_chances
from harness.sweeps.space import Point, Space
from harness.trial.result import TrialStatus

_ASSUMED_FREEDOM: Final = 4
_PRUNING_LEVEL: Final = 0.90
"""Two-sided; a trial is pruned above the upper end of the leader's interval: one-sided 95 %."""


class Standing:
    """The timed points of a history. Those that were measured to the end, with a peak within
    `budget` bytes (None: any), may lead; the others tell how far predictions are off.
    assumed_noise: relative standard deviation between processes before any was repeated."""

    def __init__(self, history: History, budget: int | None, assumed_noise: float) -> None:
        self._assumed = assumed_noise
        timed = {
            point: [outcome.steps for outcome in outcomes.values() if outcome.steps]
            for point, outcomes in history.finished.items()
        }
        self._timed = {point: steps for point, steps in timed.items() if steps}
        self._eligible = {p for p in self._timed if _may_lead(history.finished[p], budget)}

    @cached_property
    def seconds(self) -> dict[Point, float]:
        """Step in seconds of every point that may lead, the fastest first."""
        found = {p: centre(steps) for p, steps in self._timed.items() if p in self._eligible}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def leader(self) -> Point | None:
        """The fastest; None where nothing was measured."""
        return next(iter(self.seconds), None)

    def processes(self, point: Point) -> int:
        """How many processes timed a point."""
        return len(self._timed.get(point, ()))

    @cached_property
    def _pooled(self) -> tuple[float, float]:
        """Relative standard deviation between processes, and its degrees of freedom."""
        sides = tuple(self._timed.values())
        if not sides:
            return self._assumed, _ASSUMED_FREEDOM
        assumed = max(self._assumed, median(map(step_noise, sides)))
        seen = Seen.pooled(map(log_medians, sides))
        squares, total = seen.freedom * seen.variance, _ASSUMED_FREEDOM + seen.freedom
        return math.sqrt((_ASSUMED_FREEDOM * assumed**2 + squares) / total), total

    @property
    def noise(self) -> float:
        """Relative standard deviation between processes."""
        return self._pooled[0]

    def observed(self) -> dict[Point, Observed]:
        """All times with the variance of each."""
        return {
            point: Observed(math.log(centre(steps)), self.noise**2 / len(steps))
            for point, steps in self._timed.items()
        }

    def faster(self, point: Point, margin: float) -> float:
        """Probability that a measured `point` is more than `margin` faster than the leader."""
        assert self.leader is not None
        gap = math.log(self.seconds[point] / self.seconds[self.leader]) + margin
        processes = self.processes(point), self.processes(self.leader)
        error = self.noise * math.sqrt(sum(1 / count for count in processes))
        special = require("scipy.special", "harness sweep", "harness")
        return float(special.stdtr(self._pooled[1], -gap / error))  # Student's t above the gap

    def rivals(self, margin: float, level: float) -> list[Point]:
        """The likeliest to be more than `margin` faster than the leader, as many as must be looked
        at until the others are so with a probability below 1 - level, all together."""
        others = [point for point in self.seconds if point != self.leader]
        chances = sorted(((self.faster(p, margin), p.label, p) for p in others), reverse=True)
        left = sum(chance for chance, _, _ in chances)
        found = []
        for chance, _, point in chances:
            if left <= 1 - level:
                break
            found.append(point)
            left -= chance
        return found

    @property
    def tied(self) -> tuple[Point, ...]:
        """The leader and the points that may be faster, within the noise; or none."""
        others = self.rivals(0.0, _HALF)
        return (self.leader, *others) if self.leader and others else ()

    @property
    def limit_seconds(self) -> float | None:
        """A process whose median step is above this is slower than the leader with 95 %
        confidence: both have noise. None where nothing was measured."""
        if self.leader is None:
            return None
        width = multiplier(_PRUNING_LEVEL, self._pooled[1]) * self.noise
        wider = width * math.sqrt(1 + 1 / self.processes(self.leader))
        return self.seconds[self.leader] * math.exp(wider)


def _may_lead(outcomes: Mapping[int, Outcome], budget: int | None) -> bool:
    """Whether a point was measured, and every process that says something ran within the budget."""
    ended = [outcome for outcome in outcomes.values() if not outcome.failed]
    return bool(ended) and all(outcome.measured and outcome.within(budget) for outcome in ended)


class Ending(StrEnum):
    """Which rule ended a sweep."""

    SETTLED = "settled"
    TIED = "tied"
    """Several may be the fastest, and each of them was repeated as often as it may be."""
    TRIALS = "trials"
    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    """No point that may run is left, and none was measured."""


class Measure(Struct, frozen=True, kw_only=True):
    """Run this task. limit_seconds: a running median step that is clearly larger ends it early
    (status pruned); None: it is not pruned."""

    task: Task
    limit_seconds: float | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """The sampler that the user chose (sweep.sampler=tpe, …) is to name a point for the first time;
    where it names one that is finished or running, `otherwise` is run."""

    otherwise: Measure


class Wait(Struct, frozen=True):
    """Nothing is worth running before one of the running tasks has ended."""


class End(Struct, frozen=True, kw_only=True):
    """The sweep is over; words: a whole sentence that says why. tied: as in Standing."""

    why: Ending
    words: str
    tied: tuple[Point, ...] = ()


Action = Measure | Ask | Wait | End


MARGIN: Final = 0.01
"""Faster by less than this is as fast."""
LEVEL: Final = 0.95
_HALF: Final = (1 + LEVEL) / 2


def make_policy(space: Space, options: SweepOptions) -> "PriorPolicy":
    """The policy of a sweep."""
    return PriorPolicy(
        expectations(space),
        options,
        memory_bytes=space.budget_bytes,
        room_bytes=space.room_bytes,
        assumed_noise=TIME_NOISE[space.device],
    )


class PriorPolicy:
    """Decides for the points of `expected`, in the advisor's order. memory_bytes: points with a
    larger peak cannot lead. room_bytes: what the probability to fit is of. assumed_noise: relative
    standard deviation of a step time between processes, until repeats show it."""

    def __init__(
        self,
        expected: Mapping[Point, Expected],
        options: SweepOptions,
        *,
        memory_bytes: int | None = None,
        room_bytes: int | None = None,
        assumed_noise: float = 0.01,
    ) -> None:
        self._expected = {point: one for point, one in expected.items() if not one.skip}
        self._options, self._memory_bytes = options, memory_bytes
        self._room_bytes, self._assumed_noise = room_bytes, assumed_noise

    def next(self, history: History) -> Action:
        """What the worker that asks does now. Never a task that is finished or running. Workers ask
        one at a time, under the lock under which the task is then claimed; a task that was claimed
        is in `history.running` of the next one who asks."""
        budget = self._options.budget_seconds()
        standing = Standing(history, self._memory_bytes, self._assumed_noise)
        ahead = self._ahead(history, standing)
        if budget is not None and history.spent_seconds >= budget:
            words = f"The sweep.budget is used up. {_unsettled(ahead, standing, '--budget')}"
            return End(why=Ending.BUDGET, words=words.rstrip(), tied=standing.tied)
        if ahead and len(self._begun(history)) < self._options.trials:
            return self._first_time(ahead, history, standing)
        return self._repeat(history, standing) or self._end(ahead, history, standing)

    def _ahead(self, history: History, standing: Standing) -> list[Point]:
        """Points that are worth running for the first time, the most promising first."""
        begun = self._begun(history)
        left = [point for point in self._expected if point not in begun]
        if len(begun) < self._options.first or self._options.sampler is not Sampler.PRIOR:
            return left
        chances = fit_chances(self._expected, history, self._room_bytes)
        if standing.leader is None:
            return sorted(left, key=lambda point: chances[point] <= 0)
        believed = beliefs(
            {point: one.step_seconds for point, one in self._expected.items()},
            standing.observed(),
            SECONDS,
        )
        bound = math.log(standing.seconds[standing.leader])
        if sum(believed[p].below(bound - MARGIN) * chances[p] for p in left) <= 1 - _HALF:
            return []
        return sorted(left, key=lambda p: -believed[p].improvement(bound) * chances[p])

    def _begun(self, history: History) -> set[Point]:
        """Points that may run and have a result or are running."""
        begun = set(history.finished) | {task.point for task in history.running}
        return begun.intersection(self._expected)

    def _first_time(self, ahead: list[Point], history: History, standing: Standing) -> Action:
        limit = standing.limit_seconds if self._options.prune else None
        best = Measure(task=Task(ahead[0]), limit_seconds=limit)
        in_head = len(self._begun(history)) < self._options.first
        return best if in_head or self._options.sampler is Sampler.PRIOR else Ask(otherwise=best)

    def _repeat(self, history: History, standing: Standing) -> Action | None:
        """One more process of the leader or of a point that overlaps with it, whichever has had
        fewest; None where none overlaps, or all have had as many as they may."""
        rivals = standing.rivals(MARGIN, _HALF)
        if standing.leader is None or not rivals:
            return None
        running = {task.point for task in history.running}
        had = {p: len(history.finished[p]) for p in (standing.leader, *rivals)}
        open_ = [p for p, count in had.items() if count < self._options.repeats]
        free = [point for point in open_ if point not in running]
        if free:
            point = min(free, key=had.__getitem__)
            return Measure(task=Task(point, max(history.finished[point]) + 1))
        return Wait() if open_ else None

    def _end(self, ahead: list[Point], history: History, standing: Standing) -> Action:
        if history.running:
            return Wait()
        left = f" Points not yet measured: {len(ahead)}." if ahead else ""
        leader = standing.leader
        if leader is None and not ahead:
            return End(why=Ending.EXHAUSTED, words="No point was measured.")
        tied = standing.tied
        if leader and standing.rivals(MARGIN, _HALF):
            after = f"After sweep.repeats = {self._options.repeats}"
            words = f"{after} {leader.label} leads, {_tie(standing)}: take any of them.{left}"
            return End(why=Ending.TIED, words=words, tied=tied)
        if leader is None or ahead:
            spent = f"All sweep.trials = {self._options.trials} have run."
            words = f"{spent} {_unsettled(ahead, standing, 'sweep.trials')}"
            return End(why=Ending.TRIALS, words=words, tied=tied)
        unstable = any(
            one.status is TrialStatus.UNSTABLE for one in history.finished[leader].values()
        )
        words = (
            f"{leader.label} leads: the probability that any other point is more than "
            f"{percent(MARGIN)} faster is below "
            f"{percent(1 - LEVEL)}{' (the times of the leader are unstable)' if unstable else ''}."
        )
        words += f" It is {_tie(standing)}." if tied else ""
        return End(why=Ending.SETTLED, words=words, tied=tied)


def _unsettled(ahead: Sequence[Point], standing: Standing, limit: str) -> str:
    """What is open where a limit ends a sweep, and how it goes on; where nothing is, the tie."""
    leader = standing.leader
    if leader and not (ahead or standing.rivals(MARGIN, _HALF)):
        return f"{leader.label} leads, {_tie(standing)}." if standing.tied else ""
    leads = f"{leader.label} leads so far" if leader else "no point was measured"
    equal = f", {_tie(standing)}" if standing.tied else ""
    left = f" Points not yet measured: {len(ahead)}." if ahead else ""
    on = f"The same command with a larger {limit} goes on from here."
    return f"Nothing is settled: {leads}{equal}.{left} {on}"


def _tie(standing: Standing) -> str:
    """Which points the leader is tied with, and how large the noise is."""
    names = ", ".join(point.label for point in standing.tied[1:])
    return f"tied within the noise ({100 * standing.noise:.2g} % between processes) with {names}"
