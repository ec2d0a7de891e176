"""Optuna's side of a sweep: what was asked, what came of it, what is asked next.

result.json of the trials is the source of truth; the study is made anew from it where its journal
is lost or broken. Objectives are seconds of a step and bytes of the worst rank's peak, both to be
small. A point that is illegal or runs out of memory is infeasible, which the sampler learns from;
one whose trial failed otherwise says nothing about the point.
"""

import math
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.base.errors import UserError, require
from harness.planner.sweep_options import Sampler, SweepOptions
from harness.sweeps.front import Outcome
from harness.sweeps.space import Point, Space

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

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
_MEMORY: Final = "memory_over_budget"
_RUNS: Final = "does_not_run"


class Study:
    """An Optuna study of the points of a space, in the folder of a run."""

    def __init__(self, folder: Path, space: Space, options: SweepOptions, name: str) -> None:
        _prepare()
        from optuna.distributions import BaseDistribution, CategoricalDistribution

        self._space, self._options, self._name = space, options, name
        self._choices = space.choices()
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self._choices.items()
        }
        self._study = self._open(folder)

    def restore(self, outcomes: dict[Point, Outcome]) -> "list[tuple[Point, Trial]]":
        """Tell the study what is on disk and it was not told; the points that were asked for when
        the last sweep was killed, and have no result yet."""
        from optuna.trial import TrialState

        unfinished = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            point, resumed = self._resume(trial)
            if point in outcomes:
                self.tell(resumed, outcomes[point])
            else:
                unfinished.append((point, resumed))
        ended = self._study.get_trials(states=(TrialState.COMPLETE, TrialState.FAIL))
        told = {(Point(**trial.params), trial.state is TrialState.FAIL) for trial in ended}
        for point, outcome in outcomes.items():
            if (point, outcome.failed) not in told:
                self._study.add_trial(self._frozen(point, outcome))
        return unfinished

    def _resume(self, frozen: "FrozenTrial") -> "tuple[Point, Trial]":
        """A trial that was asked for, with those of its parameters that a kill cut off."""
        from optuna.trial import Trial

        trial = Trial(self._study, frozen._trial_id)
        for name, values in self._choices.items():
            trial.suggest_categorical(name, values)
        return Point(**trial.params), trial

    def enqueue(self, points: Sequence[Point]) -> None:
        """Points to be asked for next, unless they have been before."""
        for point in points:
            self._study.enqueue_trial(point.params(), skip_if_exists=True)

    def ask(self) -> "tuple[Point, Trial]":
        """The next point, with the trial to tell."""
        trial = self._study.ask(self._distributions)
        return Point(**trial.params), trial

    def tell(self, trial: "Trial", outcome: Outcome) -> None:
        """What came of it."""
        trial.set_user_attr("status", str(outcome.status))
        trial.set_user_attr("result", outcome.name)
        if outcome.failed:
            self._fail(trial)
            return
        for name, value in self._constraints(outcome).items():
            trial.set_constraint(name, value)
        self._tell(trial, _values(outcome))

    def _fail(self, trial: "Trial | int") -> None:
        from optuna.trial import TrialState

        self._tell(trial, None, TrialState.FAIL)

    def _tell(self, trial: "Trial | int", values: list[float] | None, state: Any = None) -> None:
        try:
            self._study.tell(trial, values, state)
        except RuntimeError as error:
            # BruteForceSampler, when no point is left, stops a Study.optimize that is not there;
            # the trial is stored by then.
            if "Study.stop" not in str(error):
                raise

    def _constraints(self, outcome: Outcome) -> dict[str, float]:
        """Positive where the point is infeasible, by how much."""
        budget = self._options.budget_bytes()
        over = 0.0
        if budget is not None and outcome.peak_bytes is not None:
            over = outcome.peak_bytes / budget - 1.0
        return {_MEMORY: over, _RUNS: 0.0 if outcome.measured else 1.0}

    def _frozen(self, point: Point, outcome: Outcome) -> "FrozenTrial":
        from optuna.trial import TrialState, create_trial

        state = TrialState.FAIL if outcome.failed else TrialState.COMPLETE
        constraints = {} if outcome.failed else self._constraints(outcome)
        return create_trial(
            state=state,
            values=None if outcome.failed else _values(outcome),
            params=point.params(),
            distributions=self._distributions,
            user_attrs={"status": str(outcome.status), "result": outcome.name},
            system_attrs={f"constraints:{key}": value for key, value in constraints.items()},
        )

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
        if kind is Sampler.AUTO:
            few = len(self._space.planned) <= self._options.trials
            kind = Sampler.BRUTE_FORCE if few else Sampler.TPE
        if kind is Sampler.TPE:
            return samplers.TPESampler(
                seed=seed, n_startup_trials=max(1, self._options.first), multivariate=True
            )
        if kind is Sampler.NSGA2:
            return samplers.NSGAIISampler(seed=seed, population_size=max(2, self._options.first))
        if kind is Sampler.RANDOM:
            return samplers.RandomSampler(seed=seed)
        return samplers.BruteForceSampler(seed=seed)


def _values(outcome: Outcome) -> list[float]:
    if not outcome.measured:
        return [math.inf, math.inf]
    assert outcome.step_seconds is not None
    assert outcome.peak_bytes is not None
    return [outcome.step_seconds, float(outcome.peak_bytes)]


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
