"""Exit codes of `advise`. They load nothing: an interrupted import has its own."""

from typing import Final

FITS: Final = 0
NOTHING_FITS: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
FAULT: Final = 70
"""A fault of the advisor itself (EX_SOFTWARE of sysexits.h): no answer about any job."""
STDOUT_IS_CLOSED: Final = "stdout: is closed, so the answer cannot be written"
"""Said with WRONG."""
