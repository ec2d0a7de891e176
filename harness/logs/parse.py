"""One run from its log, or from the logs of several of its ranks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from harness.failures import Failure
from harness.logs.causes import ORDER, Causes
from harness.logs.collect import Collector, together
from harness.logs.lines import Line, read_lines
from harness.logs.readers import READERS, reader_of
from harness.logs.records import LogFramework, Peak, Step

_SAYS_ITS_END: Final = (LogFramework.TORCHTITAN, LogFramework.HUGGINGFACE)
"""Frameworks without a total that write a line when they are done; DeepSpeed does neither."""
_RANK_FILE: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLog:
    """What the last attempt of a run logged.

    ended: whether the run came to its end; None where the framework does not tell. cause: why it
    did not, where the log names that. whole: the file does not break off within a line.
    whole_run_seconds: mean step of the whole run, where no step has a time of its own.
    """

    framework: LogFramework | None = None
    steps: tuple[Step, ...] = ()
    peaks: tuple[Peak, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    whole_run_seconds: float | None = None
    ended: bool | None = None
    cause: Failure | None = None
    restarts: int = 0
    lines: int = 0
    whole: bool = True


def parse_logs(paths: Sequence[Path], framework: LogFramework | None = None) -> ParsedLog:
    """The run that `paths` are logs of: one file, or those of its ranks.

    framework None: found out by the lines. UserError where a file cannot be read.
    """
    scans = [_scan(path, framework) for path in paths]
    causes = [cause for scan in scans if (cause := scan.causes.cause()) is not None]
    bare = ParsedLog(
        cause=min(causes, key=_severity, default=None),
        lines=sum(scan.lines for scan in scans),
        whole=all(scan.whole for scan in scans),
    )
    for name in scans[0].collectors:
        collected = together([scan.collectors[name] for scan in scans])
        steps = collected.steps()
        if steps or collected.peaks or collected.whole_run_seconds:
            return replace(
                bare,
                framework=_spoken(name, collected),
                steps=steps,
                peaks=collected.sorted_peaks(),
                arguments=collected.arguments,
                whole_run_seconds=collected.whole_run_seconds,
                ended=_ended(name, collected.ended, steps),
                restarts=collected.restarts,
            )
    return bare


class _Scan:
    """One pass over a file, with every reader that may apply."""

    def __init__(self, framework: LogFramework | None, rank: int | None) -> None:
        known = tuple(READERS) if framework is None else (framework,)
        self._readers = [(name, reader_of(name)) for name in known]
        self._rank = rank
        self.collectors = {name: Collector() for name in known}
        self.causes = Causes()
        self.lines = 0
        self.whole = True

    def read(self, line: Line) -> None:
        """Enter a line; of one that is not whole only that there was one."""
        self.lines += 1
        self.whole = line.whole
        if not line.whole or not line.text:
            return
        rank = self._rank if line.rank is None else line.rank
        goes_on = False
        for name, reader in self._readers:
            if any(anchor in line.text for anchor in reader.anchors):
                for record in reader.read(line.text):
                    goes_on |= self.collectors[name].add(record, rank)
        if goes_on:
            self.causes.survived()
        else:
            self.causes.read(line.text)


def _scan(path: Path, framework: LogFramework | None) -> _Scan:
    scan = _Scan(framework, _rank_of(path))
    for line in read_lines(path):
        scan.read(line)
    return scan


def _rank_of(path: Path) -> int | None:
    """The rank by a file's name: ``rank3.log``, or torchrun's ``attempt_0/3/stdout.log``."""
    match = _RANK_FILE.search(path.name)
    if match is None and path.stem in ("stdout", "stderr"):
        match = _DIGITS.fullmatch(path.parent.name)
    return int(match[1]) if match else None


def _spoken(name: LogFramework, collected: Collector) -> LogFramework:
    """Bridge writes Megatron's lines, and a rate beside each."""
    bridge = name is LogFramework.MEGATRON_LM and collected.rates
    return LogFramework.MEGATRON_BRIDGE if bridge else name


def _ended(name: LogFramework, said: bool, steps: tuple[Step, ...]) -> bool | None:
    if said:
        return True
    total = steps[-1].total if steps else None
    if total is not None:
        return steps[-1].number >= total
    return False if name in _SAYS_ITS_END else None


def _severity(failure: Failure) -> int:
    return ORDER.index(failure.status) if failure.status in ORDER else len(ORDER)
