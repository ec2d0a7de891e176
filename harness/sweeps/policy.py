"""What a sweep runs next, and when it ends: decided from what is predicted and what was measured.

A policy is a pure function of its History: it holds no state, so that any worker of a sweep, and a
sweep that goes on after a kill, decides alike. It knows no Optuna storage, no folder and no clock.
"""

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from harness.sweeps.history import History, Task


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


class Policy(Protocol):
    """Decides; as pure as a table."""

    def next(self, history: History) -> Action:
        """What the worker that asks does now. Never a task that is finished or running.

        Workers ask one at a time, under the lock under which the task is then claimed; a task
        that was claimed is in `history.running` of the next one who asks.
        """
