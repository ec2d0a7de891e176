"""Run a campaign's items within a time budget, each in a process group of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness.campaign.journal import Attempt, Journal, Outcome
from harness.campaign.plan import Campaign, Item

HARNESS: Final = (sys.executable, "-m", "harness.cli")
_PATIENCE_SECONDS: Final = 15.0
"""From SIGTERM to SIGKILL: commands of the harness keep what is finished in that time."""
_FINAL: Final = (0, 4)
"""Exit codes of a command with nothing left to do: done, or some trial failed (of memory, say)."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Runs items in `out`; `environment` tells machines apart, `budget_seconds` bounds the whole.

    program: what an item's arguments are handed to. clock: monotonic seconds. say: one line of
    talk.
    """

    out: Path
    environment: str
    budget_seconds: float
    say: Callable[[str], None]
    program: Sequence[str] = HARNESS
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    @property
    def journal(self) -> Journal:
        """What was done in this folder."""
        return Journal(self.out / "campaign.jsonl")

    def run(self, campaign: Campaign) -> Iterator[Attempt]:
        """Attempts at the items that are not done, in order; one that no longer fits into the
        budget is passed over for a smaller one, and one that lacks a package for good."""
        done = self.journal.done()
        for item in campaign.items:
            if item.key(self.environment) in done:
                self.say(f"{item.name}: done before")
                continue
            if item.lacks():
                self.say(f"{item.name}: passed over, {', '.join(item.lacks())} is not installed")
                continue
            left = self.budget_seconds - (self.clock() - self.began)
            if left < item.least_seconds:
                self.say(f"{item.name}: needs {item.least_seconds:.0f} s, {max(0, left):.0f} left")
                continue
            yield self._attempt(item, min(left, item.most_seconds))

    def _attempt(self, item: Item, seconds: float) -> Attempt:
        self.say(f"{item.name}: {' '.join(item.command(self.out))} (at most {seconds:.0f} s)")
        started = self.clock()
        code = self._call(item, seconds)
        attempt = Attempt(
            item=item.name,
            key=item.key(self.environment),
            outcome=_outcome(code),
            exit_code=code,
            seconds=round(self.clock() - started, 1),
        )
        self.journal.add(attempt)
        self.say(f"{item.name}: {attempt.outcome} after {attempt.seconds:.0f} s")
        return attempt

    def _call(self, item: Item, seconds: float) -> int | None:
        """Exit code, or None where the time was up; the item's output goes to its log."""
        log = self.out / "logs" / f"{item.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [*self.program, *item.command(self.out)], stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                return process.wait(max(1.0, seconds - _PATIENCE_SECONDS))
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(process)


def _outcome(code: int | None) -> Outcome:
    if code is None:
        return Outcome.UNFINISHED
    return Outcome.DONE if code in _FINAL else Outcome.FAILED


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the group, and SIGKILL to what is left of it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
