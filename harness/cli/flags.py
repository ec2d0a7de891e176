"""The words of a command line: flags, and what stands between them in any order."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from advisor.base.errors import UserError
from advisor.base.fields import show
from advisor.base.units import nearest_names


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
