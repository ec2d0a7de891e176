"""`harness completion SHELL`: what a shell offers behind `harness`."""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from advisor.base.configuration import Group, config_names
from advisor.base.errors import UserError
from advisor.base.units import either, nearest_names
from advisor.cli.completion import gpu_names, model_names, names_of, shell_of, values_of
from advisor.report.command_help import Command, Flag, Topic
from advisor.report.shell_completion import FILES, GPUS, Shell, completion_script, flag_values
from harness.cli.flags import HELP
from harness.trial.trial import Backend

COMMAND: Final = Command(
    usage="harness completion bash|zsh|fish",
    about="Prints a script that completes commands, flags and names in a shell.",
    examples=(
        ('eval "$(harness completion bash)"', "in ~/.bashrc"),
        ('eval "$(harness completion zsh)"', "in ~/.zshrc, after compinit"),
        ("harness completion fish | source", "in ~/.config/fish/config.fish"),
    ),
    topics=(Topic("Flags", (HELP,)),),
)
_KEY: Final = re.compile(r"[a-z][\w.]*=")
_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "completion": [*Shell],
    "compare": (FILES,),
    "report": (FILES,),
    "ingest": (FILES,),
    "accuracy": (FILES,),
}


def main(argv: Sequence[str]) -> int:
    """Print the script; UserError where the shell has none."""
    if list(argv) in (["-h"], ["--help"]):
        from advisor.report.command_help import help_page
        from advisor.report.text import on_screen

        print(on_screen(help_page(COMMAND)), end="")
        return 0
    if len(argv) != 1:
        known = nearest_names("", [*Shell])
        raise UserError("completion", None, f"needs {either(Shell)}", known)
    print(completion_script("harness", shell_of(argv[0]), _table()), end="")
    return 0


def _table() -> dict[tuple[str, str], Sequence[str]]:
    from harness.cli.golden import SUBCOMMANDS
    from harness.cli.main import MODULES

    commands = {name: importlib.import_module(path).COMMAND for name, path in MODULES.items()}
    found: dict[tuple[str, str], Sequence[str]] = {("", ""): (*commands, "--help", "--version")}
    for name, command in commands.items():
        own = (command, *SUBCOMMANDS.values()) if name == "golden" else (command,)
        flags = dict.fromkeys(flag for one in own for flag in names_of(one))
        words = (*_WORDS.get(name, ()), *(SUBCOMMANDS if name == "golden" else ()))
        keys = _keys(command)
        found[name, ""] = (*words, *flags, *keys, "--help")
        for one in own:
            found |= flag_values(name, one, values_of)
        found |= {(name, key): _values(key) for key in keys}
    return found


def _keys(command: Command) -> list[str]:
    """``KEY=`` of the words that its help explains."""
    labels = (row[0] for topic in command.topics for row in topic.rows if not isinstance(row, Flag))
    return list(dict.fromkeys(key for label in labels for key in _KEY.findall(label)))


def _values(key: str) -> Sequence[str]:
    """What may stand behind ``KEY=``, as far as it is known."""
    groups = {
        "experiment=": Group.EXPERIMENT,
        "recompute=": Group.RECOMPUTE,
        "sweep=": Group.SWEEP,
    }
    if key in groups:
        return config_names(groups[key])
    if key == "gpus=":
        return (GPUS, *gpu_names())
    return model_names() if key == "model=" else _KNOWN.get(key, ())


_KNOWN: Final[Mapping[str, Sequence[str]]] = {
    "device=": ("cuda", "cpu"),
    "backend=": [*Backend],
    "launcher=": ("local", "torchrun", "slurm"),
    "like=": (FILES,),
}
