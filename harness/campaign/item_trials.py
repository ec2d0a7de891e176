"""What an item's trials gave, read from the folder of its run."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from harness.run.runner import FAILED, MEASURED
from harness.trial.store import RunFolder

RETRY: Final = "--retry=" + ",".join(FAILED)
"""Runs trials again that are owed an answer; what ran out of memory or was skipped has one."""
WITH_TRIALS: Final = ("run", "rehearse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Trials of a run by what they gave: failed say nothing about their setting, missing have not
    ended."""

    measured: int = 0
    failed: int = 0
    missing: int = 0

    @property
    def owed(self) -> bool:
        """Whether one of them has no answer."""
        return bool(self.failed or self.missing)


def trials_of(words: Sequence[str]) -> Trials | None:
    """Trials of the run that a command line of the harness names; None where it names none."""
    command, *rest = words
    given = dict(word.partition("=")[::2] for word in rest)
    if command not in WITH_TRIALS or "name" not in given or "--dry-run" in rest:
        return None
    folder = RunFolder(Path(given.get("runs", "runs")) / given["name"])
    if not folder.has_plan():
        return Trials()
    with suppress(UserError):
        return _counted(folder)
    return None


def _counted(folder: RunFolder) -> Trials:
    statuses = [result.status for result in folder.results().values()]
    return Trials(
        measured=sum(status in MEASURED for status in statuses),
        failed=sum(status in FAILED for status in statuses),
        missing=sum(1 for _ in folder.plan().trials()) - len(statuses),
    )
