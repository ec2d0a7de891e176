"""Streams a log and finds known failures: one pass, a few lines in memory, any bytes."""

import re
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.lines import DamagedError, clean_line, read_blocks
from advisor.diagnose.catalog import Failure, Reading, Severity, Template, load_catalog

WINDOW_LINES: Final = 24  # lines after the first that a message may span, other ranks included
LINE_BYTES: Final = 1 << 13  # a longer line (progress bars, garbage) is cut around its message
EXCERPT_CHARACTERS: Final = 400

_EXCEPTION: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Warning): (?:[\w.]+: )?$")


class Finding(Struct, frozen=True, kw_only=True):
    """A failure at its first occurrence.

    line_number: 1-based; rank: as the launcher's prefix prints it, None without a prefix.
    numbers: what the message says, by name. occurrences and ranks cover the whole log.
    """

    failure: Failure
    line_number: int
    excerpt: str
    numbers: tuple[Reading, ...]
    rank: int | None
    occurrences: int
    ranks: tuple[int, ...]

    def number(self, name: str) -> float | None:
        """The value of one reading, or None where the text does not have it."""
        return next((item.value for item in self.numbers if item.name == name), None)


class Diagnosis(Struct, frozen=True, kw_only=True):
    """All findings of one log, errors before warnings and then in its order. damaged: what follows
    cannot be decompressed."""

    findings: tuple[Finding, ...]
    num_lines: int
    damaged: bool = False


class _Window(Struct):
    """Lines from one that may begin a message."""

    line_number: int
    lines: list[bytes]


class _Tally(Struct):
    """First occurrence of a failure, and how often it came on each rank."""

    first: Finding
    ranks: Counter[int | None] = field(default_factory=Counter)

    def finding(self) -> Finding:
        ranks = sorted(rank for rank in self.ranks if rank is not None)
        return replace(self.first, occurrences=self.ranks.total(), ranks=tuple(ranks))


def scan(source: Path | str) -> Diagnosis:
    """Known failures of a log: a Path is a file (``-`` is stdin), a str is the log's text.

    Raises UserError where the file cannot be read.
    """
    scanner, damaged = _Scanner(anchors=_anchors()), False
    try:
        for block in read_blocks(source):
            scanner.read(block)
    except DamagedError:
        damaged = True
    return scanner.finish(damaged)


class _Scanner(Struct, kw_only=True):
    """Reads blocks; a block without any anchor costs one search for each and nothing more."""

    anchors: tuple[bytes, ...]
    tallies: dict[str, _Tally] = field(default_factory=dict)
    waiting: deque[_Window] = field(default_factory=deque)
    newlines: int = 0
    unfinished: bool = False

    def read(self, block: bytes) -> None:
        """Open a window at every line with an anchor, feed and settle the open ones."""
        present = [anchor for anchor in self.anchors if anchor in block]
        first_line = self.newlines + 1
        self.newlines += block.count(b"\n")
        self.unfinished = not block.endswith(b"\n")
        if not present and not self.waiting:
            return
        for line_number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), first_line):
            for window in self.waiting:
                window.lines.append(line[:LINE_BYTES])
            if self.waiting and len(self.waiting[0].lines) > WINDOW_LINES:
                _settle(self.waiting.popleft(), self.tallies)
            if starts := [at for anchor in present if (at := line.find(anchor)) >= 0]:
                self.waiting.append(_Window(line_number, [_cut(line, min(starts))]))

    def finish(self, damaged: bool) -> Diagnosis:
        """Settle what is open at the end of the log."""
        for window in self.waiting:
            _settle(window, self.tallies)
        found = sorted(
            (tally.finding() for tally in self.tallies.values()),
            key=lambda one: (one.failure.severity is Severity.WARNING, one.line_number),
        )
        num_lines = self.newlines + self.unfinished
        return Diagnosis(findings=tuple(found), num_lines=num_lines, damaged=damaged)


def _cut(line: bytes, start: int) -> bytes:
    """A long line (progress bars, garbage) from a little before its first anchor."""
    return line if len(line) <= LINE_BYTES else line[max(0, start - 128) : start + LINE_BYTES]


@lru_cache(maxsize=1)
def _ordered() -> tuple[tuple[Template, Failure], ...]:
    """Every template with its failure, the most specific first."""
    pairs = [(t, failure) for failure in load_catalog() for t in failure.templates]
    return tuple(sorted(pairs, key=lambda pair: -pair[0].specificity))


@lru_cache(maxsize=1)
def _anchors() -> tuple[bytes, ...]:
    """The anchors of all templates, without those that another one begins."""
    anchors = {template.anchor for template, _ in _ordered()}
    shortest = [a for a in anchors if not any(a != b and a.startswith(b) for b in anchors)]
    return tuple(anchor.encode() for anchor in sorted(shortest))


def _settle(window: _Window, tallies: dict[str, _Tally]) -> None:
    """Enter the failure that begins on the window's first line, if one does."""
    first, text, rank = _joined(window.lines)
    for template, failure in _ordered():
        if template.anchor not in first:
            continue
        match = template.regex.search(text)
        if match is None or match.start() >= len(first):
            continue
        if failure.id not in tallies:
            tallies[failure.id] = _Tally(
                Finding(
                    failure=failure,
                    line_number=window.line_number,
                    excerpt=_excerpt(text, match),
                    numbers=template.readings(match),
                    rank=rank,
                    occurrences=0,
                    ranks=(),
                )
            )
        tallies[failure.id].ranks[rank] += 1
        return


def _joined(lines: Sequence[bytes]) -> tuple[str, str, int | None]:
    """First line and whole window with single blanks, and the rank of the first line.

    Lines that carry another rank's prefix are left out; ranks write over each other's messages.
    """
    rank, first = _without_prefix(lines[0])
    parts = [first]
    for line in lines[1:]:
        other, text = _without_prefix(line)
        if other is None or other == rank:
            parts.append(text)
    return first, " ".join(part for part in parts if part), rank


def _without_prefix(line: bytes) -> tuple[int | None, str]:
    return clean_line(line.decode("utf-8", errors="replace"))


def _excerpt(text: str, match: re.Match[str]) -> str:
    """The matched text with the exception's name before it."""
    before = _EXCEPTION.search(text, max(0, match.start() - 80), match.start())
    start = before.start() if before else match.start()
    return text[start : match.end()][:EXCERPT_CHARACTERS]
