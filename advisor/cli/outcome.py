"""What a command comes to, before anything is printed."""

from msgspec import Struct

from advisor.cli.exit_codes import FITS


class Outcome(Struct, frozen=True, kw_only=True):
    """Text for stdout, lines for stderr, and the exit code."""

    text: str
    exit_code: int = FITS
    talk: tuple[str, ...] = ()
