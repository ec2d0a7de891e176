"""What a campaign has done: one line of JSON an attempt, written as soon as it has ended."""

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from advisor.reader import read_dataclass


class Outcome(StrEnum):
    """How an attempt at an item ended."""

    DONE = "done"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt; `key` says of which item in which environment (Item.key)."""

    item: str
    key: str
    outcome: Outcome
    exit_code: int | None
    seconds: float


class Journal:
    """The attempts of a campaign's folder; a line cut short by a crash is no attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, oldest first."""
        if not self._path.exists():
            return ()
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return tuple(attempt for attempt in map(self._read, lines) if attempt is not None)

    def _read(self, line: str) -> Attempt | None:
        try:
            values = json.loads(line)
        except ValueError:
            return None
        return read_dataclass(Attempt, values, self._path)

    def add(self, attempt: Attempt) -> None:
        """Append a line and bring it to the disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+", encoding="utf-8") as file:
            if _ends_inside_a_line(self._path):
                file.write("\n")
            file.write(json.dumps(asdict(attempt)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def done(self) -> frozenset[str]:
        """Keys of items that need no further attempt."""
        return frozenset(a.key for a in self.attempts() if a.outcome is Outcome.DONE)


def _ends_inside_a_line(path: Path) -> bool:
    text = path.read_bytes()
    return bool(text) and not text.endswith(b"\n")
