"""The loop of a sweep: ask for points, run them as trials of one growing plan, tell.

Every point is one trial with one result.json, written by whichever runner ``launcher=`` means. A
sweep that is killed and started again finds them all, tells the study what it missed, and goes on.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from advisor.base.errors import UserError
from harness.execution.progress import Progress
from harness.execution.runner import Runner
from harness.planner.sweep_options import SweepOptions
from harness.sweeps.front import Outcome, outcome_of
from harness.sweeps.space import Point, Space
from harness.sweeps.study import Study
from harness.trial.files import exclusive
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.run_plan import PlannedSetting, RunPlan
from harness.trial.store import RunFolder

_LOCK: Final = "sweep.lock"

MakeRunner = Callable[[RunPlan, Progress, frozenset[TrialStatus]], Runner]


class SweepProgress(Progress):
    """Says of a trial only once that it was found."""

    _told = 0

    def found(self, number: int, label: str, result: TrialResult) -> None:
        """The trial was finished by an earlier run, or is one of an earlier round."""
        if number > self._told:
            super().found(number, label, result)
            self._told = number

    def end(self, result: TrialResult) -> None:
        """The trial has its final result."""
        super().end(result)
        self._told = max(self._told, self._number)

    def collected(self, number: int, label: str, result: TrialResult) -> None:
        """The trial has its final result, and ran elsewhere."""
        super().collected(number, label, result)
        self._told = max(self._told, number)


class Sweep(Struct, frozen=True, kw_only=True):
    """A sweep of `space` into `folder`; `plan` is its plan without settings."""

    folder: RunFolder
    plan: RunPlan
    space: Space
    options: SweepOptions
    make_runner: MakeRunner
    retry: frozenset[TrialStatus] = frozenset()
    planned: dict[Point, PlannedSetting] = field(default_factory=dict)
    outcomes: dict[Point, Outcome] = field(default_factory=dict)

    def run(self) -> dict[Point, Outcome]:
        """What came of every point, in the order in which they were chosen.

        Raises as Runner.run does; UserError where another sweep is at work in the folder.
        """
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder.path / _LOCK) as alone:
            if not alone:
                raise UserError(
                    "name",
                    self.folder.path.name,
                    "another sweep is at work there",
                    "wait for it, or give name=ANOTHER",
                )
            self._sweep()
        return self.outcomes

    def _sweep(self) -> None:
        wanted = min(self.options.trials, len(self.space.planned))
        progress = SweepProgress(wanted)
        study = Study(self.folder.path, self.space, self.options, self.folder.path.name)
        earlier = self._earlier()
        if earlier:
            self._execute(earlier, progress, self.retry)
        unfinished = study.restore(self.outcomes)
        study.enqueue(self.space.best(min(self.options.first, wanted)))
        while len(self.outcomes) < wanted:
            room = wanted - len(self.outcomes)
            asked = unfinished or [study.ask() for _ in range(min(self.options.batch, room))]
            unfinished = []
            new = [point for point, _ in asked if point not in self.outcomes]
            if not new:
                # the sampler repeats itself: the advisor's best of the rest
                study.enqueue([p for p in self.space.planned if p not in self.outcomes][:1])
            else:
                self._execute(new, progress)
            for point, trial in asked:
                study.tell(trial, self.outcomes[point])

    def _earlier(self) -> list[Point]:
        """Points of an earlier sweep of this folder that have results, in its order."""
        try:
            plan = self.folder.plan()
        except UserError:
            return []
        found = []
        for setting in plan.settings:
            point = self.space.point_of(setting.trial.workload)
            if point is not None and self.folder.trial(setting.trial.name).has_result():
                found.append(point)
        return found

    def _execute(
        self, points: list[Point], progress: Progress, retry: frozenset[TrialStatus] = frozenset()
    ) -> None:
        """Results of `points`, run or found."""
        self.planned.update({point: self.space.planned[point] for point in points})
        plan = RunPlan(
            experiment=self.plan.experiment,
            device_name=self.plan.device_name,
            settings=tuple(self.planned.values()),
            assumptions=self.plan.assumptions,
        )
        results = self.make_runner(plan, progress, retry).run()
        for point, planned in self.planned.items():
            self.outcomes[point] = outcome_of(results[planned.trial.name])
