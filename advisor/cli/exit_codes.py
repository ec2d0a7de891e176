"""Exit codes of `advise`. They load nothing: an interrupted import has its own."""

from typing import Final

FITS: Final = 0
NOTHING_FITS: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
