"""One line on stderr about work that takes long: what runs, how long, how much longer."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from harness.trial.result import TrialResult, reason
from harness.trial.store import TrialState

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_BAR_WIDTH: Final = 30
_REFRESH_SECONDS: Final = 0.5
_PLAIN_SECONDS: Final = 30.0


class _Talk:
    """A stream of talk: a closed pipe or a full disk ends no measurement."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class LiveLine:
    """A line at the foot of a terminal that is rewritten, text and bar; elsewhere there is none. It
    is drawn when it is told to, by no thread: nothing runs next to what is measured."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = cast(TextIO, _Talk(sys.stderr if stream is None else stream))
        self.live = self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._bar: Bar | None = None
        self._clock, self._began = clock, clock()

    def show(self, text: str, done: float, total: float) -> None:
        """The line as it is now; of the bar `done` of `total` is full."""
        if not self.live:
            return
        if self._bar is None:
            self._bar = _started(self._stream)
        (task,) = self._bar.task_ids
        self._bar.update(task, description=text, completed=done, total=total, refresh=True)

    def say(self, text: str) -> None:
        """One whole line, which stays; on a terminal in place of the one that was shown."""
        self.close()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """The line vanishes, and the terminal is as it was."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()


def _started(stream: TextIO) -> "Bar":
    """The bar gives way to the text, and the text's end to a narrow terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    whole = Column(no_wrap=True, overflow="ellipsis")
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=whole),
        BarColumn(bar_width=None, table_column=Column(max_width=_BAR_WIDTH)),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("")
    bar.start()
    return bar


def say(text: str, command: str = "run") -> None:
    """A line of talk of a command; a full or closed stderr is no reason to fail."""
    try:
        print(f"harness {command}: {text}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for the rest of the process)


class Progress(LiveLine):
    """The trials of a plan: the line says where the running one is, and each that ends stays.
    growing: nobody knows how many come (a sweep's): they are counted as met, each said once."""

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        growing: bool = False,
    ) -> None:
        super().__init__(stream, clock)
        self._total, self._growing = total, growing
        self._number, self._label = 0, ""
        self._reported: set[str] = set()
        self._spent: list[float] = []
        self._open = 0  # trials that are still to run, this one included

    def plan(self, to_run: int) -> None:
        """So many trials have no result yet: what remains is estimated from these alone."""
        self._open = to_run

    def begin(self, number: int, label: str) -> None:
        """Trial `number` of the total starts."""
        self._number = len(self._reported) + 1 if self._growing else number
        self._label, self._began = label, self._clock()
        self.tick(TrialState())

    def tick(self, state: TrialState) -> None:
        """The trial is where `state` says."""
        step = f" step {state.step}" if state.step else ""
        elapsed = self._clock() - self._began
        left = "" if not self._spent else f"  {duration(self._remaining(elapsed))} to go"
        text = f"{state.phase}{step}  {duration(elapsed)}{left}"
        self.show(f"{self._head()}  {text}", self._number - 1, self._total)

    def end(self, result: TrialResult) -> None:
        """The trial has its final result."""
        spent = self._clock() - self._began
        self._spent.append(spent)
        self._open -= 1
        left = self._remaining(0.0)
        self._report(result, spent, f"  ({duration(left)} to go)" if left else "")

    def found(self, number: int, label: str, result: TrialResult) -> None:
        """The trial was finished by an earlier run, or is one of an earlier round."""
        if self._is_new(number, label, result):
            self.say(f"{self._head()}  {result.status} (already run)")

    def collected(self, number: int, label: str, result: TrialResult) -> None:
        """The trial has its final result, and ran elsewhere."""
        if self._is_new(number, label, result):
            self._report(result, result.wall_seconds)

    def _is_new(self, number: int, label: str, result: TrialResult) -> bool:
        """Whether it is to be reported, as `number` of what is met."""
        if self._growing and result.name in self._reported:
            return False
        self._reported.add(result.name)
        self._number, self._label = len(self._reported) if self._growing else number, label
        return True

    def _report(self, result: TrialResult, seconds: float, left: str = "") -> None:
        self._reported.add(result.name)
        why = f"  {reason(result.evidence)}" if result.evidence else ""
        self.say(f"{self._head()}  {result.status}  {duration(seconds)}{why}{left}")

    def _head(self) -> str:
        if self._growing:
            return f"trial {self._number}  {self._label}"
        width = len(str(self._total))
        return f"trial {self._number:>{width}}/{self._total}  {self._label}"

    def _remaining(self, elapsed: float) -> float:
        """Seconds until the last trial ends, if the rest take as long as the mean so far."""
        mean = sum(self._spent) / len(self._spent)
        return max(0.0, mean * self._open - min(elapsed, mean))


class TimedCases(LiveLine):
    """A calibration's cases: how much of the budget is spent, how many are timed, now and then."""

    def __init__(
        self,
        budget_seconds: float,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock)
        self._budget = budget_seconds
        self._last = self._began

    def tick(self, timed: int, total: int) -> None:
        """So many cases of all are timed."""
        now = self._clock()
        if now - self._last < (_REFRESH_SECONDS if self.live else _PLAIN_SECONDS):
            return
        self._last, spent = now, now - self._began
        of_budget = f"{duration(spent)} of {duration(self._budget)} spent"
        text = f"{timed} of {total} cases timed, {of_budget}"
        if self.live:
            self.show(text, spent, self._budget)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """One whole line."""
        super().say(f"harness calibrate: {text}")


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``1 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
