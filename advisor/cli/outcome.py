"""What a command comes to, before anything is printed."""

from dataclasses import dataclass
from typing import Final

FITS: Final = 0
NOTHING_FITS: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Text for stdout, lines for stderr, and the exit code."""

    text: str
    exit_code: int = FITS
    talk: tuple[str, ...] = ()
