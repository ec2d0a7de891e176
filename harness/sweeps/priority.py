"""What a sweep runs next, and when it ends: decided from what is predicted and what was measured.

A policy is a pure function of its History: it holds no state, so that any worker of a sweep, and a
sweep that goes on after a kill, decides alike. It knows no Optuna storage, no folder and no clock.

The policy of `harness sweep` is: the advisor's best first, then where measuring promises most, then
repeats while leaders overlap; and the end.

A sweep is settled when the probability that any other point is more than 1 % faster than the leader
is below 5 %: half of that is left to points that were measured (leader.py), half to those that were
not (prior.py), summed over the points, which bounds it (Bonferroni). That is the probability of
good selection as a stopping rule (Branke, Chick and Schmidt 2007, "Selecting a selection
procedure", Management Science 53).
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.units import percent
from harness.judge.metrics import TIME_NOISE
from harness.planner.launcher_options import Sampler, SweepOptions
from harness.sweeps.history import Expected, History, Task, expectations
from harness.sweeps.leader import Standing
from harness.sweeps.prior import SECONDS, beliefs, fit_chances
from harness.sweeps.space import Point, Space
from harness.trial.result import TrialStatus


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
    """Run this task. limit_seconds: its trial ends early (status pruned) once its running median
    step is clearly above that; None: it is not pruned."""

    task: Task
    limit_seconds: float | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """The sampler that the user chose (sweep.sampler=tpe, …) is to name a point for the first time;
    where it names one that is finished or running, `otherwise` is run."""

    otherwise: Measure


class Wait(Struct, frozen=True):
    """Nothing is worth running before one of the running tasks has ended."""


class End(Struct, frozen=True, kw_only=True):
    """The sweep is over; words: a whole sentence that says why."""

    why: Ending
    words: str


Action = Measure | Ask | Wait | End


MARGIN: Final = 0.01
"""Faster by less than this is as fast."""
LEVEL: Final = 0.95
_HALF: Final = (1 + LEVEL) / 2


class Rules(Struct, frozen=True, kw_only=True):
    """What the user asked for: see SweepOptions. memory_bytes: points with a larger peak cannot
    lead. room_bytes: what the advisor's probability to fit is of. assumed_noise: relative standard
    deviation of a step time between processes, until repeats show it."""

    trials: int
    first: int
    repeats: int
    sampler: Sampler = Sampler.PRIOR
    prune: bool = True
    budget_seconds: float | None = None
    memory_bytes: int | None = None
    room_bytes: int | None = None
    assumed_noise: float = 0.01


def make_policy(space: Space, options: SweepOptions) -> "PriorPolicy":
    """The policy of a sweep."""
    rules = Rules(
        trials=options.trials,
        first=options.first,
        repeats=options.repeats,
        sampler=options.sampler,
        prune=options.prune,
        budget_seconds=options.budget_seconds(),
        memory_bytes=space.budget_bytes,
        room_bytes=space.room_bytes,
        assumed_noise=TIME_NOISE[space.device],
    )
    return PriorPolicy(expectations(space), rules)


class PriorPolicy:
    """Decides for the points of `expected`, which are in the advisor's order."""

    def __init__(self, expected: Mapping[Point, Expected], rules: Rules) -> None:
        self._expected = {point: one for point, one in expected.items() if not one.skip}
        self._rules = rules

    def next(self, history: History) -> Action:
        """What the worker that asks does now. Never a task that is finished or running.

        Workers ask one at a time, under the lock under which the task is then claimed; a task
        that was claimed is in `history.running` of the next one who asks.
        """
        rules = self._rules
        if rules.budget_seconds is not None and history.spent_seconds >= rules.budget_seconds:
            return End(why=Ending.BUDGET, words="The sweep.budget is used up.")
        standing = Standing(history, rules.memory_bytes, rules.assumed_noise)
        ahead = self._ahead(history, standing)
        if ahead and len(self._begun(history)) < rules.trials:
            return self._first_time(ahead, history, standing)
        return self._repeat(history, standing) or self._end(ahead, history, standing)

    def _ahead(self, history: History, standing: Standing) -> list[Point]:
        """Points that are worth running for the first time, the most promising first."""
        begun = self._begun(history)
        left = [point for point in self._expected if point not in begun]
        if len(begun) < self._rules.first or self._rules.sampler is not Sampler.PRIOR:
            return left
        chances = fit_chances(self._expected, history, self._rules.room_bytes)
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
        limit = standing.limit_seconds if self._rules.prune else None
        best = Measure(task=Task(ahead[0]), limit_seconds=limit)
        in_head = len(self._begun(history)) < self._rules.first
        return best if in_head or self._rules.sampler is Sampler.PRIOR else Ask(otherwise=best)

    def _repeat(self, history: History, standing: Standing) -> Action | None:
        """One more process of the leader or of a point that overlaps with it, whichever has had
        fewest; None where none overlaps, or all have had as many as they may."""
        rivals = standing.rivals(MARGIN, _HALF)
        if standing.leader is None or not rivals:
            return None
        running = {task.point for task in history.running}
        had = {p: len(history.finished[p]) for p in (standing.leader, *rivals)}
        open_ = [p for p, count in had.items() if count < self._rules.repeats]
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
        if leader is None:
            why = Ending.TRIALS if ahead else Ending.EXHAUSTED
            return End(why=why, words=f"No point was measured.{left}")
        rivals = standing.rivals(MARGIN, _HALF)
        if rivals:
            names = ", ".join(point.label for point in (leader, *rivals))
            after = f"After sweep.repeats = {self._rules.repeats}"
            words = f"{after} these may be equally fast: {names}.{left}"
            return End(why=Ending.TIED, words=words)
        if ahead:
            words = f"All sweep.trials = {self._rules.trials} have run.{left}"
            return End(why=Ending.TRIALS, words=words)
        unstable = any(
            one.status is TrialStatus.UNSTABLE for one in history.finished[leader].values()
        )
        words = (
            f"{leader.label} leads: the probability that any other point is more than "
            f"{percent(MARGIN)} faster is below "
            f"{percent(1 - LEVEL)}{' (the times of the leader are unstable)' if unstable else ''}."
        )
        return End(why=Ending.SETTLED, words=words)
