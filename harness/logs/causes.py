"""Why a run ended before its time: the causes that a log names, and the one that counts."""

import re
from collections import deque
from typing import Final

from msgspec import Struct, field

from advisor.diagnose.catalog import Severity
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
        found = scan("\n".join(self.lines)).findings
        known = (one for one in found if one.failure.severity is Severity.ERROR)
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
