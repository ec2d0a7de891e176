"""Logs, whatever is in the file: compressed, cut short, of any encoding; as lines or as bytes."""

import io
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from advisor.base.documents import refuse_endless
from advisor.base.errors import UserError, show_path

BLOCK_BYTES: Final = 1 << 20
LINE_CHARACTERS: Final = 1 << 14
"""A longer line is no framework's: progress bars, a dump of tensors, garbage."""
MOST_UNPACKED: Final = 1 << 28
_MOST_RATIO: Final = 500
"""A compressed file that unpacks to more bytes is refused where it shrank by more: one line
repeated shrinks to a 300th, zeros to a 1029th."""
STDIN: Final = Path("-")
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK: Final = re.compile(r"\s*(?:\[(?:[Rr]ank|default) ?(\d{1,9})\]:?|(\d{1,9}):(?= ))\s*")


class DamagedError(Exception):
    """A compressed file that cannot be read beyond this point, or whose checksum fails."""


def clean_line(line: str | bytes) -> tuple[int | None, str]:
    """Rank and text of a line: without colours, and with single blanks; nested prefixes (srun's and
    torchrun's) give the innermost rank."""
    line = line if isinstance(line, str) else line.decode("utf-8", "replace")
    text, rank = _ANSI.sub("", line), None
    while match := _RANK.match(text):
        rank, text = int(match.group(1) or match.group(2)), text[match.end() :]
    return rank, " ".join(text.replace("\0", "").split())


def clean_block(block: bytes) -> str:
    """Text of many lines, without colours; what ends in a carriage return (a progress bar's state)
    is a line too. What costs time is done only where it is needed."""
    text = block.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _ANSI.sub("", text) if "\x1b" in text else text
    return text.replace("\0", "") if "\0" in text else text


def read_blocks(source: Path | str) -> Iterator[bytes]:
    """Whole lines, about a block at a time; a line longer than a block comes in pieces. Errors as
    of `read_pieces`: what comes before the damage is read."""
    rest = b""
    try:
        for piece in read_pieces(source, BLOCK_BYTES):
            whole = rest + piece
            end = whole.rfind(b"\n") + 1 or whole.rfind(b"\r") + 1
            if not end and len(whole) >= BLOCK_BYTES:
                end = len(whole)
            rest = whole[end:]
            if end:
                yield whole[:end]
    except DamagedError:
        yield rest
        raise
    if rest:
        yield rest


def read_pieces(source: Path | str, most: int) -> Iterator[bytes]:
    """The bytes of a log in UTF-8, some `most` at a time; a text stands for itself.

    DamagedError where the file cannot be decompressed any further, UserError where it cannot be
    read.
    """
    with opened(source) as file, _unzipped(file) as stream:
        utf_16 = stream.peek(2)[:2] in _UTF_16  # what PowerShell redirects, which says so
        decoder, unpacked = getincrementaldecoder("utf-16")("replace"), 0
        while piece := stream.read1(most):
            unpacked += len(piece)
            if unpacked > MOST_UNPACKED and stream is not file and file.seekable():
                _refuse_bomb(unpacked / file.tell(), source)
            yield decoder.decode(piece).encode("utf-8", "replace") if utf_16 else piece


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


def _refuse_bomb(ratio: float, source: Path | str) -> None:
    """UserError where a file unpacks to more than any log does: a bomb would be read for hours."""
    if ratio > _MOST_RATIO:
        relation = f"unpacks to more than {_MOST_RATIO} times its size, which no log does"
        raise UserError("LOG", show_path(source), relation, "unpack it, and give that file")
