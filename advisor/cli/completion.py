"""`advise completion SHELL`: what a shell offers behind `advise`."""

from collections.abc import Sequence

from advisor.base.errors import UserError
from advisor.base.units import either, nearest_names
from advisor.cli.arguments import UsageError, choices, known_flags
from advisor.cli.help import RANKING, SUBCOMMANDS
from advisor.cli.outcome import Outcome
from advisor.report.command_help import Command, Flag, Kind
from advisor.report.shell_completion import (
    FILES,
    GPUS,
    Shell,
    completion_script,
    flag_values,
    paths,
)


def completion(arguments: Sequence[str]) -> Outcome:
    """The script of a shell; UserError or UsageError where it is not one that has a script."""
    if len(arguments) != 1:
        raise UsageError(f"completion: needs {either(Shell)}")
    return Outcome(text=completion_script("advise", shell_of(arguments[0]), _table()))


def shell_of(name: str) -> Shell:
    """The shell of a name; UserError where it has no script."""
    if name not in [*Shell]:
        raise UserError(
            "completion", name, "is not a supported shell", nearest_names(name, [*Shell])
        )
    return Shell(name)


def _table() -> dict[tuple[str, str], Sequence[str]]:
    from advisor.cli.arguments import build_parser
    from advisor.request.recipes import recipe_models

    found: dict[tuple[str, str], Sequence[str]] = {
        ("", ""): (*SUBCOMMANDS, *known_flags(build_parser()))
    }
    found |= flag_values("", RANKING, values_of)
    words: dict[str, Sequence[str]] = {
        "lint": (FILES,),
        "diagnose": (FILES,),
        "recipes": recipe_models(),
        "completion": [*Shell],
    }
    for name, command in SUBCOMMANDS.items():
        found[name, ""] = (*words.get(name, ()), *names_of(command), "--help")
        found |= flag_values(name, command, values_of)
    return found


def names_of(command: Command) -> list[str]:
    """Every spelling of its flags."""
    return [name for flag in command.flags for name in flag.names]


def values_of(flag: Flag) -> Sequence[str]:
    """What may stand behind a flag, as far as it is known without asking."""
    if flag.kind is Kind.MODEL:
        return (*model_names(), FILES)
    if flag.kind is Kind.GPUS:
        return (GPUS, *gpu_names())
    if flag.kind is Kind.CHOICE:
        return flag.choices or [str(name) for name in choices(flag.name)]
    return paths(flag)


def model_names() -> tuple[str, ...]:
    """The presets."""
    from advisor.models import presets

    return presets.model_names(None)


def gpu_names() -> tuple[str, ...]:
    """The types of GPUs."""
    from advisor.hardware import catalogue

    return catalogue.gpu_names(None)
