"""Streams a log and finds known failures: one pass, a few lines in memory, any bytes."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.lines import DamagedError, clean_line, read_pieces
from advisor.diagnose.catalog import Failure, Reading, Severity, Template, load_catalog
from advisor.diagnose.story import Around, Story, frames

WINDOW_LINES: Final = 24  # lines after the first that a message may span, other ranks included
BLOCK_BYTES: Final = 1 << 20
LINE_BYTES: Final = 1 << 13  # a longer line (progress bars, garbage) is cut around its message
EXCERPT_CHARACTERS: Final = 400
_WENT_ON: Final = 2  # steps after a failure: one may be another rank's line, printed late

_EXCEPTION: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Warning): (?:[\w.]+: )?$")


class Finding(Struct, frozen=True, kw_only=True):
    """A failure at its first occurrence.

    line_number: 1-based; rank: as the launcher's prefix prints it, None without a prefix.
    numbers: what the message says, by name. occurrences and ranks cover the whole log.
    message: all of the window from the text on; frames: the traceback, innermost first, as
    ``path in function: source``; step: the last one reported before; went_on: steps came after its
    last occurrence, so it was caught. The first occurrence is that after the last such steps. These
    four are read of what ran out of memory alone.
    """

    failure: Failure
    line_number: int
    excerpt: str
    numbers: tuple[Reading, ...]
    rank: int | None
    occurrences: int
    ranks: tuple[int, ...]
    message: str = ""
    frames: tuple[str, ...] = ()
    step: int | None = None
    went_on: bool = False

    @property
    def severity(self) -> Severity:
        """What the program caught did not end the run."""
        return Severity.WARNING if self.went_on else self.failure.severity

    def number(self, name: str) -> float | None:
        """The value of one reading, or None where the text does not have it."""
        return next((item.value for item in self.numbers if item.name == name), None)


class Diagnosis(Struct, frozen=True, kw_only=True):
    """All findings of one log, errors before warnings and then in its order. damaged: what follows
    cannot be decompressed. head: its first bytes, where it names its job."""

    findings: tuple[Finding, ...]
    num_lines: int
    damaged: bool = False
    head: str = ""


class _Window(Struct):
    """Lines from one that may begin a message."""

    line_number: int
    lines: list[bytes]
    around: Around = field(default_factory=Around)


class _Tally(Struct):
    """First occurrence of a failure, and how often it came on each rank."""

    first: Finding
    passed: int = 0  # steps before the last occurrence
    ranks: Counter[int | None] = field(default_factory=Counter)

    def waits(self, passed: int) -> bool:
        """Whether memory ran out, and too few steps came after it."""
        return bool(self.first.failure.memory) and passed - self.passed < _WENT_ON

    def finding(self, passed: int) -> Finding:
        ranks = sorted(rank for rank in self.ranks if rank is not None)
        return replace(
            self.first,
            occurrences=self.ranks.total(),
            ranks=tuple(ranks),
            went_on=bool(self.first.failure.memory) and not self.waits(passed),
        )


def scan(source: Path | str) -> Diagnosis:
    """Known failures of a log: a Path is a file (``-`` is stdin), a str is the log's text.

    Raises UserError where the file cannot be read.
    """
    scanner, damaged = _Scanner(anchors=_anchors()), False
    try:
        for block in _blocks(read_pieces(source, BLOCK_BYTES)):
            scanner.read(block)
    except DamagedError:
        damaged = True
    return scanner.finish(damaged)


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines, about a piece at a time; a line longer than a block comes in pieces."""
    rest = b""
    try:
        for piece in pieces:
            whole = rest + piece
            end = whole.rfind(b"\n") + 1 or whole.rfind(b"\r") + 1
            if not end and len(whole) >= BLOCK_BYTES:
                end = len(whole)
            rest = whole[end:]
            if end:
                yield whole[:end]
    except DamagedError:
        yield rest
        raise
    if rest:
        yield rest


class _Scanner(Struct, kw_only=True):
    """Reads blocks; a block without any anchor costs one search for each and nothing more."""

    anchors: tuple[bytes, ...]
    tallies: dict[str, _Tally] = field(default_factory=dict)
    waiting: deque[_Window] = field(default_factory=deque)
    newlines: int = 0
    unfinished: bool = False
    story: Story = field(default_factory=Story)

    def read(self, block: bytes) -> None:
        """Open a window at every line with an anchor, feed and settle the open ones."""
        present = [anchor for anchor in self.anchors if anchor in block]
        first_line = self.newlines + 1
        self.newlines += block.count(b"\n")
        self.unfinished = not block.endswith(b"\n")
        waits = any(one.waits(self.story.passed) for one in self.tallies.values())
        self.story.take(block, waits=waits or bool(self.waiting))
        if not present and not self.waiting:
            return
        for index, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
            for window in self.waiting:
                window.lines.append(line[:LINE_BYTES])
            if self.waiting and len(self.waiting[0].lines) > WINDOW_LINES:
                _settle(self.waiting.popleft(), self.tallies)
            if starts := [at for anchor in present if (at := line.find(anchor)) >= 0]:
                lines, around = [_cut(line, min(starts))], self.story.around(index)
                self.waiting.append(_Window(first_line + index, lines, around))

    def finish(self, damaged: bool) -> Diagnosis:
        """Settle what is open at the end of the log."""
        for window in self.waiting:
            _settle(window, self.tallies)
        found = sorted(
            (tally.finding(self.story.passed) for tally in self.tallies.values()),
            key=lambda one: (one.severity is Severity.WARNING, one.line_number),
        )
        return Diagnosis(
            findings=tuple(found),
            num_lines=self.newlines + self.unfinished,
            damaged=damaged,
            head=self.story.head.decode("utf-8", "replace"),
        )


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
        tally = tallies.get(failure.id)
        if tally is None or (failure.memory and window.around.passed - tally.passed >= _WENT_ON):
            finding = Finding(
                failure=failure,
                line_number=window.line_number,
                excerpt=_excerpt(text, match),
                numbers=template.readings(match),
                rank=rank,
                occurrences=0,
                ranks=(),
                message=text[match.start() :] if failure.memory else "",
                frames=frames(window.around.above, window.lines[0]),
                step=window.around.step,
            )
            tally = tallies[failure.id] = _Tally(finding, ranks=tally.ranks if tally else Counter())
        tally.ranks[rank] += 1
        tally.passed = max(tally.passed, window.around.passed)
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
