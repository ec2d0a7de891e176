"""What a campaign has done: one line of JSON an attempt, written as soon as it has ended."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.documents import read_json_lines
from advisor.base.fields import read_record
from advisor.base.record import as_dict
from harness.trial.files import append_json_line

SOME_FAILED: Final = 4
"""Exit code of a command of which a trial failed, or nothing was measured."""


class Outcome(StrEnum):
    """How an attempt at an item ended. `owed`: one of its trials says nothing about its setting."""

    DONE = "done"
    OWED = "owed"
    FAILED = "failed"
    UNFINISHED = "unfinished"


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt; `key` says of which item in which environment (Item.key).

    version: of the program that made it. measured, failed: trials of its run, this attempt's and
    earlier ones'. Journals of before these were written have none of them.
    """

    item: str
    key: str
    outcome: Outcome
    exit_code: int | None
    seconds: float
    version: str = ""
    measured: int | None = None
    failed: int | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do; an old journal does not say why trials failed."""
        known = bool(self.version) or self.exit_code != SOME_FAILED
        return self.outcome is Outcome.DONE and known

    @property
    def measured_nothing(self) -> bool:
        """Whether it had trials, and none that ended was measured."""
        ended = self.outcome is not Outcome.UNFINISHED or bool(self.failed)
        return self.measured == 0 and ended


class Standing(Struct, frozen=True, kw_only=True):
    """What the attempts so far mean for a program of a version.

    due: it is to be attempted. retry: its trials that failed too. failed: this version has tried
    it, and it failed or owes an answer. last: the latest attempt.
    """

    due: bool
    retry: bool
    failed: bool
    last: Attempt | None

    @property
    def words(self) -> str:
        """For the page, where nothing was done about it now."""
        if self.failed and self.last is not None:
            return f"{self.last.outcome} before"
        if not self.due:
            return "done before"
        return "not started" if self.last is None else "left to do"


def standing(attempts: Sequence[Attempt], version: str, *, again: bool = False) -> Standing:
    """From the attempts at one item, oldest first; `again` asks for what failed with this version.

    What failed is tried once a version. A call that was killed wrote no attempt, so the first
    attempt of a version that is written always runs failed trials again.
    """
    last = attempts[-1] if attempts else None
    settled = last is not None and last.settled
    tried = last is not None and last.version == version and last.outcome is not Outcome.UNFINISHED
    return Standing(
        due=not settled and (again or not tried),
        retry=again or all(attempt.version != version for attempt in attempts),
        failed=tried and not settled,
        last=last,
    )


class Journal:
    """The attempts of a campaign's folder; a line cut short by a crash is no attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def attempts(self, key: str | None = None) -> tuple[Attempt, ...]:
        """All attempts, or those at the item of a key; oldest first."""
        if not self._path.exists():
            return ()
        lines = read_json_lines(self._path, skip_broken=True)
        found = (read_record(Attempt, values, self._path) for values in lines)
        return tuple(attempt for attempt in found if key in (None, attempt.key))

    def add(self, attempt: Attempt) -> None:
        """Append a line and bring it to the disk."""
        append_json_line(self._path, as_dict(attempt))
