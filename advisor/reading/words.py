"""Text that knows where it was written: places, and words put together from pieces of a file."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.place import Place

_RUN: Final = re.compile(r"\s+|\S+")


class Piece(Struct, frozen=True, kw_only=True):
    """Text from one place. splits: white space in it separates words, as in an unquoted `$X`.
    unknown: an expansion whose value nothing tells. certain: whoever calls the script."""

    text: str
    place: Place
    splits: bool = False
    unknown: bool = False
    certain: bool = True

    def splitting(self, splits: bool) -> "Piece":
        """The same text, whose white space separates words or does not."""
        return self if self.splits is splits else replace(self, splits=splits)


class Word(Struct, frozen=True, dict=True):
    """One word of a command after expansion."""

    pieces: tuple[Piece, ...]

    @cached_property
    def text(self) -> str:
        """Its characters, with `$X` where a value is not known."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def place(self) -> Place:
        """Where its first character was written."""
        return next((piece for piece in self.pieces if piece.text), self.pieces[0]).place

    @property
    def unknown(self) -> bool:
        """Whether a part of it is not known."""
        return any(piece.unknown for piece in self.pieces)

    @property
    def certain(self) -> bool:
        """Whether it is the same for everybody who runs the script."""
        return all(piece.certain for piece in self.pieces) and not self.unknown

    @cached_property
    def _ends(self) -> list[int]:
        """Characters up to the end of each piece."""
        return list(accumulate(len(piece.text) for piece in self.pieces))

    @cached_property
    def _newlines(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    def offset_of(self, line: int, column: int) -> int:
        """Characters before a line and column of its text, both counted from 0."""
        if line > len(self._newlines):  # libyaml's end of a text whose last line is not ended
            return len(self.text)
        return (self._newlines[line - 1] + 1 if line else 0) + column

    def place_at(self, offset: int) -> Place:
        """Where the character at `offset` was written."""
        number = bisect_right(self._ends, offset)
        if number == len(self.pieces):
            last = self.pieces[-1]
            return last.place.after(last.text)
        piece = self.pieces[number]
        start = self._ends[number] - len(piece.text)
        first, until = bisect_left(self._newlines, start), bisect_left(self._newlines, offset)
        place = piece.place
        if first == until:
            return Place(place.file, place.line, place.column + offset - start)
        return Place(place.file, place.line + until - first, offset - self._newlines[until - 1])

    def part(self, start: int, stop: int | None = None) -> "Word":
        """The characters from `start` to `stop`, with their places."""
        stop = len(self.text) if stop is None else stop
        found = []
        for number in range(bisect_right(self._ends, start), len(self.pieces)):
            piece = self.pieces[number]
            offset = self._ends[number] - len(piece.text)
            if offset >= stop:
                break
            first, last = max(start - offset, 0), min(stop - offset, len(piece.text))
            if first < last:
                place = self.place_at(offset + first)
                found.append(replace(piece, text=piece.text[first:last], place=place))
        return Word(tuple(found) or (Piece(text="", place=self.place_at(start)),))


def word(text: str, place: Place) -> Word:
    """A word that stands as it is at `place`."""
    return Word((Piece(text=text, place=place),))


def split_words(pieces: Iterable[Piece | None]) -> Iterator[Word]:
    """Words of pieces: None ends one, and so does white space in a piece that splits. One without
    text makes a word unless it splits, as `""` does and an empty `$X` does not."""
    current: list[Piece] = []
    for piece in chain(pieces, (None,)):
        for part in (None,) if piece is None else _parts(piece):
            if part is not None:
                current.append(part)
            elif current:
                yield Word(tuple(current))
                current = []


def _parts(piece: Piece) -> Iterator[Piece | None]:
    """A piece that splits, as its words with None for the white space between them."""
    if not piece.splits:
        yield piece
        return
    place = piece.place
    for part in _RUN.findall(piece.text):
        yield None if part.isspace() else replace(piece, text=part, place=place, splits=False)
        place = place.after(part)
