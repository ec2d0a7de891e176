"""The trials of a study as a sweep reads them: whose they are, what they gave, what they spent."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert, to_builtins

from harness.sweeps.history import History, Outcome, Task
from harness.sweeps.space import Point
from harness.sweeps.workers.claims import HEARTBEAT, Ticket, ticket_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RESULT: Final = "harness:result"
REPEAT: Final = "repeat"
LOST: Final = "lost"
INTERRUPTED: Final = "interrupted"
WITHDRAWN: Final = "withdrawn"
"""Statuses of trials that gave no result: their worker is gone, was asked to end, or saw that
another has the task."""


class Told(Struct, frozen=True, kw_only=True):
    """What came of a task, and between which seconds (since 1970) a worker was at it."""

    outcome: Outcome
    began: float
    ended: float

    def stored(self) -> Any:
        """As JSON."""
        return to_builtins(self)


class Entry(Struct, frozen=True, kw_only=True):
    """One trial of a study. told: None where it is running, or gave no result."""

    id: int
    number: int
    task: Task
    running: bool
    told: Told | None = None
    ticket: Ticket | None = None
    heartbeat: Any = None


class Book:
    """Entries of all trials; those of trials that have ended are read once."""

    def __init__(self) -> None:
        self._ended: dict[int, Entry | None] = {}

    def read(self, trials: "Iterable[FrozenTrial]") -> list[Entry]:
        """In the order of their numbers; without trials that are none of a sweep's."""
        found = []
        for trial in trials:
            entry = self._ended.get(trial.number)
            if entry is None and trial.number not in self._ended:
                entry = _entry(trial)
                if trial.state.is_finished():
                    self._ended[trial.number] = entry
            if entry is not None:
                found.append(entry)
        return found


def history(entries: Iterable[Entry], ignored: frozenset[int]) -> History:
    """What the entries say, without the results of trials numbered `ignored`."""
    finished: dict[Point, dict[int, Outcome]] = {}
    running = set()
    spans = []
    for entry in entries:
        if entry.running:
            running.add(entry.task)
            spans.append((entry.ticket.since if entry.ticket else time.time(), time.time()))
        elif entry.told is not None:
            spans.append((entry.told.began, entry.told.ended))
            if entry.number not in ignored:
                repeats = finished.setdefault(entry.task.point, {})
                repeats[entry.task.repeat] = entry.told.outcome
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
    point = _point(trial.params)
    if point is None:
        return None
    system = trial.system_attrs
    stored = system.get(RESULT)
    return Entry(
        id=trial._trial_id,
        number=trial.number,
        task=Task(point, int(trial.user_attrs.get(REPEAT, 0))),
        running=not trial.state.is_finished(),
        told=None if stored is None else convert(stored, Told),
        ticket=ticket_of(system),
        heartbeat=system.get(HEARTBEAT),
    )


def _point(params: Mapping[str, Any]) -> Point | None:
    """None of a trial whose parameters a kill cut off."""
    try:
        return convert(params, Point)
    except ValueError:
        return None
