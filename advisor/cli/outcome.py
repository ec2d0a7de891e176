"""What a command comes to. It loads nothing: an interrupted import has its exit code, too."""

from typing import Final, NamedTuple

FITS: Final = 0
NOTHING_FITS: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
FAULT: Final = 70
"""A fault of the advisor itself (EX_SOFTWARE of sysexits.h): no answer about any job."""
STDOUT_IS_CLOSED: Final = "stdout: is closed, so the answer cannot be written"
"""Said with WRONG."""


class Outcome(NamedTuple):
    """Text for stdout, the exit code, and lines for stderr."""

    text: str = ""
    exit_code: int = FITS
    talk: tuple[str, ...] = ()
