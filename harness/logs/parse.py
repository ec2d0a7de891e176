"""One run from its log, or its ranks' logs: the last attempt, all lines of a step."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.grouping import grouped
from advisor.base.lines import LINE_CHARACTERS, DamagedError, clean_block, clean_line, read_blocks
from harness.logs.causes import ANCHORS, ORDER, Causes
from harness.logs.collector import Collector, merged_collectors
from harness.logs.readers import READERS
from harness.logs.records import LogFramework, LoggedPeak, LoggedStep, WholeRun
from harness.trial.failures import Failure

KEPT_STEPS: Final = 10_000
"""Of a log, of all its ranks: numbers are of the first steps after the warm-up."""
_RANK_FILE: Final = re.compile(r"rank[-_.]?([0-9]{1,9})", re.IGNORECASE)
_DIGITS: Final = re.compile(r"([0-9]{1,9})")


class ParsedLog(Struct, frozen=True, kw_only=True):
    """What the last attempt of a run logged. ended: whether the log shows the run's end. cause: why
    it did not end, where the log names that. damaged: names of files that could not be read to
    their end. whole_run: means over the whole run, where told. odd_files: of several files, those
    that end early or say nothing, a text each. mistaken: whose lines these are, where another
    framework's were asked for. unread: steps of a long log that are left out before its last."""

    framework: LogFramework | None = None
    steps: tuple[LoggedStep, ...] = ()
    peaks: tuple[LoggedPeak, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    whole_run: WholeRun | None = None
    ended: bool = False
    cause: Failure | None = None
    restarts: int = 0
    lines: int = 0
    damaged: tuple[str, ...] = ()
    odd_files: tuple[str, ...] = ()
    mistaken: str = ""
    unread: int = 0


def parse_logs(
    paths: Sequence[Path], framework: LogFramework | None = None, least: int = 0
) -> ParsedLog:
    """The run that `paths` are logs of: one file, or those of its ranks. least: steps of which all
    is wanted. Where no line is a framework's, only a traceback is believed. framework None: found
    out by the lines. UserError where a file cannot be read."""
    scans = [_Scan(path, framework, KEPT_STEPS // len(paths), least) for path in paths]
    found = {
        name: merged_collectors([s.collectors[name] for s in scans]) for name in scans[0].collectors
    }
    said = any(collected.ended for collected in found.values())  # a Trainer's, of its DeepSpeed
    causes = [cause for scan in scans if (cause := scan.causes.cause()) is not None]
    bare = ParsedLog(
        cause=min(causes, key=lambda one: ORDER.index(one.status), default=None),
        lines=sum(scan.lines for scan in scans),
        damaged=tuple(path.name for path, s in zip(paths, scans, strict=True) if s.damaged),
    )
    for name, collected in found.items():
        steps, peaks = collected.steps(), collected.peaks
        if steps or peaks or collected.whole_run:
            return replace(
                bare,
                framework=_spoken(name, collected),
                steps=steps,
                peaks=tuple(peaks[r] for r in sorted(peaks, key=lambda r: -1 if r is None else r)),
                arguments=collected.arguments,
                whole_run=collected.whole_run,
                ended=said or (bool(steps) and steps[-1].number >= (steps[-1].total or math.inf)),
                restarts=collected.restarts,
                unread=max((stream.unread for stream in collected.streams.values()), default=0),
                odd_files=tuple(_odd(paths, scans, name, steps)),
            )
    if framework is not None and (actual := parse_logs(paths).framework) is not None:
        bare = replace(bare, mistaken=f"no line is from {framework}; the lines are from {actual}")
    return bare if any(scan.causes.traceback for scan in scans) else replace(bare, cause=None)


class _Scan:
    """One pass over a file, with every reader that may apply."""

    def __init__(self, path: Path, framework: LogFramework | None, most: int, least: int) -> None:
        known = tuple(READERS) if framework is None else (framework,)
        megatron = READERS[LogFramework.MEGATRON_LM]  # Bridge's lines too
        self._readers = {name: READERS.get(name, megatron) for name in known}
        self._anchors = {word for reader in self._readers.values() for word in reader.anchors}
        self._rank = _rank_of(path)
        self.collectors = {name: Collector(most=most, least=least) for name in known}
        self.causes = Causes()
        self.lines = 0
        self.damaged = self._begun = False
        try:
            for block in read_blocks(path):
                self._read_block(clean_block(block))
        except DamagedError:
            self.damaged = True
        self.lines += self._begun

    def _read_block(self, text: str) -> None:
        """Enter whole lines, of steady ones few; of the last, where it has no end, nothing."""
        whole, ended, begun = text.rpartition("\n")
        if self._begun:  # in a line that is longer than a block
            whole = whole.partition("\n")[2]
        self.lines += text.count("\n")
        self._begun = bool(begun) or (self._begun and not ended)
        full = (name for name, one in self.collectors.items() if one.full)
        name = next((name for name in full if self._readers[name].steady), None)
        found = self._readers[name].steady_lines().split(f"\n{whole}\n") if name else [whole]
        tells, begin = self._telling("\n".join(found[::6])), 0
        for at in range(0, len(found), 6):
            if at == len(found) - 1 or (len(found[at]) > 1 and tells(found[at])):
                if name:
                    self._pass(found[begin + 1 : at], self.collectors[name])
                self._read_lines(found[at], tells)
                begin = at

    def _telling(self, text: str) -> Callable[[str], bool]:
        """Whether a part of `text` may hold a record, or tell why the run ended."""
        low = text.lower()
        words = [word for word in self._anchors if word in text]
        named = [word for word in ANCHORS if word in low]
        return lambda part: (
            self.causes.traceback
            or any(word in part for word in words)
            or (bool(named) and any(word in part.lower() for word in named))
        )

    def _read_lines(self, text: str, tells: Callable[[str], bool]) -> None:
        for part in text.split("\n") if tells(text) else (text,):
            if len(part) < LINE_CHARACTERS and tells(part):
                self._read(part)
            else:
                self.causes.hear(part)

    def _pass(self, cells: list[str], collector: Collector) -> None:
        """Enter steady lines: where enough is known, of a rank the first, highest and last."""
        lines, prefixes, steps, heights, kinds = (cells[group::6] for group in range(5))
        ranks = {prefix: self._heard(prefix)[0] for prefix in set(prefixes)}
        of_ranks = grouped((ranks[one], at) for at, one in enumerate(prefixes) if steps[at])
        first = min((mine[0] for mine in of_ranks.values()), default=len(lines))
        last = {kind: at for at, kind in enumerate(kinds[:first]) if kind}
        more = [at for at, kind in enumerate(kinds) if kind and at > first]
        for at in last.values():
            self._read(lines[at])
        for rank, mine in of_ranks.items():
            begin, *rest = mine
            self._read(lines[begin])
            stream = collector.streams.get(rank)
            rising = [float(steps[at]) for at in mine]
            if rising != sorted(rising):  # the run began anew: everything in its order
                rest, more = sorted([*rest, *more]), []
            elif len(mine) > 3 and stream and collector.full:
                high = [float(heights[at] or 0) for at in mine]
                rest = sorted({mine[high.index(max(high))], mine[-1]} - {begin})
                left = len(mine) - 1 - len(rest)
                stream.unread += left
                stream.last += left * bool(stream.epoch)  # it has no numbers
            for at in rest:
                self._read(lines[at])
        for at in {kinds[at]: at for at in more}.values():
            self._read(lines[at])

    def _heard(self, line: str) -> tuple[int | None, str]:
        """The rank that wrote a line, by its prefix or else by the file's name, and the text."""
        rank, text = clean_line(line)
        return self._rank if rank is None else rank, text

    def _read(self, line: str) -> None:
        """Enter what a line says to every reader that may apply."""
        rank, text = self._heard(line)
        goes_on = False
        for name, reader in self._readers.items():
            for record in reader.read(text):
                goes_on |= self.collectors[name].add(record, rank)
        if goes_on:
            self.causes.survived()
        elif text:
            self.causes.read(text)


def _odd(
    paths: Sequence[Path], scans: Sequence[_Scan], name: LogFramework, steps: Sequence[LoggedStep]
) -> Iterator[str]:
    """Files that say less than those of the run's other ranks do: cut, or of something else. An
    empty one (a rank that has nothing to say) and what goes to stderr are as they should be."""
    for path, scan in zip(paths, scans, strict=True):
        collected = scan.collectors[name]
        bare = Collector(collected.most, collected.least)
        last = max((stream.last for stream in collected.streams.values()), default=0)
        if 0 < last < steps[-1].number:
            yield f"{path.name} ends at step {last} of {steps[-1].number}"
        elif scan.lines and collected == bare and path.stem != "stderr":
            yield f"{path.name} holds no line of {name}"


def _rank_of(path: Path) -> int | None:
    """The rank by a file's name: ``rank3.log``, or torchrun's ``attempt_0/3/stdout.log``."""
    match = _RANK_FILE.search(path.name)
    if match is None and path.stem in ("stdout", "stderr"):
        match = _DIGITS.fullmatch(path.parent.name)
    return int(match[1]) if match else None


def _spoken(name: LogFramework, collected: Collector) -> LogFramework:
    """Bridge writes Megatron's lines, and a rate next to each."""
    bridge = name is LogFramework.MEGATRON_LM and collected.rates
    return LogFramework.MEGATRON_BRIDGE if bridge else name
