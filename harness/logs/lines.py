"""Whole lines of a log, whatever is in the file: compressed, cut short, of any encoding."""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from advisor.base.errors import UserError
from advisor.base.fields import show_path
from advisor.diagnose.scan import clean_line

LINE_CHARACTERS: Final = 1 << 14
"""A longer line is no framework's: progress bars, a dump of tensors, garbage."""
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line without colours and with single blanks; rank as a launcher's prefix says.

    whole: it has its end. What a file breaks off in is not: its last number may be half a number.
    damaged: the file cannot be decompressed from here on, or its checksum fails.
    """

    text: str
    rank: int | None = None
    whole: bool = True
    damaged: bool = False


def read_lines(path: Path) -> Iterator[Line]:
    """Lines of a file, ended by a newline or, in progress bars, by a carriage return; too long ones
    are left out.

    A compressed file that is damaged ends where the damage is, with a line that says so.
    UserError where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(_opened(file))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        yield Line(text="", whole=False, damaged=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError("LOG", show_path(path), f"cannot be read ({reason})") from None


def _opened(file: IO[bytes]) -> io.TextIOWrapper:
    """The text of a file; newline="" keeps every line's own end. What PowerShell redirects is
    UTF-16 and says so."""
    head = file.read(2)
    file.seek(0)
    stream = gzip.GzipFile(fileobj=file) if head == _GZIP else file
    encoding = "utf-16" if head in _UTF_16 else "utf-8"
    return io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline="")


def _lines(stream: io.TextIOWrapper) -> Iterator[Line]:
    skipping = False
    while piece := stream.readline(LINE_CHARACTERS):
        ended = piece.endswith(("\n", "\r"))
        if not skipping and (ended or len(piece) < LINE_CHARACTERS):
            rank, text = clean_line(piece)
            yield Line(text=text, rank=rank, whole=ended)
        skipping = not ended
