"""The words of a command line: flags, and what stands between them in any order."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from advisor.base.errors import UserError, nearest_names, show
from advisor.base.fields import key_of
from advisor.report.command_help import CommandHelp, Flag, FlagKind, help_page
from advisor.report.text import on_screen


class Parser(ArgumentParser):
    """The flags of a command, and its other words as `words` (``results="+"``: how many there are),
    as an ArgumentParser whose errors are one line, raised as UserError."""

    def __init__(
        self, name: str, command: CommandHelp, kind: type = Path, **words: str | None
    ) -> None:
        super().__init__(f"harness {name}", allow_abbrev=False)
        self._command = command
        for flag in command.flags:
            self.add_argument(*flag.names, dest=flag.name, **_reading(flag))
        for word, number in words.items():
            self.add_argument(word, nargs=number, type=kind, metavar=word.upper())

    def format_help(self) -> str:
        """What --help prints."""
        return on_screen(help_page(self._command))

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        name, _, why = message.removeprefix("argument ").partition(": ")
        if name == "the following arguments are required":
            name, why = why, "is missing"
        raise UserError(name, None, why, f"see {self.prog} --help")

    def read(self, argv: Sequence[str]) -> Namespace:
        """Flags and other words in any order; UserError with the nearest for an unknown flag."""
        found, unknown = self.parse_known_intermixed_args(list(argv))
        for word in unknown:
            name = key_of(word)
            known = nearest_names(name, self._option_string_actions)
            raise UserError(show(name), None, "is not a flag", known)
        return found


def _reading(flag: Flag) -> dict[str, Any]:
    if flag.kind is FlagKind.SWITCH:
        return {"action": "store_true"}
    if flag.kind is FlagKind.OPTIONAL:
        return {"nargs": "?", "default": False}
    read: dict[str, Any] = {"metavar": flag.value, "required": flag.required}
    if flag.kind in _TYPES:
        read["type"] = _TYPES[flag.kind]
    if flag.choices:
        read["choices"] = [str(choice) for choice in flag.choices]
    if flag.repeated:
        read |= {"action": "append", "default": []}
    return read


_TYPES: Final = {
    FlagKind.NUMBER: int,
    FlagKind.DECIMAL: float,
    FlagKind.FILE: Path,
    FlagKind.FOLDER: Path,
}
