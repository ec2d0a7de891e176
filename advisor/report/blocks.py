"""Blocks that a page is made of: each gives its lines for a width. Prose, lists, margins, tables.

Our own, because start-up counts here: rich takes longer to import and draw a page than the answer
takes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

_LONGEST_LABEL: Final = 40


class Span(NamedTuple):
    """Text of one style: words of ``bold``, ``dim``, ``red`` and ``yellow``; empty for none."""

    text: str
    style: str = ""


Line: TypeAlias = tuple[Span, ...]


class Drawable(Protocol):
    """Anything with lines."""

    def lines(self, width: int) -> list[Line]:
        """Lines for `width` columns."""

    def widest(self, width: int) -> int:
        """Columns that it would use of `width`."""


Block: TypeAlias = Drawable | str
"""A string is prose."""


def lines_of(block: Block, width: int) -> list[Line]:
    """The lines of a block for `width` columns."""
    return Text(block).lines(width) if isinstance(block, str) else block.lines(width)


def _widest(block: Block, width: int) -> int:
    return Text(block).widest(width) if isinstance(block, str) else block.widest(width)


def length(line: Line) -> int:
    """Columns of a line."""
    return sum(len(span.text) for span in line)


class Text(Struct, frozen=True):
    """Prose: it breaks at blanks, and in a word that no line holds. rest: what goes on behind
    `text` in other styles."""

    text: str
    style: str = ""
    rest: tuple[Span, ...] = ()

    def lines(self, width: int) -> list[Line]:
        """As many words in a line as it holds."""
        whole, end, found = self._whole, 0, []
        for line in wrapped(whole, width):
            begin = whole.index(line, end)
            end = begin + len(line)
            found.append(tuple(self._spans(begin, end)))
        return found

    def _spans(self, begin: int, end: int) -> Iterator[Span]:
        """The parts of the text between two places."""
        place = 0
        for text, style in (Span(self.text, self.style), *self.rest):
            part = text[max(begin - place, 0) : max(end - place, 0)]
            place += len(text)
            if part:
                yield Span(part, style)

    @property
    def _whole(self) -> str:
        return self.text + "".join(span.text for span in self.rest)

    def widest(self, width: int) -> int:
        """The longest line of the text."""
        return min(max(map(len, self._whole.split("\n"))), width)


class Fitted(Struct, frozen=True):
    """Lines that depend on the width that they get, and break nowhere else."""

    fit: Callable[[int], Sequence[str]]
    style: str = ""

    def lines(self, width: int) -> list[Line]:
        """The lines for the width at hand."""
        return [(Span(line, self.style),) for line in self.fit(width)]

    def widest(self, width: int) -> int:
        """The longest line for the width at hand."""
        return min(max(map(len, self.fit(width))), width)


class Group(Struct, frozen=True):
    """Blocks below each other."""

    blocks: tuple[Block, ...]

    def lines(self, width: int) -> list[Line]:
        """The lines of one after the other."""
        return [line for block in self.blocks for line in lines_of(block, width)]

    def widest(self, width: int) -> int:
        """The widest block."""
        return max(_widest(block, width) for block in self.blocks)


def group(*blocks: Block) -> Group:
    """Blocks below each other."""
    return Group(blocks)


class Indented(Struct, frozen=True):
    """A block moved to the right."""

    block: Block
    columns: int

    def lines(self, width: int) -> list[Line]:
        """Each line behind its blanks."""
        margin = Span(" " * self.columns)
        return [(margin, *line) for line in lines_of(self.block, width - self.columns)]

    def widest(self, width: int) -> int:
        """Blanks and block."""
        return self.columns + _widest(self.block, width - self.columns)


class Column(Struct, frozen=True, kw_only=True):
    """Head of one table column: numbers stand right, names left; only what may wrap is broken.

    least, most: columns of its width.
    """

    title: str = ""
    left: bool = False
    wrap: bool = False
    least: int = 0
    most: int | None = None

    def width(self, cells: Iterable[Block], room: int) -> int:
        """As wide as its widest cell."""
        widest = max((_widest(cell, room) for cell in (self.title, *cells)), default=0)
        return max(widest if self.most is None else min(widest, self.most), self.least)


class Row(NamedTuple):
    """Cells of a table, the style of those that have none, and what stands below them over the
    whole width."""

    cells: tuple[Block, ...]
    style: str = ""
    below: Block | None = None


class Table(Struct, frozen=True, kw_only=True):
    """Rows below a head, `gap` blanks between the columns, no rules; without a head where no
    column has a title."""

    columns: tuple[Column, ...]
    gap: int = 2
    rows: list[Row] = field(default_factory=list)

    def add_row(self, *cells: Block, style: str = "", below: Block | None = None) -> None:
        """One more row."""
        self.rows.append(Row(cells, style, below))

    def lines(self, width: int) -> list[Line]:
        """Head and rows; a table that is too wide narrows the columns that may wrap."""
        widths = self._widths(width)
        head = Row(tuple(column.title for column in self.columns))
        rows = [head, *self.rows] if any(head.cells) else self.rows
        found: list[Line] = []
        for row in rows:
            found += self._row(row, widths)
            found += lines_of(row.below, width) if row.below is not None else ()
        return found

    def widest(self, width: int) -> int:
        """All columns as wide as their cells."""
        return min(self.natural_width(width), width)

    def natural_width(self, room: int) -> int:
        """Columns that the table takes where nothing is narrowed."""
        return sum(self._natural(room)) + self._gaps

    @property
    def _gaps(self) -> int:
        return self.gap * (len(self.columns) - 1)

    def _natural(self, room: int) -> list[int]:
        cells = zip(*(row.cells for row in self.rows), strict=True) if self.rows else ()
        by_column = list(cells) or [()] * len(self.columns)
        return [
            column.width(cells, room) for column, cells in zip(self.columns, by_column, strict=True)
        ]

    def _widths(self, width: int) -> list[int]:
        """Columns that may wrap give way first, the widest of them; then heads, to their cells."""
        widths = self._natural(width)
        wraps = {index: 1 for index, column in enumerate(self.columns) if column.wrap}
        self._narrow(widths, wraps, width)
        bare = replace(self, columns=tuple(replace(one, title="") for one in self.columns))
        heads = {index: max(least, 1) for index, least in enumerate(bare._natural(width))}
        self._narrow(widths, {i: least for i, least in heads.items() if i not in wraps}, width)
        return widths

    def _narrow(self, widths: list[int], least: Mapping[int, int], width: int) -> None:
        """Take columns off the widest of those that `least` names, until the table fits."""
        while (excess := sum(widths) + self._gaps - width) > 0:
            spare = [index for index in least if widths[index] > least[index]]
            if not spare:
                return
            most = max(widths[index] for index in spare)
            widest = [index for index in spare if widths[index] == most]
            next_one = max((widths[index] for index in spare if widths[index] < most), default=0)
            for index in widest[:excess]:
                floor = max(least[index], next_one)
                widths[index] -= max(1, min(excess // len(widest), most - floor))

    def _row(self, row: Row, widths: Sequence[int]) -> Iterator[Line]:
        cells = [lines_of(cell, width) for cell, width in zip(row.cells, widths, strict=True)]
        for number in range(max(map(len, cells), default=0)):
            spans: list[Span] = []
            for cell, width, column in zip(cells, widths, self.columns, strict=True):
                line = cell[number] if number < len(cell) else ()
                blanks = Span(" " * (width - length(line)), row.style)
                own = [Span(text, style or row.style) for text, style in line]
                spans += [*own, blanks] if column.left else [blanks, *own]
                spans.append(Span(" " * self.gap, row.style))
            yield tuple(spans[:-1])


def table(columns: Iterable[Column], *, gap: int = 2) -> Table:
    """An empty table, `gap` blanks between its columns."""
    return Table(columns=tuple(columns), gap=gap)


def beside(rows: Iterable[tuple[str, Block]], *, gap: int = 2, margin: int = 0) -> Table:
    """A label in the margin, at least `margin` columns wide; the text wrapped beside it."""
    label = Column(left=True, wrap=True, least=margin, most=_LONGEST_LABEL)
    found = table((label, Column(left=True, wrap=True)), gap=gap)
    for row in rows:
        found.add_row(*row)
    return found


def wrapped(text: str, width: int) -> list[str]:
    """Prose in lines of at most `width`; blanks where it begins stay."""
    return [line for part in text.split("\n") for line in _wrapped(part, max(width, 1))]


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = text[: len(text) - len(text.lstrip())]
    for piece in _WORDS.findall(text):
        word = piece.rstrip()
        if len(line) + len(word) <= width:
            line += piece
            continue
        if line:
            yield line.rstrip()
        while len(word) > width:
            yield word[:width]
            piece, word = piece[width:], word[width:]
        line = piece
    yield line.rstrip()


_WORDS: Final = re.compile(r"\S+\s*")
