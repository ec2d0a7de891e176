"""Text that knows where it was written: places, and words put together from pieces of a file."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace


class Place(Struct, frozen=True, order=True):
    """A position in a file, line and column counted from 1."""

    file: str
    line: int
    column: int

    def after(self, text: str) -> "Place":
        """Where a reader stands who has read `text` from here on."""
        lines = text.count("\n")
        if not lines:
            return Place(self.file, self.line, self.column + len(text))
        return Place(self.file, self.line + lines, len(text) - text.rindex("\n"))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Piece(Struct, frozen=True, kw_only=True):
    """Text from one place.

    splits: white space in it separates words, as in what an unquoted `$X` stands for.
    unknown: the text is that of an expansion whose value nothing here tells.
    certain: the value does not depend on who calls the script.
    """

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

    def place_at(self, offset: int) -> Place:
        """Where the character at `offset` was written."""
        for piece in self.pieces:
            if offset < len(piece.text):
                return piece.place.after(piece.text[:offset])
            offset -= len(piece.text)
        last = self.pieces[-1]
        return last.place.after(last.text)

    def part(self, start: int, stop: int | None = None) -> "Word":
        """The characters from `start` to `stop`, with their places."""
        stop = len(self.text) if stop is None else stop
        found, offset = [], 0
        for piece in self.pieces:
            first, last = max(start - offset, 0), min(stop - offset, len(piece.text))
            if first < last:
                place = piece.place.after(piece.text[:first])
                found.append(replace(piece, text=piece.text[first:last], place=place))
            offset += len(piece.text)
        return Word(tuple(found) or (Piece(text="", place=self.place_at(start)),))


def word(text: str, place: Place) -> Word:
    """A word that stands as it is at `place`."""
    return Word((Piece(text=text, place=place),))


def split_words(pieces: Iterable[Piece | None]) -> Iterator[Word]:
    """Words of pieces: None ends one, and so does white space in a piece that splits.

    A piece without text makes a word unless it splits, as `""` does and an empty `$X` does not.
    """
    current: list[Piece] = []
    for piece in pieces:
        if piece is None:
            yield from _ended(current)
            current = []
            continue
        for part in _parts(piece):
            if part is None:
                yield from _ended(current)
                current = []
            else:
                current.append(part)
    yield from _ended(current)


def _ended(pieces: Sequence[Piece]) -> Iterator[Word]:
    if pieces:
        yield Word(tuple(pieces))


def _parts(piece: Piece) -> Iterator[Piece | None]:
    """A piece that splits, as its words with None for the white space between them."""
    if not piece.splits:
        yield piece
        return
    place, start, text = piece.place, 0, piece.text
    while start < len(text):
        space = text[start].isspace()
        stop = start
        while stop < len(text) and text[stop].isspace() == space:
            stop += 1
        part = text[start:stop]
        if space:
            yield None
        else:
            yield Piece(text=part, place=place, unknown=piece.unknown, certain=piece.certain)
        place, start = place.after(part), stop
