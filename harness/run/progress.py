"""One line about a run on stderr: which trial, which phase, how long, how much longer."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

from advisor.base.units import human_bytes
from harness.trial.result import Evidence, TrialResult
from harness.trial.store import TrialState

_REFRESH_SECONDS: Final = 0.5
_ERASE: Final = "\r\x1b[K"


class Progress:
    """A line that is rewritten on a terminal; elsewhere a plain line when a trial ends."""

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._clock = total, clock
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._number = 0
        self._label = ""
        self._began = self._shown = clock()
        self._spent: list[float] = []
        self._open = 0  # trials that are still to run, this one included

    def plan(self, to_run: int) -> None:
        """So many trials have no result yet: what remains is estimated from these alone."""
        self._open = to_run

    def begin(self, number: int, label: str) -> None:
        """Trial `number` of the total starts."""
        self._number, self._label = number, label
        self._began = self._clock()
        self._shown = -_REFRESH_SECONDS
        self.tick(TrialState())

    def tick(self, state: TrialState) -> None:
        """The trial is where `state` says."""
        now = self._clock()
        if not self._live or now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        step = f" step {state.step}" if state.step else ""
        elapsed = now - self._began
        text = f"{self._head()}  {state.phase}{step}  {duration(elapsed)}"
        remaining = self._remaining(elapsed)
        if remaining is not None:
            text += f"  {duration(remaining)} to go"
        width = shutil.get_terminal_size().columns
        self._write(_ERASE + text[: width - 1])

    def end(self, result: TrialResult) -> None:
        """The trial has its final result."""
        spent = self._clock() - self._began
        self._spent.append(spent)
        self._open -= 1
        text = f"{self._head()}  {result.status}  {duration(spent)}"
        if result.evidence is not None:
            text += f"  {reason(result.evidence)}"
        remaining = self._remaining(0.0)
        if remaining:
            text += f"  ({duration(remaining)} to go)"
        self.say(text)

    def found(self, number: int, label: str, result: TrialResult) -> None:
        """The trial was finished by an earlier run."""
        self._number, self._label = number, label
        self.say(f"{self._head()}  {result.status}, as found")

    def collected(self, number: int, label: str, result: TrialResult) -> None:
        """The trial has its final result, and ran elsewhere."""
        self._number, self._label = number, label
        text = f"{self._head()}  {result.status}  {duration(result.wall_seconds)}"
        self.say(text + (f"  {reason(result.evidence)}" if result.evidence is not None else ""))

    def say(self, text: str) -> None:
        """One whole line."""
        self._write(f"{_ERASE if self._live else ''}{text}\n")

    def _write(self, text: str) -> None:
        """A closed pipe or a full disk behind stderr ends no measurement."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _head(self) -> str:
        width = len(str(self._total))
        return f"trial {self._number:>{width}}/{self._total}  {self._label}"

    def _remaining(self, elapsed: float) -> float | None:
        """Seconds until the last trial ends, if the rest take as long as the mean so far."""
        if not self._spent:
            return None
        mean = sum(self._spent) / len(self._spent)
        return max(0.0, mean * self._open - min(elapsed, mean))


def reason(evidence: Evidence) -> str:
    """Phase, message and how far over, on one line."""
    over = "" if evidence.over_bytes is None else f", {human_bytes(evidence.over_bytes)} over"
    return f"[{evidence.phase}{over}] {evidence.message}"


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
