"""Blocks that a page is made of: each gives its lines for a width. Prose, lists, margins, tables;
and where lines break whose pieces must stay whole: settings, commands, lists with middle dots.

Our own, because start-up counts here: rich takes longer to import and draw a page than the answer
takes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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

    def narrowest(self) -> int:
        """Columns below which a word or a name is broken."""


Block: TypeAlias = Drawable | str
"""A string is prose."""


def drawable(block: Block) -> Drawable:
    """The block; of a string its prose."""
    return Text(block) if isinstance(block, str) else block


def length(line: Line) -> int:
    """Columns of a line."""
    return sum(len(span.text) for span in line)


class Text(Struct, frozen=True):
    """Prose: it breaks at blanks, and in a word that no line holds, except ``path:line:column``.
    rest: what goes on after `text` in other styles."""

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

    def narrowest(self) -> int:
        """The longest word."""
        return max(map(len, self._whole.split()), default=0)


class Fitted(Struct, frozen=True):
    """Lines that depend on the width that they get, and break nowhere else; a name among them is
    `least` columns long."""

    fit: Callable[[int], Sequence[str]]
    style: str = ""
    least: int = 0

    def lines(self, width: int) -> list[Line]:
        """The lines for the width at hand."""
        return [(Span(line, self.style),) for line in self.fit(width)]

    def widest(self, width: int) -> int:
        """The longest line for the width at hand."""
        return min(max(map(len, self.fit(width))), width)

    def narrowest(self) -> int:
        """The longest of the names, or what the lines never break."""
        return self.least or max(map(len, self.fit(1)))


def verbatim(*lines: str) -> Fitted:
    """Lines to copy, which break nowhere."""
    return Fitted(lambda _: lines)


class BlockGroup(Struct, frozen=True):
    """Blocks below each other."""

    blocks: tuple[Block, ...]

    def lines(self, width: int) -> list[Line]:
        """The lines of one after the other."""
        return [line for block in self.blocks for line in drawable(block).lines(width)]

    def widest(self, width: int) -> int:
        """The widest block."""
        return max(drawable(block).widest(width) for block in self.blocks)

    def narrowest(self) -> int:
        """That of the widest block."""
        return max(drawable(block).narrowest() for block in self.blocks)


def group(*blocks: Block) -> BlockGroup:
    """Blocks below each other."""
    return BlockGroup(blocks)


class Indented(Struct, frozen=True):
    """A block moved to the right."""

    block: Block
    columns: int

    def lines(self, width: int) -> list[Line]:
        """Each line after its blanks."""
        margin = Span(" " * self.columns)
        return [(margin, *line) for line in drawable(self.block).lines(width - self.columns)]

    def widest(self, width: int) -> int:
        """Blanks and block."""
        return self.columns + drawable(self.block).widest(width - self.columns)

    def narrowest(self) -> int:
        """Blanks and block."""
        return self.columns + drawable(self.block).narrowest()


class Column(Struct, frozen=True, kw_only=True):
    """Head of one table column: numbers stand right, names left; only what may wrap is broken.

    least, most: columns of its width. above: where the table is too wide, its cells stand on lines
    of their own above their rows. spare: where it is still too wide, columns that have a number
    here are left out, the lowest first.
    """

    title: str = ""
    left: bool = False
    wrap: bool = False
    least: int = 0
    most: int | None = None
    above: bool = False
    spare: int = 0

    def width(self, cells: Iterable[Block], room: int) -> int:
        """As wide as its widest cell."""
        return self._within(max(drawable(cell).widest(room) for cell in (self.title, *cells)))

    def narrowest(self, cells: Sequence[Block], room: int) -> int:
        """As narrow as its words allow; cells that do not wrap as wide as they are."""
        parts = (one.narrowest() if self.wrap else one.widest(room) for one in map(drawable, cells))
        return self._within(max((Text(self.title).narrowest(), *parts)))

    def _within(self, width: int) -> int:
        return max(width if self.most is None else min(width, self.most), self.least)


class TableRow(NamedTuple):
    """Cells of a table, the style of those that have none, and what stands above and below them
    over the whole width."""

    cells: tuple[Block, ...]
    style: str = ""
    below: Block | None = None
    above: Block | None = None


class Table(Struct, frozen=True, kw_only=True):
    """Rows below a head, `gap` blanks between the columns, no rules; without a head where no
    column has a title."""

    columns: tuple[Column, ...]
    gap: int = 2
    rows: list[TableRow] = field(default_factory=list)

    def add_row(self, *cells: Block, style: str = "", below: Block | None = None) -> None:
        """One more row."""
        self.rows.append(TableRow(cells, style, below))

    def lines(self, width: int) -> list[Line]:
        """Head and rows, in the first form that fits."""
        form = self.fitting(width)
        widths = form._widths(width)
        head = TableRow(tuple(column.title for column in form.columns))
        rows = [head, *form.rows] if any(head.cells) else form.rows
        return [line for row in rows for line in _row_lines(row, form, widths, width)]

    def widest(self, width: int) -> int:
        """All columns as wide as their cells."""
        return min(self.natural_width(width), width)

    def narrowest(self) -> int:
        """All columns as narrow as their words allow."""
        cells = zip(self.columns, self._by_column(), strict=True)
        return sum(column.narrowest(own, _ROOM) for column, own in cells) + self._gaps

    def natural_width(self, room: int) -> int:
        """Columns that the table takes where nothing is narrowed."""
        return sum(self._natural(room)) + self._gaps

    def fitting(self, width: int) -> "Table":
        """The table as it fits: with all columns, with one above the rows, with some left out."""
        form = self
        for form in self._forms():
            if form.narrowest() <= width:
                break
        return form

    def left_out(self, width: int) -> list[str]:
        """Titles of the columns that do not fit."""
        kept = self.fitting(width).columns
        return [one.title for one in self.columns if one not in kept and not one.above]

    def _forms(self) -> "Iterator[Table]":
        yield self
        form = self
        for index, column in enumerate(self.columns):
            if column.above:
                form = self._without(index, above=True)
                yield form
        for spare in sorted(filter(None, (column.spare for column in form.columns))):
            numbers = [column.spare for column in form.columns]
            form = form._without(numbers.index(spare))
            yield form

    def _without(self, index: int, *, above: bool = False) -> "Table":
        """The table less a column, whose cells stand `above` the rows, which hang, or nowhere."""
        margin = ("",) if above else ()
        columns = self.columns[:index] + self.columns[index + 1 :]
        rows = [
            row._replace(
                cells=margin + row.cells[:index] + row.cells[index + 1 :],
                above=row.cells[index] if above else row.above,
            )
            for row in self.rows
        ]
        return replace(self, columns=(Column(),) * above + columns, rows=rows)

    @property
    def _gaps(self) -> int:
        return self.gap * (len(self.columns) - 1)

    def _by_column(self) -> list[tuple[Block, ...]]:
        cells = zip(*(row.cells for row in self.rows), strict=True) if self.rows else ()
        return list(cells) or [()] * len(self.columns)

    def _natural(self, room: int) -> list[int]:
        cells = zip(self.columns, self._by_column(), strict=True)
        return [column.width(own, room) for column, own in cells]

    def _widths(self, width: int) -> list[int]:
        """Columns that may wrap give way first, the widest of them, then heads, to their words;
        names are broken last."""
        widths = self._natural(width)
        cells = zip(self.columns, self._by_column(), strict=True)
        least = [column.narrowest(own, width) for column, own in cells]
        wraps = [index for index, column in enumerate(self.columns) if column.wrap]
        self._narrow(widths, {index: least[index] for index in wraps}, width)
        self._narrow(widths, dict(enumerate(least)), width)
        self._narrow(widths, dict.fromkeys(wraps, 1), width)
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


def _row_lines(row: TableRow, form: Table, widths: Sequence[int], width: int) -> Iterator[Line]:
    """A row between what stands above and below it."""
    if row.above is not None:
        yield from drawable(row.above).lines(width)
    cells = [drawable(cell).lines(room) for cell, room in zip(row.cells, widths, strict=True)]
    for number in range(max(map(len, cells), default=0)):
        spans: list[Span] = []
        for cell, room, column in zip(cells, widths, form.columns, strict=True):
            line = cell[number] if number < len(cell) else ()
            blanks = Span(" " * (room - length(line)), row.style)
            own = [Span(text, style or row.style) for text, style in line]
            spans += [*own, blanks] if column.left else [blanks, *own]
            spans.append(Span(" " * form.gap, row.style))
        yield tuple(spans[:-1])
    if row.below is not None:
        yield from drawable(row.below).lines(width)


_ROOM: Final = 10_000
"""Columns that no cell fills."""


def table(columns: Iterable[Column], *, gap: int = 2) -> Table:
    """An empty table, `gap` blanks between its columns."""
    return Table(columns=tuple(columns), gap=gap)


def labelled_rows(rows: Iterable[tuple[str, Block]], *, gap: int = 2, margin: int = 0) -> Table:
    """A label in the margin, at least `margin` columns wide; the text wrapped next to it."""
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
    for piece in _pieces(text, width):
        word = piece.rstrip()
        if len(line) + len(word) <= width:
            line += piece
            continue
        if line:
            yield line.rstrip()
        while len(word) > width and not re.fullmatch(_LOCATION, word):
            joint = re.match(_JOINT, word[:width])
            cut = joint.end() if joint else width
            yield word[:cut]
            piece, word = piece[cut:], word[cut:]
        line = piece
    yield line.rstrip()


def _pieces(text: str, width: int) -> Iterator[str]:
    """Words with the blanks after them; a number and its unit are one where a line holds both."""
    for piece in _QUANTITIES.findall(text):
        yield from [piece] if len(piece.rstrip()) <= width else _WORDS.findall(piece)


_WORDS: Final = re.compile(r"\S+\s*")
_QUANTITIES: Final = re.compile(r"\S*\d (?:%|[KMG]i?B|m?s)(?!\w)\S*\s*|\S+\s*")
_LOCATION: Final = r"\S+:\d+:\d+:?|\S*/\S+:(\d+:?)?"
"""``path:line:column`` and the like: it is clicked on, and is never broken."""
_JOINT: Final = r".*[/_.,=:+-]"
"""Where a word may break that no line holds."""


_HANGING = "  "


def packed(
    pieces: Sequence[str], width: int, *, glue: str = "", end: str = "", hanging: str = ""
) -> list[str]:
    """`pieces` in as few lines of at most `width` as they need; one that is longer gets its own.

    glue stands between the pieces of a line, end after a line that goes on, hanging before the
    second line and those that follow.
    """
    lines: list[str] = []
    line = ""
    for index, piece in enumerate(pieces):
        longer = f"{line}{glue}{piece}" if line else piece
        if line and len(longer) > width - (len(end) if index + 1 < len(pieces) else 0):
            lines.append(line + end)
            line = hanging + piece
        else:
            line = longer
    return [*lines, line]


def hanging(text: str, width: int, columns: int) -> list[str]:
    """Prose whose second line and those that follow stand `columns` to the right."""
    first = wrapped(text, width)[0]
    rest = text[len(first) :].strip()
    return [first, *(" " * columns + line for line in wrapped(rest, width - columns) if rest)]


def spec_lines(spec: str, width: int) -> list[str]:
    """A recompute spec, cut after commas, before +, and within a name that is too long by itself
    after its underscores, slashes and colons."""
    pieces: list[str] = []
    for piece in spec.replace(",", ",\0").replace("+", "\0+").split("\0"):
        fits = len(piece) + len(_HANGING) <= width
        pieces += [piece] if fits else re.sub("[_/:]", "\\g<0>\0", piece).split("\0")
    return packed(pieces, width, hanging=_HANGING)


def spec_cell(spec: str) -> Fitted:
    """A recompute spec that breaks in a name only where no line holds it."""
    parts = spec.replace(",", ", ").replace("+", " +").split()
    return Fitted(partial(spec_lines, spec), least=max(map(len, parts), default=0) + len(_HANGING))


def command_lines(command: str, width: int, *, hanging: str = "") -> list[str]:
    """Arguments in lines that a shell reads as one; a flag and its values stay together."""
    groups: list[str] = []
    for word in command.split():
        before = groups[-1] if groups else ""
        begins = word.startswith("-") or ("=" in word and " " in before)
        if before.startswith("-") and not begins:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    return packed(groups, width, glue=" ", end=" \\", hanging=hanging)


def dotted_lines(parts: Sequence[str], width: int) -> list[str]:
    """``a · b ·`` and ``c`` below it: parts stay whole, except one that no line holds, which
    breaks at its blanks, and a word of it after ``|``."""
    return [
        part
        for line in packed(parts, width, glue=" · ", end=_END)
        for part in ([line] if len(line) <= width else _broken(line, width))
    ]


def _broken(line: str, width: int) -> list[str]:
    """A part that no line holds; what separates it from the next stands after its last word."""
    part = line.removesuffix(_END)
    *words, last = part.split(" ")
    pieces = [
        piece
        for word in (*(f"{word} " for word in words), last + line[len(part) :])
        for piece in ([word] if len(word) <= width else word.replace("|", "|\0").split("\0"))
    ]
    return [found.rstrip() for found in packed(pieces, width)]


_END: Final = " ·"
