"""Options among the words of a command, and what its launcher says of the GPUs."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from msgspec import Struct

from advisor.base.place import Place
from advisor.base.units import whole_number
from advisor.reading.shell.script import ShellCommand
from advisor.reading.words import Word


class CommandOption(Struct, frozen=True, kw_only=True):
    """An option as it is written, with the words after it."""

    name: str
    values: tuple[Word, ...]
    place: Place

    @property
    def text(self) -> str:
        """The first value; empty where there is none."""
        return self.values[0].text if self.values else ""


def options(words: Sequence[Word]) -> Iterator[CommandOption]:
    """`--name`, `--name value …` and `--name=value`, in their order."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _starts_option(word.text):
            continue
        name, equals, _ = word.text.partition("=")
        values = [word.part(len(name) + 1)] if equals else []
        while not equals and at < len(words) and not _starts_option(words[at].text):
            values.append(words[at])
            at += 1
        yield CommandOption(name=name, values=tuple(values), place=word.place)


def _starts_option(text: str) -> bool:
    return text.startswith("-") and not is_number(text)


def is_number(text: str) -> bool:
    """Whether a word is a number, be it negative."""
    with suppress(ValueError):
        float(text)
        return True
    return False


_SEVERAL: Final = re.compile(r"^\$\{?[@*]|ARGS|OPTS|OPTIONS|FLAGS|\bcat\b", re.IGNORECASE)
"""Variables that hold words rather than a value, by their names."""


def beyond(option: CommandOption) -> tuple[Word, ...]:
    """Words after an option that need not be its values."""
    values = option.values
    several = any(not word.unknown and word.text[:1] != "@" for word in values[1:])
    first = 1 if not several and values and not _SEVERAL.search(values[0].text) else 0
    return tuple(w for w in values[first:] if not several or _SEVERAL.search(w.text))


def unread_words(
    words: Sequence[Word], more: Callable[[CommandOption], Sequence[Word]] = beyond
) -> list[Word]:
    """Words after a program that nobody knows and that are no option's value, and files of options.
    more: the words after an option that need not be its values."""
    first = next((n for n, word in enumerate(words) if word.text.startswith("-")), len(words))
    beside = [*words[1:first], *(word for one in options(words) for word in more(one))]
    return [
        w for w in beside if w.text[:1] == "@" != w.text or (w.unknown and w.text[:1] in ("$", "`"))
    ]


def program_at(words: Sequence[Word]) -> int:
    """Where the training program stands among the words of a command; 0 where it is not found. A
    script after a module's options is the value of one where it follows its name."""
    texts = [word.text for word in words]
    modules = [number for number in range(2, len(texts)) if texts[number - 1] in ("-m", "--module")]
    first = next(iter(modules), len(texts))
    scripts = (
        number
        for number, text in enumerate(texts)
        if text.endswith(".py") and not (number > first and texts[number - 1].startswith("--"))
    )
    return next(chain(scripts, modules), 0)


_NODES = ("--nnodes", "--num_nodes", "--num_machines", "--nodes", "-N")
_GPUS = ("--nproc_per_node", "--nproc-per-node", "--num_gpus", "--gpus-per-node", "--gres")
_PROCESSES = (*_GPUS, "--ntasks-per-node")
_OF_SLURM = re.compile(r"\bgpu:(?:[A-Za-z][\w.-]*:)?(\d+)")
"""``gpu:8``, ``gpu:h100:8`` among the resources of --gres."""


def num_gpus(command: ShellCommand, directives: Sequence[Word], sure: bool = False) -> int | None:
    """GPUs of a job by torchrun's, accelerate's or Slurm's options; None where they do not say.
    sure: nor where it depends on who calls the script, or more options may be in a variable."""
    before = command.words[: program_at(command.words) or len(command.words)]
    found: dict[str, int] = {}
    firsts = [word for option in options(before) for word in option.values[:1]]
    if sure and any(word.text[:1] == "$" and word not in firsts for word in before):
        return None
    for option in (*options(directives), *options(before)):
        gres = _OF_SLURM.search(option.text)
        number = whole_number(gres[1] if gres else option.text.rpartition(":")[2])
        settled = option.name in _NODES and not found.keys().isdisjoint(_NODES)
        if number is not None and (option.values[0].certain or not settled):
            found[option.name] = number
        of_slurm = "SLURM" in option.text and not found.keys().isdisjoint(_NODES)
        known = number is not None and option.values[0].certain
        if sure and option.name in (*_NODES, *_PROCESSES) and not (known or of_slurm):
            return None
    if found.keys().isdisjoint(_GPUS):
        of_tasks = found.get("--ntasks", found.get("-n", 0)) * found.get("--gpus-per-task", 0)
        found.setdefault("--num_processes", found.get("--gpus", found.get("-G", of_tasks)))
    processes = next((found[name] for name in _PROCESSES if name in found), None)
    if found.get("--num_processes") or processes is None:
        return found.get("--num_processes") or None
    return processes * next((found[name] for name in _NODES if name in found), 1)
