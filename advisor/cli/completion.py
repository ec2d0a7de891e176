"""What a shell completes after `advise` and `harness`: argcomplete asks their commands as data, of
the program itself, so that a new flag or preset needs nothing here."""

import os
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from advisor.base.errors import UserError, either, nearest_names, require
from advisor.report.command_help import CommandHelp, Flag, FlagKind

SHELLS: Final = ("bash", "zsh", "fish")
Words = Callable[[str], Iterable[str]]
"""What may stand where no flag does, of what is typed of it."""


def shell_script(program: str, arguments: Sequence[str]) -> str:
    """What `completion SHELL` prints; UserError where the shell has no script."""
    if len(arguments) != 1:
        raise UserError("completion", None, f"needs {either(SHELLS)}")
    if arguments[0] not in SHELLS:
        near = nearest_names(arguments[0], SHELLS)
        raise UserError("completion", arguments[0], "is not a supported shell", near)
    argcomplete = require("argcomplete", f"{program} completion", "harness")
    return f"{argcomplete.shellcode([program], use_defaults=False, shell=arguments[0])}\n"


def complete(program: str, commands: Mapping[str, CommandHelp], words: Mapping[str, Words]) -> None:
    """Answer the shell that asks, and end the process. The command without a name is the program;
    a word that has no Words is a path."""
    argcomplete: Any = require("argcomplete", f"{program} completion", "harness")
    typed = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()
    name = next((name for name in (" ".join(typed[1:3]), *typed[1:2]) if name in commands), "")
    parser = ArgumentParser(prog=program, argument_default=SUPPRESS)
    os.environ["_ARGCOMPLETE"] = str(1 + len(name.split()))  # its words are the program's name
    for flag in commands[name].flags:
        how: dict[str, Any] = {"action": "append"} if flag.repeated else {}
        how = _HOW.get(flag.kind, how)
        action: Any = parser.add_argument(*flag.names, dest=flag.name, **how)
        action.completer = _completer(flag, argcomplete.completers)
    rest: Any = parser.add_argument("words", nargs="*")
    files = argcomplete.completers.FilesCompleter()
    rest.completer = _of_words(words[name]) if name in words else files
    argcomplete.autocomplete(parser)


_HOW: Final = {FlagKind.SWITCH: {"action": "store_true"}, FlagKind.OPTIONAL: {"nargs": "?"}}


def _of_words(words: Words) -> Callable[..., list[str]]:
    return lambda prefix, **_: list(words(prefix))


def _completer(flag: Flag, known: Any) -> Any:
    """What offers the values of a flag, as far as they are known."""
    if flag.kind is FlagKind.FOLDER:
        return known.DirectoriesCompleter()
    if flag.kind is FlagKind.FILE:
        return known.FilesCompleter()
    if flag.kind is FlagKind.GPUS:
        return _of_words(gpus)
    if flag.kind is FlagKind.MODEL:
        files = known.FilesCompleter()
        return lambda prefix, **_: [*model_names(), *files(prefix)]
    if flag.kind is FlagKind.CHOICE:
        from advisor.cli.arguments import choices

        return _of_words(lambda _: flag.choices or map(str, choices(flag.name)))
    return _of_words(lambda _: ())  # SuppressCompleter would hide the flag itself


def model_names(_: str = "") -> tuple[str, ...]:
    """The presets."""
    from advisor.models import presets

    return presets.model_names(None)


def gpus(typed: str) -> list[str]:
    """``32xH100-SXM-80GB`` of ``32x``: the types, after the number that is typed, or after 8."""
    from advisor.hardware.catalogue import gpu_names

    count = typed.partition("x")[0]
    return [f"{count if count.isdigit() else 8}x{name}" for name in gpu_names(None)]
