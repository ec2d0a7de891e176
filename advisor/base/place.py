"""Where something is written."""

from msgspec import Struct


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
