"""What a command comes to, before anything is printed."""

from typing import Final

from msgspec import Struct

FITS: Final = 0
NOTHING_FITS: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130


class Outcome(Struct, frozen=True, kw_only=True):
    """Text for stdout, lines for stderr, and the exit code."""

    text: str
    exit_code: int = FITS
    talk: tuple[str, ...] = ()
