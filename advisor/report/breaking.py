"""Where lines break whose pieces must stay whole: settings, commands, lists with middle dots.

Prose is `blocks.Text`, which breaks at every blank.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from advisor.report.blocks import Fitted, wrapped

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
