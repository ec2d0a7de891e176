"""What every page is made of, on top of rich: the console, plain tables, labelled text.

Importing this module imports rich, so only what prints a page may do it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, Final, TextIO

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MAX_WIDTH: Final = 100
"""Columns of a page that goes to a file or into a pipe."""
_NARROWEST, _WIDEST = 60, 120  # of a page on a terminal
_UNBOUNDED: Final = 10_000


def console_on(stream: TextIO) -> Console:
    """A terminal gets its own width, from 60 to 120 columns, and colour unless NO_COLOR is set or
    it is a dumb one; a file gets plain text of 100 columns."""
    plain = bool(os.environ.get("NO_COLOR"))
    console = _console(file=stream, color_system=None if plain else "auto")
    on_screen = min(max(console.width, _NARROWEST), _WIDEST)
    console.width = on_screen if console.is_terminal else MAX_WIDTH
    return console


def _console(**settings: Any) -> Console:
    """A console that prints text as it is: names may hold brackets and colons."""
    return Console(markup=False, emoji=False, highlight=False, **settings)


def printed(content: RenderableType, console: Console) -> str:
    """What `console` would show, without blanks at the ends of lines, with one final newline.

    Nothing is written: the command line does that, and knows what to do where it fails.
    """
    console.file = shown = StringIO()
    console.print(content, crop=False)
    return "\n".join(line.rstrip() for line in shown.getvalue().rstrip("\n").split("\n")) + "\n"


def plain_lines(content: RenderableType, width: int = MAX_WIDTH) -> list[str]:
    """The lines of `content` as plain text of `width` columns."""
    console = _console(width=width, color_system=None, _environ={})
    return printed(content, console).removesuffix("\n").split("\n")


class Fitted(Struct, frozen=True):
    """Lines that depend on the width that they get, and break nowhere else."""

    lines: Callable[[int], Sequence[str]]
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines for the width at hand."""
        text = "\n".join(self.lines(options.max_width))
        yield Text(text, self.style, no_wrap=True, overflow="ignore")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The longest line for the width at hand."""
        widest = max(map(len, self.lines(options.max_width)))
        return Measurement(widest, widest).with_maximum(options.max_width)


class Column(Struct, frozen=True, kw_only=True):
    """Head of one table column: numbers stand right, names left; only what may wrap is broken."""

    title: str
    left: bool = False
    wrap: bool = False


def table(columns: Iterable[Column], *, gap: int = 2) -> Table:
    """An empty table without rules, `gap` blanks between its columns."""
    found = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="")
    for column in columns:
        found.add_column(
            column.title,
            justify="left" if column.left else "right",
            no_wrap=not column.wrap,
            overflow="fold",
        )
    return found


def beside(rows: Iterable[tuple[str, RenderableType]], *, gap: int = 2, margin: int = 0) -> Table:
    """A label in the margin, at least `margin` columns wide; the text wrapped beside it."""
    found = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    found.add_column(min_width=margin, max_width=_LONGEST_LABEL)
    found.add_column(overflow="fold")
    for label, text in rows:
        found.add_row(label, text)
    return found


_LONGEST_LABEL: Final = 40


def indented(content: RenderableType, columns: int) -> Padding:
    """`content` moved to the right."""
    return Padding(content, (0, 0, 0, columns))


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 2, gap: int = 2
) -> list[str]:
    """Head and rows as plain lines, every column as wide as its widest cell."""
    found = table(columns, gap=gap)
    for row in rows:
        found.add_row(*row)
    return [(" " * indent + line).rstrip() for line in plain_lines(found, _UNBOUNDED)]


def wrap(text: str, width: int) -> list[str]:
    """Prose in lines of at most `width`."""
    return plain_lines(Text(text), width) if text else []
