"""`harness completion SHELL`, and what it offers: subcommands, KEY= and the values of keys."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from advisor.base.configuration import ConfigGroup, config_names
from advisor.cli.completion import SHELLS, complete, gpus, model_names, shell_script
from advisor.report.command_help import CommandHelp, Flag, help_page, read_page
from advisor.report.text import on_screen
from harness.trial.trial import Backend

COMMAND: Final = read_page(__file__, "completion")
_KEY: Final = re.compile(r"[a-z][\w.]*=")


def main(argv: Sequence[str]) -> int:
    """Print the script; UserError where the shell has none."""
    asked = list(argv) in (["-h"], ["--help"])
    print(on_screen(help_page(COMMAND)) if asked else shell_script("harness", argv), end="")
    return 0


def answer_shell(program: CommandHelp, modules: Mapping[str, str]) -> None:
    """Answer the shell that asks, and end the process."""
    from harness.cli.golden import SUBCOMMANDS

    commands = {name: importlib.import_module(path).COMMAND for name, path in modules.items()}
    keys = {name: partial(_key_values, _keys(command)) for name, command in commands.items()}
    words: dict[str, Callable[[str], Iterable[str]]] = {
        **{name: offered for name, offered in keys.items() if offered.args[0]},
        "": lambda _: modules,
        "golden": lambda _: SUBCOMMANDS,
        "completion": lambda _: SHELLS,
    }
    below = {f"golden {name}": command for name, command in SUBCOMMANDS.items()}
    complete("harness", {"": program, **commands, **below}, words)


def _keys(command: CommandHelp) -> list[str]:
    """``KEY=`` of the words that its help explains."""
    labels = (row[0] for topic in command.topics for row in topic.rows if not isinstance(row, Flag))
    return list(dict.fromkeys(key for label in labels for key in _KEY.findall(label)))


def _key_values(keys: Sequence[str], typed: str) -> Iterable[str]:
    """``KEY=``, and ``KEY=VALUE`` where the key is typed and its values are known."""
    key, equals, value = typed.partition("=")
    return [f"{key}={one}" for one in _values(key, value)] if equals else keys


def _values(key: str, typed: str) -> Iterable[str]:
    if key in (ConfigGroup.EXPERIMENT, ConfigGroup.RECOMPUTE, ConfigGroup.SWEEP):
        return config_names(ConfigGroup(key))
    if key in ("gpus", "model"):
        return gpus(typed) if key == "gpus" else model_names()
    return _KNOWN.get(key, ())


_KNOWN: Final[Mapping[str, Iterable[str]]] = {
    "device": ("cuda", "cpu"),
    "backend": Backend,
    "launcher": ("local", "torchrun", "slurm"),
}
