"""A case of a probe: what is predicted before anything runs, and what is measured."""

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from harness.measure.fingerprint import fingerprint
from harness.trial.failures import causes_of, of_exception
from harness.trial.files import write_atomic
from harness.trial.result import TrialStatus
from harness.trial.trial import Device

_LONGEST: Final = 3000
Figures = Mapping[str, Any]
"""What JSON holds, by name; the unit is in the name: seconds, bytes, count."""


class Status(StrEnum):
    """How a case ended. `ok` and `oom` are answers; what failed is tried again."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"

    @property
    def answers(self) -> bool:
        """Whether it says something about the case."""
        return self is not Status.FAILED


class Case(Struct, frozen=True, kw_only=True):
    """predict: what the advisor says, under the names that `measure` uses; it runs first, without
    the GPU. measure: in a fresh process; UserError where this machine lacks what it needs. seconds:
    of measuring, after which the process is ended. variables: of its environment. timed: no other
    process may start next to it; where False the next case imports and predicts meanwhile."""

    name: str
    why: str
    predict: Callable[[], Figures]
    measure: Callable[[], Figures]
    seconds: float = 90.0
    variables: Mapping[str, str] = {}
    timed: bool = True


def answer(case: Case, device: Device, turn: Callable[[], object] = bool) -> dict[str, Any]:
    """The case's record; what it raises is in it. The prediction is there however it ends. turn:
    returns when the GPU is this process's."""
    started, began = datetime.now(UTC), time.monotonic()
    record: dict[str, Any] = {
        "case": case.name,
        "why": case.why,
        "started_at": started.isoformat(timespec="seconds"),
    }
    try:
        record["predicted"] = dict(case.predict())
        turn()
        record["measured"] = dict(case.measure())
        status = Status.OK
    except Exception as error:
        status = Status.OOM if _ran_out(error) else Status.FAILED
        record["causes"], record["reason"] = causes(error), traceback.format_exc()[-_LONGEST:]
    record |= {
        "status": status.value,
        "wall_seconds": round(time.monotonic() - began, 1),
        "environment": fingerprint(device),
    }
    return record


def so_far(figures: Figures) -> None:
    """Into the log, which stays where the process itself ends before its answer is written."""
    print(f"so far: {json.dumps(figures, default=str)}", file=sys.stderr, flush=True)


def causes(error: BaseException) -> list[str]:
    """What was raised, the first first, and where: a capture that fails ends in an error of its
    own, whose traceback alone may be longer than what is kept."""
    return [
        f"{type(one).__name__}: {str(one)[:_LONGEST]} ({_place(one)})"
        for one in reversed(causes_of(error))
    ]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return ", ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames)


def _ran_out(error: Exception) -> bool:
    return of_exception(error).status is TrialStatus.OOM


def write(record: Mapping[str, Any], path: Path) -> None:
    """As JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(record, indent=1, sort_keys=True, default=str) + "\n")


def has_answer(path: Path) -> bool:
    """Whether the case need not run again."""
    return path.is_file() and Status(json.loads(path.read_text())["status"]).answers
