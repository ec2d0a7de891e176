"""Building blocks of a plain-text page: aligned tables, labelled lines, bars, colour.

Written out rather than taken from rich: importing rich costs 40 ms, a sixth of the time that a
whole `advise` process may take, and a page of 100 columns needs none of it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TextIO

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 60
LABEL_WIDTH: Final = 13
_HANGING: Final = "  "
_NO_BREAK: Final = "\u00a0"  # textwrap breaks at ASCII white space only
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


class Style(StrEnum):
    """ANSI sequences; the terminal's own palette decides the shades."""

    BOLD = "\033[1m"
    DIM = "\033[2m"
    CAUTION = "\033[33m"
    RESET = "\033[0m"


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
        width = min(max(_terminal_columns(stream), MIN_WIDTH), MAX_WIDTH)
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(width=width, colour=not plain)

    def paint(self, text: str, style: Style | None) -> str:
        """`text` in `style`, untouched where there is no colour."""
        return f"{style}{text}{Style.RESET}" if style and self.colour else text


def _terminal_columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or MAX_WIDTH
    except OSError:
        return MAX_WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Head of one table column; numbers stand right, names left."""

    title: str
    left: bool = False

    def fit(self, text: str, width: int) -> str:
        """`text` padded to `width`."""
        return text.ljust(width) if self.left else text.rjust(width)


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 2, gap: int = 2
) -> list[str]:
    """Head and rows, every column as wide as its widest cell; a cell may hold several lines."""
    widths = [
        max(len(column.title), *(_cell_width(row[i]) for row in rows), 0)
        for i, column in enumerate(columns)
    ]
    lines = []
    for cells in ([column.title for column in columns], *rows):
        split = [cell.split("\n") for cell in cells]
        for part in range(max(len(parts) for parts in split)):
            texts = [parts[part] if part < len(parts) else "" for parts in split]
            fitted = (c.fit(t, w) for c, t, w in zip(columns, texts, widths, strict=True))
            lines.append((" " * indent + (" " * gap).join(fitted)).rstrip())
    return lines


def _cell_width(cell: str) -> int:
    """Columns of the widest line of a cell."""
    return max(len(line) for line in cell.split("\n"))


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
