"""Building blocks of a page: aligned tables, labelled lines, bars, colour; rich does the drawing.

rich is imported when a page is made: machine formats and `import advisor.cli` do without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.table import Table

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 60
LABEL_WIDTH: Final = 13
_HANGING: Final = "  "
_NO_BREAK: Final = "\u00a0"  # textwrap breaks at ASCII white space only
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_WIDEST: Final = 1000  # a table is as wide as its cells; the page keeps it within the screen


class Style(StrEnum):
    """Styles by rich's names; the terminal's own palette decides the shades."""

    BOLD = "bold"
    DIM = "dim"
    CAUTION = "yellow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where a page goes: its width in columns and whether it takes colour."""

    width: int = MAX_WIDTH
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Screen":
        """A terminal gets its own width up to 100 and colour (NO_COLOR: none); a file gets 100."""
        if not stream.isatty():
            return cls()
        from rich.console import Console

        console = Console(file=stream)
        plain = console.no_color or console.color_system is None
        return cls(width=min(max(console.width, MIN_WIDTH), MAX_WIDTH), colour=not plain)

    def paint(self, text: str, style: Style | None) -> str:
        """`text` in `style`, untouched where there is no colour."""
        if not style or not self.colour:
            return text
        from rich.color import ColorSystem
        from rich.style import Style as RichStyle

        return RichStyle.parse(style).render(text, color_system=ColorSystem.STANDARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Head of one table column; numbers stand right, names left."""

    title: str
    left: bool = False


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 2, gap: int = 2
) -> list[str]:
    """Head and rows, every column as wide as its widest cell; a cell may hold several lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="")
    for column in columns:
        table.add_column(
            Text(column.title), justify="left" if column.left else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return [f"{' ' * indent}{line}".rstrip() for line in _rendered(table)]


def _rendered(table: "Table") -> list[str]:
    """Lines of a table as plain text, however wide."""
    from io import StringIO

    from rich.console import Console

    page = StringIO()
    Console(file=page, width=_WIDEST, color_system=None, highlight=False).print(table)
    return page.getvalue().splitlines()


def labelled(label: str, text: str, width: int) -> list[str]:
    """`label` in the margin, `text` wrapped beside it."""
    wrapped = wrap(text, width - LABEL_WIDTH) or [""]
    heads = [label.ljust(LABEL_WIDTH), *[" " * LABEL_WIDTH] * (len(wrapped) - 1)]
    return [(head + line).rstrip() for head, line in zip(heads, wrapped, strict=True)]


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`; words longer than that stay whole.

    Where it is a list with middle dots, its parts stay whole as long as they fit.
    """
    import textwrap

    parts = text.split(" · ")
    if len(parts) > 1 and max(map(len, parts)) < width - 2:
        text = " · ".join(part.replace(" ", _NO_BREAK) for part in parts)
        text = text.replace(" · ", f"{_NO_BREAK}· ")
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def break_spec(spec: str, width: int) -> str:
    """A recompute spec over several lines of a cell: cut behind commas, before +, and behind the
    underscores of a name that is too long by itself."""
    pieces: list[str] = []
    for piece in spec.replace(",", ",\0").replace("+", "\0+").split("\0"):
        fits = len(piece) + len(_HANGING) <= width
        pieces += [piece] if fits else piece.replace("_", "_\0").split("\0")
    lines, line = [], ""
    for piece in pieces:
        if line.strip() and len(line) + len(piece) > width:
            lines.append(line)
            line = _HANGING
        line += piece
    return "\n".join([*lines, line])


def continued(command: str, width: int) -> list[str]:
    """Arguments of a command in lines that a shell reads as one, joined by backslashes."""
    lines = wrap(command, width - 2) or [""]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def bar(value: float, full: float, cells: int) -> str:
    """`value` as a share of `full` in block characters; ``▶`` behind a bar that runs over."""
    eighths = round(value / full * cells * 8) if full > 0 else 0
    if eighths > cells * 8:
        return "█" * cells + "▶"
    whole, rest = divmod(max(eighths, 0), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
