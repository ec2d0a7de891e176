"""What is written into an Optuna study, and read from it: one trial for each claim of a task."""

import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert, to_builtins

from advisor.base.units import GIB
from harness.sweeps.history import Expected, History, Outcome, Task
from harness.sweeps.space import Point
from harness.sweeps.workers.claims import CLAIM, HEARTBEAT, Ticket, ticket_of
from harness.trial.result import TrialStatus

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

RESULT: Final = "harness:result"
LOST: Final = "lost"
INTERRUPTED: Final = "interrupted"
WITHDRAWN: Final = "withdrawn"
"""Statuses without a result: the worker is gone, was asked to end, or saw another at the task."""


class Told(Struct, frozen=True, kw_only=True):
    """What came of a task, and between which seconds (since 1970) a worker was at it."""

    outcome: Outcome
    began: float
    ended: float


class Entry(Struct, frozen=True, kw_only=True):
    """One trial of a study. told: None where it is running, or gave no result."""

    id: int
    number: int
    task: Task
    running: bool
    told: Told | None = None
    ticket: Ticket | None = None
    heartbeat: Any = None


def history(entries: Iterable[Entry], ignored: frozenset[int]) -> History:
    """What the entries say, without the results of trials numbered `ignored`."""
    finished: dict[Point, dict[int, Outcome]] = {}
    running, spans = set(), []
    for entry in entries:
        if entry.running:
            running.add(entry.task)
            spans.append((entry.ticket.since if entry.ticket else time.time(), time.time()))
        elif entry.told is not None:
            spans.append((entry.told.began, entry.told.ended))
            if entry.number not in ignored:
                finished.setdefault(entry.task.point, {})[entry.task.repeat] = entry.told.outcome
    return History(
        finished=finished, running=frozenset(running), spent_seconds=covered_seconds(spans)
    )


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _entry(trial: "FrozenTrial") -> Entry | None:
    try:
        point = convert(trial.params, Point)
    except ValueError:  # a kill cut its parameters off
        return None
    system = trial.system_attrs
    stored = system.get(RESULT)
    return Entry(
        id=trial._trial_id,
        number=trial.number,
        task=Task(point, int(trial.user_attrs.get("repeat", 0))),
        running=not trial.state.is_finished(),
        told=None if stored is None else convert(stored, Told),
        ticket=ticket_of(system),
        heartbeat=system.get(HEARTBEAT),
    )


METRICS: Final = ("step time, s", "peak memory, GiB")
"""Names of the two objectives, both to be small."""
MEMORY: Final = "memory_over_budget"
RUNS: Final = "does_not_run"


def values(outcome: Outcome) -> list[float]:
    """The objectives; infinite where there are no figures."""
    if outcome.step_seconds is None or outcome.peak_bytes is None:
        return [math.inf, math.inf]
    return [outcome.step_seconds, outcome.peak_bytes / GIB]


def constraints(expected: Expected, outcome: Outcome, room_bytes: int | None) -> dict[str, float]:
    """Positive where the point is infeasible, by how much of `room_bytes` (None: there is room for
    everything): by the peak that was measured, else, where it did not run, by the one predicted."""
    peak = outcome.peak_bytes or expected.peak_bytes
    over = 0.0 if peak is None or room_bytes is None else peak / room_bytes - 1.0
    return {MEMORY: over, RUNS: 0.0 if outcome.timed else 1.0}


def predicted_attributes(task: Task, expected: Expected) -> dict[str, Any]:
    """What stands next to a trial from its begin on: seconds, bytes, a probability."""
    return _known(
        repeat=task.repeat,
        rank=expected.rank,
        predicted_step_seconds=expected.step_seconds,
        predicted_peak_bytes=expected.peak_bytes,
        predicted_fit_probability=expected.fit_probability,
    )


def measured_attributes(outcome: Outcome) -> dict[str, Any]:
    """What joins it once it has ended."""
    return _known(
        status=str(outcome.status),
        result=outcome.name,
        measured_step_seconds=outcome.step_seconds,
        measured_peak_bytes=outcome.peak_bytes,
        measured_steps=len(outcome.steps),
        wall_seconds=outcome.wall_seconds,
        reason=outcome.reason or None,
    )


def _known(**values: str | int | float | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class Ledger:
    """The trials of `study`, what is predicted, the parameters' values, what a peak may be."""

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
        self._ended: dict[int, Entry | None] = {}

    def entries(self) -> tuple[int, list[Entry]]:
        """How many trials there are, and a sweep's tasks by number; ended ones are read once."""
        trials = self._storage.get_all_trials(self._study._study_id, deepcopy=False)
        new = {one.number: _entry(one) for one in trials if one.number not in self._ended}
        ended = {one.number for one in trials if one.state.is_finished()}
        self._ended |= {number: entry for number, entry in new.items() if number in ended}
        every = (self._ended.get(one.number) or new.get(one.number) for one in trials)
        return len(trials), [entry for entry in every if entry is not None]

    def claim(self, task: Task, ticket: Ticket) -> tuple[int, int]:
        """A new running trial, whole in one write; its id and number."""
        from optuna.trial import TrialState

        attrs = {CLAIM: to_builtins(ticket)}
        return self._create(TrialState.RUNNING, task, self._claimed(task, ticket), attrs)

    def add(self, task: Task, told: Told) -> None:
        """A task that was finished without a trial of its own."""
        state, numbers, limits = self._ending(task, told.outcome)
        attributes = predicted_attributes(task, self._expected[task.point])
        attributes |= measured_attributes(told.outcome)
        self._create(state, task, attributes, {RESULT: to_builtins(told), **limits}, numbers)

    def ask(self) -> tuple[int, int, Task]:
        """A new running trial whose point Optuna's sampler names; its id and number."""
        trial = self._study.ask(self._distributions)
        return trial._trial_id, trial.number, Task(Point(**trial.params))

    def sign(self, trial: int, task: Task, ticket: Ticket) -> None:
        """Claim a trial that was asked for."""
        for name, value in self._claimed(task, ticket).items():
            self._storage.set_trial_user_attr(trial, name, value)
        self._storage.set_trial_system_attr(trial, CLAIM, to_builtins(ticket))

    def beat(self, trial: int, number: int) -> None:
        """Its worker lives."""
        self._storage.set_trial_system_attr(trial, HEARTBEAT, number)

    def finish(self, trial: int, task: Task, told: Told) -> None:
        """What came of a running trial. optuna's UpdateFinishedTrialError where it has ended."""
        self._storage.set_trial_system_attr(trial, RESULT, to_builtins(told))
        self.end(trial, task, told.outcome)

    def end(self, trial: int, task: Task, outcome: Outcome) -> None:
        """The same without the outcome itself: another trial has it."""
        state, numbers, limits = self._ending(task, outcome)
        for name, value in measured_attributes(outcome).items():
            self._storage.set_trial_user_attr(trial, name, value)
        for name, limit in limits.items():
            self._storage.set_trial_system_attr(trial, name, limit)
        self._storage.set_trial_state_values(trial, state, numbers)

    def give_up(self, trial: int, status: str) -> None:
        """End a running trial that gives nothing; one that has ended stays as it is."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self._storage.set_trial_user_attr(trial, "status", status)
            self._storage.set_trial_state_values(trial, TrialState.FAIL)
        except UpdateFinishedTrialError:
            pass

    def was_told(self, trial: int) -> bool:
        """Whether its result is in it."""
        return RESULT in self._storage.get_trial(trial).system_attrs

    def _claimed(self, task: Task, ticket: Ticket) -> dict[str, Any]:
        expected = self._expected[task.point]
        worker = f"{ticket.owner.host}:{ticket.owner.pid}"
        return predicted_attributes(task, expected) | {"worker": worker}

    def _ending(
        self, task: Task, outcome: Outcome
    ) -> "tuple[TrialState, list[float] | None, dict[str, float]]":
        """State, objectives and constraints of a trial that has ended so."""
        from optuna.trial import TrialState

        if outcome.failed:
            return TrialState.FAIL, None, {}
        limits = constraints(self._expected[task.point], outcome, self._room_bytes)
        system = {f"constraints:{name}": value for name, value in limits.items()}
        if outcome.status is TrialStatus.PRUNED:
            return TrialState.PRUNED, None, system
        return TrialState.COMPLETE, values(outcome), system

    def _create(
        self,
        state: "TrialState",
        task: Task,
        user_attrs: dict[str, Any],
        system_attrs: dict[str, Any],
        numbers: list[float] | None = None,
    ) -> tuple[int, int]:
        from optuna.trial import create_trial

        trial = create_trial(
            state=state,
            values=numbers,
            params=task.point.params(),
            distributions=self._distributions,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
        )
        made = self._storage.create_new_trial(self._study._study_id, trial)
        return made, self._storage.get_trial_number_from_id(made)
