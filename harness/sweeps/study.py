"""Optuna's side of a sweep: what was asked, what came of it, what is asked next.

result.json of the trials is the source of truth; the study is made anew from it where its journal
is lost or broken. Objectives are seconds of a step and bytes of the worst rank's peak, both to be
small. A point that is illegal or runs out of memory is infeasible, which the sampler learns from;
one whose trial failed otherwise says nothing about the point.
"""

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.base.errors import UserError, require
from harness.planner.sweep_options import Sampler, SweepOptions
from harness.sweeps.history import Outcome, Task, expectations
from harness.sweeps.space import Point, Space
from harness.sweeps.told import METRICS, attributes, constraints, values

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial, TrialState

_JOURNAL: Final = "optuna.journal"
_BROKEN: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)
"""What Optuna raises on a journal whose lines are not those that it wrote."""
_REPEAT: Final = "repeat"


class Study:
    """An Optuna study of the points of a space, in the folder of a run."""

    def __init__(self, folder: Path, space: Space, options: SweepOptions, name: str) -> None:
        _prepare()
        from optuna.distributions import BaseDistribution, CategoricalDistribution

        self._space, self._options, self._name = space, options, name
        self._choices = space.choices()
        self._expected = expectations(space)
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self._choices.items()
        }
        self._study = self._open(folder)

    def restore(self, finished: Mapping[Point, Mapping[int, Outcome]]) -> "dict[Task, Trial]":
        """Tell the study what is on disk and it was not told; what was asked for when the last
        sweep was killed, and has no result yet."""
        from optuna.trial import TrialState

        unfinished = {}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            task, resumed = self._resume(trial)
            outcome = finished.get(task.point, {}).get(task.repeat)
            if outcome is not None:
                self.tell(task, resumed, outcome)
            else:
                unfinished[task] = resumed
        ended = self._study.get_trials(
            states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        )
        told = {(_task(trial), trial.state is TrialState.FAIL) for trial in ended}
        for point, outcomes in finished.items():
            for repeat, outcome in outcomes.items():
                task = Task(point, repeat)
                if (task, outcome.failed) not in told:
                    self.tell(task, self.claim(task), outcome)
        return unfinished

    def _resume(self, frozen: "FrozenTrial") -> "tuple[Task, Trial]":
        """A trial that was asked for, with those of its parameters that a kill cut off."""
        from optuna.trial import Trial

        trial = Trial(self._study, frozen._trial_id)
        for name, choices in self._choices.items():
            trial.suggest_categorical(name, choices)
        return _task(trial), trial

    def claim(self, task: Task) -> "Trial":
        """A trial of the study for `task`."""
        self._study.enqueue_trial(task.point.params(), user_attrs={_REPEAT: task.repeat})
        while True:
            claimed, trial = self.ask()
            if claimed == task:
                return trial
            self._study.tell(trial, state=_fail())  # enqueued, and cut off by a kill

    def ask(self) -> "tuple[Task, Trial]":
        """The next point by the sampler, with the trial to tell."""
        trial = self._study.ask(self._distributions)
        task = _task(trial)
        for name, value in attributes(task, self._expected[task.point]).items():
            trial.set_user_attr(name, value)
        return task, trial

    def tell(self, task: Task, trial: "Trial", outcome: Outcome | None) -> None:
        """What came of it; None: nothing, it is run elsewhere."""
        if outcome is None:
            self._tell(trial, None, _fail())
            return
        expected = self._expected[task.point]
        for name, value in attributes(task, expected, outcome).items():
            trial.set_user_attr(name, value)
        if outcome.failed:
            self._tell(trial, None, _fail())
            return
        for name, over in constraints(expected, outcome, self._space.room_bytes).items():
            trial.set_constraint(name, over)
        self._tell(trial, values(outcome))

    def _tell(self, trial: "Trial | int", values: list[float] | None, state: Any = None) -> None:
        try:
            self._study.tell(trial, values, state)
        except RuntimeError as error:
            # BruteForceSampler, when no point is left, stops a Study.optimize that is not there;
            # the trial is stored by then.
            if "Study.stop" not in str(error):
                raise

    def _open(self, folder: Path) -> "optuna.Study":
        if self._options.storage:
            return self._given(self._options.storage)
        journal = folder / _JOURNAL
        _mend(journal)
        try:
            return self._load(self._journal(journal))
        except _BROKEN as error:
            if isinstance(error, UserError):
                raise
            os.replace(journal, journal.with_suffix(".broken"))
            return self._load(self._journal(journal))

    def _given(self, storage: str) -> "optuna.Study":
        """The study in a storage that the user names."""
        from optuna.exceptions import OptunaError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return self._load(storage)
        except (SQLAlchemyError, OptunaError, ImportError) as error:
            reason = str(error).split("\n")[0]
            raise UserError(
                "sweep.storage",
                storage,
                f"cannot be opened: {reason}",
                "write e.g. sqlite:///sweep.db",
            ) from None

    def _journal(self, path: Path) -> "BaseStorage":
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        lock = JournalFileOpenLock(str(path))
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))

    def _load(self, storage: Any) -> "optuna.Study":
        import optuna

        study = optuna.create_study(
            study_name=self._name,
            storage=storage,
            sampler=self._sampler(),
            directions=["minimize", "minimize"],
            load_if_exists=True,
        )
        known = study.user_attrs.get("choices")
        if known is None:
            study.set_user_attr("choices", self._choices)
            study.set_metric_names(list(METRICS))
        elif known != self._choices:
            raise UserError(
                "name",
                "(the folder)",
                "holds a sweep of another space",
                "give name=ANOTHER, or ask for the same space",
            )
        return study

    def _sampler(self) -> "BaseSampler":
        from optuna import samplers

        seed, kind = self._options.seed, self._options.sampler
        if kind is Sampler.TPE:
            return samplers.TPESampler(
                seed=seed, n_startup_trials=max(1, self._options.first), multivariate=True
            )
        if kind is Sampler.NSGA2:
            return samplers.NSGAIISampler(seed=seed, population_size=max(2, self._options.first))
        if kind is Sampler.BRUTE_FORCE:
            return samplers.BruteForceSampler(seed=seed)
        return samplers.RandomSampler(seed=seed)


def _task(trial: "Trial | FrozenTrial") -> Task:
    return Task(Point(**trial.params), int(trial.user_attrs.get(_REPEAT, 0)))


def _fail() -> "TrialState":
    from optuna.trial import TrialState

    return TrialState.FAIL


def _mend(journal: Path) -> None:
    """Undo what a kill in the middle of a write leaves: half a line, and a lock. We are alone."""
    for lock in journal.parent.glob(f"{journal.name}.lock*"):
        lock.unlink(missing_ok=True)
    with suppress(OSError), open(journal, "r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def _prepare() -> None:
    """Optuna, without its talk; UserError where it is not installed."""
    optuna = require("optuna", "harness sweep", "harness,sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    # a sweep that was killed between a constraint and the values sets it again
    warnings.filterwarnings("ignore", message="The constraint value is ignored")
