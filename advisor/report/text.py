"""Pages as text: on a terminal with its width and colours, in a file plain."""

import os
import sys
from collections.abc import Mapping
from io import StringIO
from typing import Final, NamedTuple, TextIO

from advisor.report.blocks import Block, Line, drawable

MAX_WIDTH: Final = 100
"""Columns of a page that goes to a file or into a pipe, unless COLUMNS says another number."""
_NARROWEST, _WIDEST = 60, 140
_USUAL: Final = 80  # of a terminal that does not say
_MOST_DIGITS: Final = 9  # of a width that is meant
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "yellow": "33"}


class Screen(NamedTuple):
    """What a page is drawn for."""

    width: int = MAX_WIDTH
    colour: bool = False


def screen_of(stream: TextIO) -> Screen:
    """Its own width for a terminal, 100 columns for a file, in both cases what COLUMNS says, from
    60 to 140. Colour on a terminal unless NO_COLOR is set or it is a dumb one; in a file where
    FORCE_COLOR is set.
    """
    said = os.environ
    if said.get("FORCE_COLOR"):
        colour = True
    else:
        colour = stream.isatty() and said.get("TERM", "").lower() not in ("dumb", "unknown")
    width = min(max(_columns(stream, said), _NARROWEST), _WIDEST)
    return Screen(width, colour and not said.get("NO_COLOR"))


def _columns(stream: TextIO, said: Mapping[str, str]) -> int:
    columns = said.get("COLUMNS", "")
    if columns.isdecimal() and int(columns[:_MOST_DIGITS]):
        return int(columns) if len(columns) <= _MOST_DIGITS else _WIDEST
    if not stream.isatty():
        return MAX_WIDTH
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except (OSError, ValueError):
        return _USUAL


def printed(content: Block, screen: Screen) -> str:
    """What the screen shows, without blanks at the ends of lines, with one final newline.

    Nothing is written: the command line does that, and knows what to do where it fails.
    """
    lines = drawable(content).lines(screen.width)
    while lines and not _plain(lines[-1]):
        lines.pop()
    return "\n".join(map(_coloured if screen.colour else _plain, lines)) + "\n"


def on_screen(content: Block) -> str:
    """What standard output shows of a page; closed, it is like a file."""
    return printed(content, screen_of(sys.stdout or StringIO()))


def _plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def _coloured(line: Line) -> str:
    """Neighbours of one style share their codes; blanks at the end have none."""
    parts: list[list[str]] = []
    for text, style in line:
        if parts and parts[-1][1] == style:
            parts[-1][0] += text
        else:
            parts.append([text, style])
    while parts and not (last := parts[-1][0].rstrip()):
        parts.pop()
    if parts:
        parts[-1][0] = last
    painted = []
    for text, style in parts:
        codes = ";".join(_CODES[word] for word in style.split())
        painted.append(f"\033[{codes}m{text}\033[0m" if codes and text else text)
    return "".join(painted)


def plain_lines(content: Block, width: int = MAX_WIDTH) -> list[str]:
    """The lines of `content` as plain text of `width` columns."""
    return printed(content, Screen(width)).removesuffix("\n").split("\n")
