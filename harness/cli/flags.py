"""The words of a command line: flags, and what stands between them in any order."""

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from advisor.base.errors import UserError
from advisor.base.fields import show
from advisor.base.units import nearest_names

_UNITS: Final = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")


class Parser(ArgumentParser):
    """An ArgumentParser whose errors are one line, raised as UserError.

    text: the whole of --help, where it is written by hand.
    """

    def __init__(self, prog: str, text: str = "", **more: Any) -> None:
        more = {"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False, **more}
        super().__init__(prog, **more)
        self._text = text

    def format_help(self) -> str:
        """What --help prints."""
        return self._text or super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise UserError("arguments", self.prog, message, f"{self.prog} --help says more")

    def read(self, argv: Sequence[str]) -> Namespace:
        """Flags and other words in any order; UserError with the nearest for an unknown flag."""
        found, unknown = self.parse_known_intermixed_args(list(argv))
        for word in unknown:
            name = word.partition("=")[0]
            known = nearest_names(name, self._option_string_actions)
            raise UserError(show(name), None, "not a flag", known)
        return found


def add_config_dir(made: ArgumentParser) -> None:
    """Where configuration is looked for first."""
    made.add_argument("--config-dir", type=Path, metavar="DIR")


def duration(text: str) -> float:
    """Seconds of ``30s``, ``3min``, ``1.5h``; the unit is required."""
    match = _DURATION.fullmatch(text.lower())
    unit = _UNITS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise UserError("--budget", show(text), "is not a time", "write e.g. 30s, 3min or 1h")
    seconds = float(match.group(1)) * unit
    if seconds <= 0:
        raise UserError("--budget", show(text), "must be positive", "write e.g. 3min")
    return seconds
