"""One run from its log, or from the logs of several of its ranks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.lines import Line, read_lines
from harness.logs.causes import ORDER, Causes
from harness.logs.collect import Collector, merged_collectors
from harness.logs.readers import READERS, reader_of
from harness.logs.records import LogFramework, Peak, Step, WholeRun
from harness.trial.failures import Failure

_RANK_FILE: Final = re.compile(r"rank[-_.]?([0-9]{1,9})", re.IGNORECASE)
_DIGITS: Final = re.compile(r"([0-9]{1,9})")


class ParsedLog(Struct, frozen=True, kw_only=True):
    """What the last attempt of a run logged.

    ended: whether the log shows that the run came to its end. cause: why it did not, where the log
    names that. damaged: names of files that could not be read to their end.
    whole_run: means over the whole run, where the log tells any. odd_files: of several files, those
    that end before the others or say nothing, a text each. mistaken: whose lines these are, where
    another framework's were asked for.
    """

    framework: LogFramework | None = None
    steps: tuple[Step, ...] = ()
    peaks: tuple[Peak, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    whole_run: WholeRun | None = None
    ended: bool = False
    cause: Failure | None = None
    restarts: int = 0
    lines: int = 0
    damaged: tuple[str, ...] = ()
    odd_files: tuple[str, ...] = ()
    mistaken: str = ""


def parse_logs(paths: Sequence[Path], framework: LogFramework | None = None) -> ParsedLog:
    """The run that `paths` are logs of: one file, or those of its ranks.

    Where no line is a framework's, only a traceback is believed: a text about training speaks of
    running out of memory too. framework None: found out by the lines. UserError where a file cannot
    be read.
    """
    scans = [_scan(path, framework) for path in paths]
    found = {
        name: merged_collectors([s.collectors[name] for s in scans]) for name in scans[0].collectors
    }
    said = any(collected.ended for collected in found.values())  # a Trainer's, of its DeepSpeed
    causes = [cause for scan in scans if (cause := scan.causes.cause()) is not None]
    bare = ParsedLog(
        cause=min(causes, key=_severity, default=None),
        lines=sum(scan.lines for scan in scans),
        damaged=tuple(path.name for path, s in zip(paths, scans, strict=True) if s.damaged),
    )
    for name, collected in found.items():
        steps = collected.steps()
        if steps or collected.peaks or collected.whole_run:
            return replace(
                bare,
                framework=_spoken(name, collected),
                steps=steps,
                peaks=collected.sorted_peaks(),
                arguments=collected.arguments,
                whole_run=collected.whole_run,
                ended=said or _at_total(steps),
                restarts=collected.restarts,
                odd_files=tuple(_odd(paths, scans, name, steps)),
            )
    if framework is not None and (actual := parse_logs(paths).framework) is not None:
        bare = replace(bare, mistaken=f"no line is from {framework}; the lines are from {actual}")
    traced = any(scan.causes.traceback for scan in scans)
    return bare if traced else replace(bare, cause=None)


class _Scan:
    """One pass over a file, with every reader that may apply."""

    def __init__(self, framework: LogFramework | None, rank: int | None) -> None:
        known = tuple(READERS) if framework is None else (framework,)
        self._readers = [(name, reader_of(name)) for name in known]
        self._rank = rank
        self.collectors = {name: Collector() for name in known}
        self.causes = Causes()
        self.lines = 0
        self.damaged = False

    def read(self, line: Line) -> None:
        """Enter a line; of one that is not whole only that there was one."""
        self.lines += 1
        self.damaged = line.damaged
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


def _odd(
    paths: Sequence[Path], scans: Sequence[_Scan], name: LogFramework, steps: Sequence[Step]
) -> Iterator[str]:
    """Files that say less than those of the run's other ranks do: cut, or of something else. An
    empty one (a rank that has nothing to say) and what goes to stderr are as they should be."""
    for path, scan in zip(paths, scans, strict=True):
        collected = scan.collectors[name]
        last = max((stream.last for stream in collected.streams.values()), default=0)
        if 0 < last < steps[-1].number:
            yield f"{path.name} ends at step {last} of {steps[-1].number}"
        elif scan.lines and collected == Collector() and path.stem != "stderr":
            yield f"{path.name} holds no line of {name}"


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


def _at_total(steps: tuple[Step, ...]) -> bool:
    """Whether the last step is the last of the run, where the lines tell how many it has."""
    total = steps[-1].total if steps else None
    return total is not None and steps[-1].number >= total


def _severity(failure: Failure) -> int:
    return ORDER.index(failure.status) if failure.status in ORDER else len(ORDER)
