"""Logs, whatever is in the file: compressed, cut short, of any encoding; as lines or as bytes."""

import io
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.documents import refuse_endless
from advisor.base.errors import UserError
from advisor.base.fields import show_path

LINE_CHARACTERS: Final = 1 << 14
"""A longer line is no framework's: progress bars, a dump of tensors, garbage."""
STDIN: Final = Path("-")
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK: Final = re.compile(r"\s*(?:\[(?:[Rr]ank|default) ?(\d{1,9})\]:?|(\d{1,9}):(?= ))\s*")


class DamagedError(Exception):
    """A compressed file that cannot be read beyond this point, or whose checksum fails."""


class Line(Struct, frozen=True, kw_only=True):
    """A line without colours and with single blanks; rank as a launcher's prefix says.

    whole: it has its end. What a file breaks off in is not: its last number may be half a number.
    damaged: the file cannot be decompressed from here on, or its checksum fails.
    """

    text: str
    rank: int | None = None
    whole: bool = True
    damaged: bool = False


def clean_line(line: str) -> tuple[int | None, str]:
    """Rank and text of a line: without colours, and with single blanks; nested prefixes (srun's and
    torchrun's) give the innermost rank."""
    text, rank = _ANSI.sub("", line), None
    while match := _RANK.match(text):
        rank, text = int(match.group(1) or match.group(2)), text[match.end() :]
    return rank, " ".join(text.replace("\0", "").split())


def read_lines(path: Path) -> Iterator[Line]:
    """Lines of a file, ended by a newline or, in progress bars, by a carriage return; too long ones
    are left out.

    A compressed file that is damaged ends where the damage is, with a line that says so.
    UserError where the file cannot be read.
    """
    try:
        with opened(path) as file, _unzipped(file) as stream:
            yield from _lines(io.TextIOWrapper(stream, _encoding(stream), "replace", newline=""))
    except DamagedError:
        yield Line(text="", whole=False, damaged=True)


def read_pieces(source: Path | str, most: int) -> Iterator[bytes]:
    """The bytes of a log in UTF-8, some `most` at a time; a text stands for itself.

    DamagedError where the file cannot be decompressed any further, UserError where it cannot be
    read.
    """
    with opened(source) as file, _unzipped(file) as stream:
        if _encoding(stream) == "utf-8":
            while piece := stream.read1(most):
                yield piece
            return
        decoder = getincrementaldecoder("utf-16")("replace")
        while piece := stream.read1(most):
            yield decoder.decode(piece).encode("utf-8", "replace")


@contextmanager
def opened(source: Path | str) -> Iterator[io.BufferedReader]:
    """A file, standard input (``-``), or a text, as bytes; UserError where it cannot be read."""
    try:
        if isinstance(source, str):
            yield _buffered(io.BytesIO(source.encode("utf-8", "replace")))
        elif source == STDIN:
            yield _buffered(sys.stdin.buffer)
        else:
            refuse_endless(source, "LOG")
            with open(source, "rb") as file:
                yield file
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError("LOG", show_path(source), f"cannot be read ({reason})") from None


def _buffered(stream: Any) -> io.BufferedReader:
    """`stream`, which may be any binary one, with a look ahead."""
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)


@contextmanager
def _unzipped(file: io.BufferedReader) -> Iterator[io.BufferedReader]:
    """What a compressed file holds, and any other as it is; DamagedError where it is damaged."""
    if file.peek(2)[:2] != _GZIP:
        yield file
        return
    import gzip
    import zlib

    try:
        yield gzip.GzipFile(fileobj=file)  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DamagedError from None


def _encoding(stream: io.BufferedReader) -> str:
    """What PowerShell redirects is UTF-16 and says so."""
    return "utf-16" if stream.peek(2)[:2] in _UTF_16 else "utf-8"


def _lines(stream: io.TextIOWrapper) -> Iterator[Line]:
    skipping = False
    while piece := stream.readline(LINE_CHARACTERS):
        ended = piece.endswith(("\n", "\r"))
        if not skipping and (ended or len(piece) < LINE_CHARACTERS):
            rank, text = clean_line(piece)
            yield Line(text=text, rank=rank, whole=ended)
        skipping = not ended
