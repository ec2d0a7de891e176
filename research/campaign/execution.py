"""Run a campaign's items within a time budget, each in a process group of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from advisor.base.errors import UserError, install_hint
from harness.execution.runner import FAILED, MEASURED
from harness.execution.signals import Stop
from harness.trial.store import RunFolder
from research.campaign.items import Campaign, Item
from research.campaign.journal import SOME_FAILED, Attempt, Journal, Outcome, Standing, standing

RETRY: Final = "--retry=" + ",".join(FAILED)
"""Runs trials again that are owed an answer; what ran out of memory or was skipped has one."""
WITH_TRIALS: Final = ("run", "rehearse")
HARNESS: Final = (sys.executable, "-m", "harness.cli.main")
PROBE: Final = "probe"
PROBES: Final = (sys.executable, "-m", "research.probes")
"""What an item that begins with `probe` runs instead of the harness."""
_PATIENCE_SECONDS: Final = 15.0
"""From SIGTERM to SIGKILL: commands of the harness keep what is finished in that time. A probe ends
at once: each case writes its answer itself."""
_INTERRUPTED: Final = frozenset(
    Stop(number).exit_code for number in (signal.SIGINT, signal.SIGTERM)
)


class Trials(Struct, frozen=True, kw_only=True):
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


class Executor(Struct, frozen=True, kw_only=True):
    """Runs items in `out`; `environment` tells machines apart, `budget_seconds` bounds the whole.

    version: of the program (campaign.version), probe_version of what probes have beyond it. again:
    what failed with this version is tried again.
    program: what an item's arguments are handed to. clock: monotonic seconds. say: one line of
    talk.
    """

    out: Path
    environment: str
    version: str
    budget_seconds: float
    say: Callable[[str], None]
    probe_version: str = ""
    again: bool = False
    program: Sequence[str] = HARNESS
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    @property
    def journal(self) -> Journal:
        """What was done in this folder."""
        return Journal(self.out / "campaign.jsonl")

    def run(self, campaign: Campaign) -> Iterator[Attempt]:
        """Attempts at the items that are due, in order; one that no longer fits into the budget is
        passed over for a smaller one, and one that lacks a package for good.

        Ends where the first run measured nothing: what follows would fare no better.
        """
        first = campaign.first_run()
        for item in campaign.items:
            given = standing(self._attempts(item), self._version(item), again=self.again)
            if self._worth_starting(item, given):
                yield self._attempt(item, given)
            elif given.due:
                continue
            if item is first and self.measured_nothing(item):
                self.say(f"stopped: {item.name} measured nothing, see {self.log(item)}")
                return

    def standing(self, item: Item) -> Standing:
        """What the attempts so far mean."""
        return standing(self._attempts(item), self._version(item))

    def measured_nothing(self, item: Item) -> bool:
        """Whether this version of the program tried an item, and no trial of it was measured."""
        last = self.standing(item).last
        return last is not None and last.version == self._version(item) and last.measured_nothing

    def log(self, item: Item) -> Path:
        """What an item printed, over all attempts."""
        return self.out / "logs" / f"{item.name}.txt"

    def _version(self, item: Item) -> str:
        return self.version + (self.probe_version if item.arguments[0] == PROBE else "")

    def _attempts(self, item: Item) -> tuple[Attempt, ...]:
        return self.journal.attempts(item.key(self.environment))

    def _worth_starting(self, item: Item, given: Standing) -> bool:
        left = self._left()
        if not given.due:
            advice = "; --retry runs it again" if given.failed else ""
            self.say(f"{item.name}: {given.words}{advice}")
        elif item.lacks():
            lacking = ", ".join(item.lacks())
            hint = install_hint(item.extras())
            self.say(f"{item.name}: skipped: {lacking} is not installed; {hint}")
        elif left < item.least_seconds:
            self.say(
                f"{item.name}: skipped: needs {item.least_seconds:.0f} s, {max(0, left):.0f} s left"
            )
        else:
            return True
        return False

    def _left(self) -> float:
        return self.budget_seconds - (self.clock() - self.began)

    def _attempt(self, item: Item, given: Standing) -> Attempt:
        words = item.command(self.out)
        if given.retry and words[0] in WITH_TRIALS:
            words += (RETRY,)
        seconds = min(self._left(), item.most_seconds)
        self.say(f"{item.name}: {' '.join(words)} (at most {seconds:.0f} s)")
        started = self.clock()
        code = self._call(words, self.log(item), seconds)
        trials = trials_of(words)
        attempt = Attempt(
            item=item.name,
            key=item.key(self.environment),
            outcome=_outcome(code, trials),
            exit_code=code,
            seconds=round(self.clock() - started, 1),
            version=self._version(item),
            measured=None if trials is None else trials.measured,
            failed=None if trials is None else trials.failed,
        )
        self.journal.add(attempt)
        self.say(f"{item.name}: {attempt.outcome} after {attempt.seconds:.0f} s")
        return attempt

    def _call(self, words: Sequence[str], log: Path, seconds: float) -> int | None:
        """Exit code, or None where the time was up; what it prints goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        probe = words[0] == PROBE
        patience = 1.0 if probe else _PATIENCE_SECONDS
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [*PROBES, *words[1:]] if probe else [*self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(max(1.0, seconds - patience))
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(process)


def _outcome(code: int | None, trials: Trials | None) -> Outcome:
    """Trials that ran out of memory, or were skipped, have their answer: such an item is done."""
    if code is None or code in _INTERRUPTED:
        return Outcome.UNFINISHED
    if code == SOME_FAILED:
        return Outcome.OWED if trials is None or trials.owed else Outcome.DONE
    return Outcome.DONE if code == 0 else Outcome.FAILED


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the group, and SIGKILL to what is left of it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
