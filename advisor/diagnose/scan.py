"""Streams a log and finds known failures: one pass, a few lines in memory, any bytes."""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.lines import DamagedError, clean_line, read_blocks
from advisor.diagnose.catalog import PLACEHOLDER, Failure, Reading, Template, load_catalog, reading
from advisor.diagnose.story import FOLDED, Around, Story, frames

WINDOW_LINES: Final = 24  # lines after the first that a message may span, other ranks included
LINE_BYTES: Final = 1 << 13  # a longer line (progress bars, garbage) is cut around its message
EXCERPT_CHARACTERS: Final = 400
_WENT_ON: Final = 2  # steps after a failure: one may be another rank's line, printed late
_NEAR: Final = 12  # lines from a frame to the exception, or to the next frame
_WHOLE_WORD: Final = re.compile(rb"(?<=\W)\w+(?=\W)")
_WORDS: Final = bytes(c if _WHOLE_WORD.match(b" %c " % c, 1) else 32 for c in range(256))
_EXCEPTION: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Warning): .*$")


_Anchor = tuple[bytes, bytes, bytes]
"""What a text has on its first line; the same with all digits alike; a whole word of it, if any."""


class Finding(Struct, frozen=True, kw_only=True):
    """A failure at its first occurrence; occurrences, ranks and by_rank cover the whole log.

    line_number: 1-based; rank: by the launcher's prefix or the message. by_rank: what each rank
    said first under each name. message: all of the window, where memory ran out. frames: innermost
    first, as ``path in function: source``; step: the last one before; went_on: steps came after its
    last occurrence, so it was caught, and the first one is that after the last such.
    """

    failure: Failure
    line_number: int
    excerpt: str
    numbers: tuple[Reading, ...]
    rank: int | None
    occurrences: int = 0
    ranks: tuple[int, ...] = ()
    message: str = ""
    frames: tuple[str, ...] = ()
    step: int | None = None
    went_on: bool = False
    by_rank: Mapping[int, Mapping[str, Reading]] = {}

    @property
    def severity(self) -> str:
        """What the program caught did not end the run."""
        return "warning" if self.went_on else self.failure.severity


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Findings of a log: errors, then those that another error causes, then warnings. damaged: what
    follows cannot be decompressed. head: its first bytes, where it names its job."""

    findings: tuple[Finding, ...]
    num_lines: int
    damaged: bool = False
    head: str = ""


class _Window(Struct):
    """Lines from one that may begin a message."""

    line_number: int
    lines: list[bytes]
    around: Around
    anchors: list[bytes] = field(default_factory=list)


class _Tally(Struct):
    """First occurrence of a failure, how often it came on each rank, and what each said."""

    first: Finding
    passed: int = 0  # steps before the last occurrence
    ranks: Counter[int | None] = field(default_factory=Counter)
    said: dict[int, dict[str, Reading]] = field(default_factory=dict)

    def waits(self, passed: int) -> bool:
        """Whether it ends a run, and too few steps came after it."""
        return self.first.failure.severity == "error" and passed - self.passed < _WENT_ON

    def finding(self, passed: int) -> Finding:
        return replace(
            self.first,
            failure=self.first.failure.known,
            occurrences=self.ranks.total(),
            ranks=tuple(sorted(rank for rank in self.ranks if rank is not None)),
            went_on=self.waits(self.passed) and not self.waits(passed),
            by_rank=self.said,
        )


def scan(source: Path | str) -> Diagnosis:
    """Known failures of a log: a Path is a file (``-`` is stdin), a str is the log's text.
    UserError where the file cannot be read."""
    scanner, damaged = _Scanner(anchors=_anchors()), False
    try:
        for block in read_blocks(source):
            scanner.read(block)
    except DamagedError:
        damaged = True
    return scanner.finish(damaged)


class _Scanner(Struct, kw_only=True):
    """Reads blocks; one without any anchor costs a set of its words, and nothing more."""

    anchors: tuple[_Anchor, ...]
    tallies: dict[str, _Tally] = field(default_factory=dict)
    covered: dict[int | None, int] = field(default_factory=dict)
    waiting: deque[_Window] = field(default_factory=deque)
    newlines: int = 0
    unfinished: bool = False
    story: Story = field(default_factory=Story)

    def read(self, block: bytes) -> None:
        """Open a window at every line with an anchor, feed and settle the open ones."""
        present = _present(self.anchors, block)
        first_line = self.newlines + 1
        self.newlines += block.count(b"\n")
        self.unfinished = not block.endswith(b"\n")
        waits = any(one.waits(self.story.passed) for one in self.tallies.values())
        self.story.take(block, watches=waits or bool(self.waiting or present))
        if not present and not self.waiting:
            return
        lines = block.removesuffix(b"\n").split(b"\n")
        for window in self.waiting:
            wanting = WINDOW_LINES + 1 - len(window.lines)
            window.lines += [line[:LINE_BYTES] for line in lines[:wanting]]
        numbered = list(enumerate(lines))
        hits = ((i, at, a) for a in present for i, line in numbered if (at := line.find(a)) >= 0)
        for index, at, anchor in sorted(hits):
            if not self.waiting or self.waiting[-1].line_number != first_line + index:
                around, cut = self.story.around(index), lines[index]
                if len(cut) > LINE_BYTES:
                    cut = cut[max(0, at - 128) : at + LINE_BYTES]
                more = (line[:LINE_BYTES] for line in lines[index + 1 : index + 1 + WINDOW_LINES])
                self.waiting.append(_Window(first_line + index, [cut, *more], around))
            self.waiting[-1].anchors.append(anchor)
        while self.waiting and len(self.waiting[0].lines) > WINDOW_LINES:
            self.settle(self.waiting.popleft())

    def settle(self, window: _Window) -> None:
        """Enter the failure that begins on the first line, unless an earlier one goes on there."""
        first, text, rank, ends = _joined(window.lines)
        if window.line_number <= self.covered.get(rank, 0):
            return
        for _, template, failure in sorted(one for a in window.anchors for one in _templates()[a]):
            match = template.regex.search(text)
            if match is None or match.start() >= len(first):
                continue
            around, key, end = window.around, failure.id, match.end()
            if failure.unlisted:
                key, end = match[1], ends[-1][1] if first[-1] == ":" else len(first)
                rest, near = first[match.end() :], b"".join(around.above[-_NEAR:])
                last = rest[1:] and len(window.lines) <= WINDOW_LINES and b"ignored in" not in near
                raised = last or frames(around.above, window.lines[0], _NEAR)
                if not raised or rest[:1] not in ("", ":"):
                    return
            covers = next(line for line, at in ends if at >= match.end())
            self.covered[rank] = window.line_number + covers
            readings = {name: reading(name, said) for name, said in match.groupdict().items()}
            if rank is None and "rank" in readings and (said := readings["rank"].value) is not None:
                rank = int(said)
            tally = self.tallies.get(key)
            if tally is None or tally.finding(around.passed).went_on:
                begins = max(0, match.start() - 200)
                name = _EXCEPTION.search(text, begins, match.start()) or match
                finding = Finding(
                    failure=failure,
                    line_number=window.line_number,
                    excerpt=text[name.start() : end][:EXCERPT_CHARACTERS],
                    numbers=tuple(readings.values()),
                    rank=rank,
                    message=text if failure.memory else "",
                    frames=frames(around.above, window.lines[0]),
                    step=around.step,
                )
                ranks = tally.ranks if tally else Counter[int | None]()
                tally = self.tallies[key] = _Tally(finding, ranks=ranks)
            tally.ranks[rank] += 1
            tally.passed = max(tally.passed, around.passed)
            if rank is not None:
                tally.said[rank] = readings | tally.said.get(rank, {})
            return

    def finish(self, damaged: bool) -> Diagnosis:
        """Settle what is open at the end of the log."""
        for window in self.waiting:
            self.settle(window)
        found = [tally.finding(self.story.passed) for tally in self.tallies.values()]
        causes = [o for o in found if not (o.failure.follows or o.severity == "warning")]
        listed = any(not one.failure.unlisted for one in causes)
        found = [o for o in found if not o.failure.unlisted or (o in causes and not listed)]
        found.sort(key=lambda o: (o.severity == "warning", o.failure.follows, o.line_number))
        return Diagnosis(
            findings=tuple(found),
            num_lines=self.newlines + self.unfinished,
            damaged=damaged,
            head=self.story.head.decode("utf-8", "replace"),
        )


def _present(anchors: Sequence[_Anchor], block: bytes) -> list[bytes]:
    """The anchors in a block. Of lines that differ in their numbers alone one is looked at."""
    lines = b"\n".join(set(block.translate(FOLDED).split(b"\n")))
    words = set(lines.translate(_WORDS).split())
    able = (one for one in anchors if not one[2] or one[2] in words)
    likely = [text for text, alike, _ in able if alike in lines]
    return [text for text in likely if text in block]


@cache
def _templates() -> Mapping[bytes, Sequence[tuple[int, Template, Failure]]]:
    """Every template by its anchor, with its place: the most specific first, general ones last."""
    pairs = [(t, failure) for failure in load_catalog() for t in failure.templates]
    pairs.sort(key=lambda pair: (pair[1].general, -len(PLACEHOLDER.sub("", pair[0].text))))
    found = defaultdict[bytes, list[tuple[int, Template, Failure]]](list)
    for place, pair in enumerate(pairs):
        found[pair[0].anchor.encode()].append((place, *pair))
    return found


@cache
def _anchors() -> tuple[_Anchor, ...]:
    """The anchors of all templates, each with its longest word that the log has as a whole."""
    anchors = {
        a: all(t.text.startswith(t.anchor) for _, t, _ in s) for a, s in _templates().items()
    }
    folded = [(text, text.translate(FOLDED), b" " * begins) for text, begins in anchors.items()]
    return tuple(
        (text, alike, max(_WHOLE_WORD.findall(before + alike), key=len, default=b""))
        for text, alike, before in folded
    )


_cleaned = lru_cache(64)(clean_line)  # a line stands in the windows of several before it


def _joined(lines: Sequence[bytes]) -> tuple[str, str, int | None, list[tuple[int, int]]]:
    """First line and whole window with single blanks, the rank of the first line, and where each
    line ends in the whole; without the lines of other ranks, which write between."""
    rank, first = clean_line(lines[0])
    parts, ends = [first], [(0, len(first))]
    for number, line in enumerate(lines[1:], 1):
        other, text = _cleaned(line)
        if text and (other is None or other == rank):
            parts.append(text)
            ends.append((number, ends[-1][1] + 1 + len(text)))
    return first, " ".join(parts), rank, ends
