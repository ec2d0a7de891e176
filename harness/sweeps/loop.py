"""The loop of a sweep: the policy decides, the runner runs, the study is told.

Every task is one trial with one result.json, written by whichever runner ``launcher=`` means. A
sweep that is killed and started again finds them all, tells the study what it missed, and goes on.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from harness.execution.progress import Progress
from harness.execution.runner import Runner
from harness.planner.sweep_options import SweepOptions
from harness.sweeps.history import History, Outcome, Task, outcome_of, over_repeats
from harness.sweeps.policy import Action, Ask, End, Measure, Wait
from harness.sweeps.priority import make_policy
from harness.sweeps.space import Point, Space
from harness.sweeps.study import Study
from harness.trial.files import exclusive
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.run_plan import PlannedSetting, RunPlan
from harness.trial.store import RunFolder

if TYPE_CHECKING:
    from optuna.trial import Trial

    Claims = dict[Task, Trial]

_LOCK: Final = "sweep.lock"

MakeRunner = Callable[[RunPlan, Progress, frozenset[TrialStatus]], Runner]


class SweepProgress(Progress):
    """Counts the trials of a plan that grows, and says of each only once how it ended."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._told: set[str] = set()

    def begin(self, number: int, label: str) -> None:
        """The next trial starts."""
        super().begin(len(self._told) + 1, label)

    def end(self, result: TrialResult) -> None:
        """The trial has its final result."""
        super().end(result)
        self._told.add(result.name)

    def found(self, number: int, label: str, result: TrialResult) -> None:
        """The trial was finished by an earlier run, or is one of an earlier round."""
        if result.name not in self._told:
            self._told.add(result.name)
            super().found(len(self._told), label, result)

    def collected(self, number: int, label: str, result: TrialResult) -> None:
        """The trial has its final result, and ran elsewhere."""
        if result.name not in self._told:
            self._told.add(result.name)
            super().collected(len(self._told), label, result)

    def _head(self) -> str:
        return f"trial {self._number}  {self._label}"


class Sweep(Struct, frozen=True, kw_only=True):
    """A sweep of `space` into `folder`; `plan` is its plan without settings."""

    folder: RunFolder
    plan: RunPlan
    space: Space
    options: SweepOptions
    make_runner: MakeRunner
    retry: frozenset[TrialStatus] = frozenset()
    planned: dict[Point, PlannedSetting] = field(default_factory=dict)
    finished: dict[Point, dict[int, Outcome]] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[Point, Outcome]:
        """What came of every point over its repeats, in the order in which they were chosen."""
        return {
            point: over_repeats(tuple(every.values())) for point, every in self.finished.items()
        }

    def run(self) -> End:
        """Why it ended; by then `finished` holds what came of every task.

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
            ended = self._sweep()
            self.folder.create(replace(self._plan(), ended=ended.words))
        return ended

    def _sweep(self) -> End:
        progress = SweepProgress(min(self.options.trials, len(self.space.legal)))
        policy = make_policy(self.space, self.options)
        study = Study(self.folder.path, self.space, self.options, self.folder.path.name)
        earlier = self._earlier()
        if earlier:
            self._execute(earlier, progress, self.retry)
        claims = study.restore(self.finished)
        action: Action = Wait()
        while claims or not isinstance(action, End):
            while len(claims) < self.options.batch:
                action = policy.next(self._history(claims))
                if isinstance(action, Wait | End):
                    break
                self._claim(action, study, claims)
            if claims:
                self._execute(list(claims), progress)
            for task, trial in claims.items():
                study.tell(task, trial, self.finished[task.point][task.repeat])
            claims = {}
        return action

    def _history(self, claims: "Claims") -> History:
        outcomes = (one for every in self.finished.values() for one in every.values())
        return History(
            finished=self.finished,
            running=frozenset(claims),
            spent_seconds=sum(outcome.wall_seconds for outcome in outcomes),
        )

    def _claim(self, action: Measure | Ask, study: Study, claims: "Claims") -> None:
        """Take what the sampler names, else what the policy does."""
        measure = action
        if isinstance(action, Ask):
            task, trial = study.ask()
            outcome = self.finished.get(task.point, {}).get(0)
            if outcome is None and task not in claims:
                self.planned[task.point] = self.space.planned[task.point]
                claims[task] = trial
                return
            study.tell(task, trial, outcome)
            measure = action.otherwise
        assert isinstance(measure, Measure)
        task = measure.task
        planned = self.planned.get(task.point) or self.space.planned[task.point]
        if not task.repeat:
            limited = replace(planned.trial, limit_seconds=measure.limit_seconds)
            self.planned[task.point] = replace(planned, trial=limited)
        claims[task] = study.claim(task)

    def _earlier(self) -> list[Task]:
        """What an earlier sweep of this folder finished, in its order."""
        try:
            plan = self.folder.plan()
        except UserError:
            return []
        found = []
        for setting, trial in plan.trials():
            point = self.space.point_of(setting.trial.workload)
            if point is not None and self.folder.trial(trial.name).has_result():
                found.append(Task(point, trial.repeat))
        return found

    def _execute(
        self, tasks: list[Task], progress: Progress, retry: frozenset[TrialStatus] = frozenset()
    ) -> None:
        """Results of `tasks`, run or found."""
        for task in tasks:
            planned = self.planned.get(task.point) or self.space.planned[task.point]
            repeats = max(task.repeat + 1, planned.trial.measurement.repeats)
            self.planned[task.point] = planned.repeated(repeats)
        results = self.make_runner(self._plan(), progress, retry).run()
        for point, planned in self.planned.items():
            for trial in planned.trials():
                outcome = outcome_of(results[trial.name])
                self.finished.setdefault(point, {})[trial.repeat] = outcome

    def _plan(self) -> RunPlan:
        return replace(self.plan, settings=tuple(self.planned.values()))
