"""Why a run ended before its time: the causes that a log names, and the one that counts."""

import re
from collections import deque
from typing import Final

from msgspec import Struct, field

from advisor.base.lines import LINE_CHARACTERS, clean_line
from advisor.diagnose.scan import scan
from harness.trial.failures import Failure, of_log, one_line
from harness.trial.result import TrialStatus

_KEPT_LINES: Final = 400
_TIME_LIMIT: Final = re.compile(r"\bDUE TO TIME LIMIT\b")
_HOST_OOM: Final = re.compile(r"\boom[-_]kill\b|\bOOM Killed\b", re.IGNORECASE)
_NAN: Final = re.compile(r"\bfound (?:NaN|Inf) in local\b")
_RAISED: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: .*)?$")
_CRASHED: Final = re.compile(
    r"^Fatal Python error: |\bSegmentation fault\b|\bSignal \d+ \(SIG\w+\)|\bCANCELLED AT\b"
    r"|^Aborted\b|^Killed\b|^Bus error\b"
)
ANCHORS: Final = (
    *("out of memory", "allocate memory", "alloc_failed", "bad_alloc", "memoryallocation", "nccl"),
    *("distbackenderror", "no space left on", "traceback (most recent", "time limit", "kill"),
    *("fatal python error", "segmentation fault", "(sig", "cancelled at", "aborted", "bus error"),
    *("found nan in", "found inf in"),
)
"""In lower case: a line without any of these names no cause, and begins no traceback."""
ORDER: Final = (
    *(TrialStatus.OOM, TrialStatus.NAN, TrialStatus.TIMEOUT),
    *(TrialStatus.NCCL_ERROR, TrialStatus.FAILED),
)
"""Causes before consequences: ranks that wait for a dead one report NCCL errors."""


class Causes(Struct):
    """What was said since the last step: training that goes on has survived an error."""

    found: dict[TrialStatus, Failure] = field(default_factory=dict)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    traceback: bool = False

    def hear(self, text: str) -> None:
        """Keep the last lines of a text in which nothing is named."""
        lines = text.rsplit("\n", _KEPT_LINES)[-_KEPT_LINES:]
        self.lines.extend(line[:LINE_CHARACTERS] for line in lines if line)

    def read(self, text: str) -> None:
        """Enter a line that is no record."""
        self.lines.append(text)
        self.traceback = self.traceback or text.startswith("Traceback (most recent call last)")
        failure = _named(text)
        if failure is None and self.traceback and _RAISED.match(text):
            failure = Failure(TrialStatus.FAILED, one_line(text))
        if failure is not None:
            self.found.setdefault(failure.status, failure)

    def survived(self) -> None:
        """Training went on."""
        if self.lines:
            self.found.clear()
            self.lines.clear()
            self.traceback = False

    def cause(self) -> Failure | None:
        """The cause that counts, in the words of the log; None where none was named."""
        best = next((self.found[status] for status in ORDER if status in self.found), None)
        if not self.traceback or (best is not None and best.status is not TrialStatus.FAILED):
            return best
        found = scan("\n".join(clean_line(line)[1] for line in self.lines)).findings
        known = (o for o in found if o.failure.severity == "error" and not o.failure.unlisted)
        first = next(known, None)
        return Failure(TrialStatus.FAILED, one_line(first.excerpt)) if first else best


def _named(text: str) -> Failure | None:
    """A cause that the line names by itself."""
    failure = of_log((text,))
    if failure is not None:
        return failure
    for pattern, status in (
        (_TIME_LIMIT, TrialStatus.TIMEOUT),
        (_HOST_OOM, TrialStatus.OOM),
        (_NAN, TrialStatus.NAN),
        (_CRASHED, TrialStatus.FAILED),
    ):
        if pattern.search(text):
            return Failure(status, one_line(text))
    return None
