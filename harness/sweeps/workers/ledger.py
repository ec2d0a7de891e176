"""What is written into an Optuna study, and read from it: one trial for each claim of a task."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from harness.sweeps.history import Expected, Outcome, Task
from harness.sweeps.space import Point
from harness.sweeps.told import attributes, constraints, values
from harness.sweeps.workers.book import RESULT, Book, Entry, Told
from harness.sweeps.workers.claims import CLAIM, HEARTBEAT, Ticket
from harness.trial.result import TrialStatus

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import TrialState

_STATUS: Final = "status"
_WORKER: Final = "worker"


class Ledger:
    """The trials of `study`; `expected` is what is predicted of each point, `choices` the values of
    its parameters, `room_bytes` what a peak may be."""

    def __init__(
        self,
        study: "optuna.Study",
        expected: Mapping[Point, Expected],
        choices: Mapping[str, list[str | int]],
        room_bytes: int | None,
    ) -> None:
        from optuna.distributions import CategoricalDistribution

        self._study, self._expected, self._room_bytes = study, expected, room_bytes
        self._storage = study._storage
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in choices.items()
        }
        self._book = Book()

    def entries(self) -> tuple[int, list[Entry]]:
        """How many trials there are, and those of a sweep's tasks."""
        trials = self._storage.get_all_trials(self._study._study_id, deepcopy=False)
        return len(trials), self._book.read(trials)

    def claim(self, task: Task, ticket: Ticket) -> tuple[int, int]:
        """A new running trial, whole in one write; its id and number."""
        from optuna.trial import TrialState

        attrs = {CLAIM: ticket.stored()}
        return self._create(TrialState.RUNNING, task, self._described(task, ticket), attrs)

    def add(self, task: Task, told: Told) -> None:
        """A task that was finished without a trial of its own."""
        outcome = told.outcome
        state = self._state(outcome)
        attrs: dict[str, Any] = {RESULT: told.stored()}
        if not outcome.failed:
            limits = constraints(self._expected[task.point], outcome, self._room_bytes)
            attrs |= {f"constraints:{name}": value for name, value in limits.items()}
        self._create(state, task, self._described(task, None, outcome), attrs, outcome)

    def ask(self) -> tuple[int, int, Task]:
        """A new running trial whose point Optuna's sampler names; its id and number."""
        trial = self._study.ask(self._distributions)
        return trial._trial_id, trial.number, Task(Point(**trial.params))

    def sign(self, trial: int, task: Task, ticket: Ticket) -> None:
        """Claim a trial that was asked for."""
        for name, value in self._described(task, ticket).items():
            self._storage.set_trial_user_attr(trial, name, value)
        self._storage.set_trial_system_attr(trial, CLAIM, ticket.stored())

    def beat(self, trial: int, number: int) -> None:
        """Its worker lives."""
        self._storage.set_trial_system_attr(trial, HEARTBEAT, number)

    def finish(self, trial: int, task: Task, told: Told) -> None:
        """What came of a running trial. optuna's UpdateFinishedTrialError where it has ended."""
        self._storage.set_trial_system_attr(trial, RESULT, told.stored())
        self.end(trial, task, told.outcome)

    def end(self, trial: int, task: Task, outcome: Outcome) -> None:
        """The same without the outcome itself: another trial has it."""
        from optuna.trial import TrialState

        known = self._described(task, None)
        for name, value in self._described(task, None, outcome).items():
            if name not in known:
                self._storage.set_trial_user_attr(trial, name, value)
        state = self._state(outcome)
        if state is not TrialState.FAIL:
            expected = self._expected[task.point]
            for name, value in constraints(expected, outcome, self._room_bytes).items():
                self._storage.set_trial_system_attr(trial, f"constraints:{name}", value)
        numbers = values(outcome) if state is TrialState.COMPLETE else None
        self._storage.set_trial_state_values(trial, state, numbers)

    def give_up(self, trial: int, status: str) -> None:
        """End a running trial that gives nothing; one that has ended stays as it is."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self._storage.set_trial_user_attr(trial, _STATUS, status)
            self._storage.set_trial_state_values(trial, TrialState.FAIL)
        except UpdateFinishedTrialError:
            pass

    def was_told(self, trial: int) -> bool:
        """Whether its result is in it."""
        return RESULT in self._storage.get_trial(trial).system_attrs

    def _state(self, outcome: Outcome) -> "TrialState":
        from optuna.trial import TrialState

        if outcome.failed:
            return TrialState.FAIL
        pruned = outcome.status is TrialStatus.PRUNED
        return TrialState.PRUNED if pruned else TrialState.COMPLETE

    def _described(
        self, task: Task, ticket: Ticket | None, outcome: Outcome | None = None
    ) -> dict[str, Any]:
        told = attributes(task, self._expected[task.point], outcome)
        by = {} if ticket is None else {_WORKER: ticket.owner.label}
        return {**told, **by}

    def _create(
        self,
        state: "TrialState",
        task: Task,
        user_attrs: dict[str, Any],
        system_attrs: dict[str, Any],
        outcome: Outcome | None = None,
    ) -> tuple[int, int]:
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=state,
            values=values(outcome) if outcome and state is TrialState.COMPLETE else None,
            params=task.point.params(),
            distributions=self._distributions,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
        )
        made = self._storage.create_new_trial(self._study._study_id, trial)
        return made, self._storage.get_trial_number_from_id(made)
