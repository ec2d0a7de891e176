"""A command as data: its flags, what else it takes, examples. Its help, its parser and its
completion in a shell are made of them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.report.blocks import Block, Fitted, Indented, Text, command_lines, group, wrapped

_MARGIN: Final = 26
_INDENT: Final = 2
_GAP: Final = 2


class FlagKind(StrEnum):
    """What follows a flag."""

    SWITCH = "switch"
    NUMBER = "number"
    OPTIONAL = "optional"
    DECIMAL = "decimal"
    TEXT = "text"
    CHOICE = "choice"
    FILE = "file"
    FOLDER = "folder"
    MODEL = "model"
    GPUS = "gpus"


class Flag(Struct, frozen=True):
    """A flag as help spells it (``--tp, --tensor-model-parallel-size N``), and what it is for.

    field: the name of its value, where it is not that of the last spelling. default: of a number
    that may be left out. repeated: it may be given again, and all values are kept. choices: the
    names that it takes, where they are the same in every installation.
    """

    spelled: str
    text: str
    field: str = ""
    default: int = 0
    repeated: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Its spellings."""
        return tuple(re.findall(_NAME, self.spelled))

    @property
    def value(self) -> str:
        """What help calls that which stands after it; empty for a switch."""
        return self.spelled.rpartition(self.names[-1])[2].strip()

    @property
    def kind(self) -> FlagKind:
        """What its value is, by what help calls it."""
        if self.value.startswith("["):
            return FlagKind.OPTIONAL
        return FlagKind.CHOICE if self.choices else _KINDS.get(self.value, FlagKind.TEXT)

    @property
    def name(self) -> str:
        """Under which its value is kept."""
        return self.field or self.names[-1].lstrip("-").replace("-", "_")

    @property
    def row(self) -> tuple[str, str]:
        """Its first spelling, and what is said of it."""
        others = f"; also {', '.join(self.names[1:])}" if len(self.names) > 1 else ""
        blank = "" if self.value.startswith("[=") else " "
        return f"{self.names[0]}{blank}{self.value}".strip(), self.text + others


_NAME: Final = r"(?<!\S)--?[a-z][\w-]*"
_KINDS: Final = {
    **{"": FlagKind.SWITCH, "N": FlagKind.NUMBER, "MODEL": FlagKind.MODEL},
    **{"COUNTxTYPE": FlagKind.GPUS, "X": FlagKind.DECIMAL, "SECONDS": FlagKind.DECIMAL},
    **dict.fromkeys(("FILE", "PATH"), FlagKind.FILE),
    **dict.fromkeys(("FOLDER", "DIR"), FlagKind.FOLDER),
    **dict.fromkeys(("P", "F", "SCOPE", "KIND", "QUANTITY"), FlagKind.CHOICE),
}


class Topic(Struct, frozen=True):
    """A part of a help page: rows of flags, or of words and what they mean, then a text."""

    title: str
    rows: tuple[Flag | tuple[str, str], ...] = ()
    text: str = ""


class CommandHelp(Struct, frozen=True, kw_only=True):
    """A command: how it is called, what it does, examples with a remark or none, the
    rest by topic."""

    usage: str
    about: str
    examples: tuple[tuple[str, str], ...] = ()
    topics: tuple[Topic, ...] = ()
    closing: str = ""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All of its flags."""
        rows = (row for topic in self.topics for row in topic.rows)
        return tuple(row for row in rows if isinstance(row, Flag))


def read_page(module: str, name: str, more: Mapping[str, Mapping[str, Any]] = {}) -> CommandHelp:
    """The page NAME.txt of the folder `pages` next to a module's file. Blank lines part usage,
    what the command does, examples after ``$``, topics (a title above rows, or above a text), and
    the closing. `more`: fields of a Flag that its row does not say, by its first name."""
    path = Path(module).with_name("pages") / f"{name}.txt"
    usage, about, *blocks = path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    examples: list[tuple[str, str]] = []
    topics: list[Topic] = []
    closing: list[str] = []
    for block in blocks:
        words, (title, _, below) = " ".join(block.split()), block.partition("\n")
        if block.startswith("  $ "):
            lines = (line.removeprefix("  $ ").partition("  # ") for line in block.split("\n"))
            examples += ((command, remark) for command, _, remark in lines)
        elif block.startswith(" "):  # the text of the topic above
            above = Topic(closing.pop()) if closing else topics.pop()
            topics.append(replace(above, text=words))
        elif below.startswith(" "):
            rows = re.split(r"\n(?! )", dedent(below))  # what is indented goes on
            topics.append(Topic(title, tuple(_read_row(row, more) for row in rows)))
        else:
            closing.append(words)
    return CommandHelp(
        usage=usage,
        about=" ".join(about.split()),
        examples=tuple(examples),
        topics=tuple(topics),
        closing="\n\n".join(closing),
    )


def _read_row(text: str, more: Mapping[str, Mapping[str, Any]]) -> Flag | tuple[str, str]:
    """Words, and after two blanks or below them what they mean. --help is no flag of ours: argparse
    has it."""
    words, meaning = re.split(r"\s{2,}", text, maxsplit=1)
    row = words, " ".join(meaning.split())
    if words == "--help" or not words.startswith("-"):
        return row
    flag = Flag(*row)
    return replace(flag, **more.get(flag.names[0], {}))


def help_page(
    command: CommandHelp, choices: Callable[[str], Sequence[str]] = lambda _: ()
) -> Block:
    """Usage, what it does, examples, topics; ``{choices}`` in the text of a flag is what `choices`
    says of its field."""
    parts: list[Block] = [Fitted(partial(_usage, command.usage)), "", command.about]
    if command.examples:
        shown = (Fitted(partial(_example_lines, *example)) for example in command.examples)
        parts += ["", *(Indented(example, _INDENT) for example in shown)]
    for topic in command.topics:
        parts += ["", *_topic(topic, choices)]
    parts += ["", command.closing] if command.closing else []
    return group(*parts)


def _usage(usage: str, width: int) -> list[str]:
    first, *rest = wrapped(usage, width)
    return [first, *(line for part in rest for line in wrapped("    " + part, width))]


def _example_lines(command: str, remark: str, width: int) -> list[str]:
    """A command that a shell reads wherever it is broken, and after or below it what it does."""
    lines = command_lines(command, width, hanging="  ")
    on_one_line = f"{lines[-1]:<46}{' ' * _GAP}{remark}"
    if not remark or (len(lines) == 1 and len(on_one_line) <= width):
        return [*lines[:-1], on_one_line.rstrip()]
    return [*lines, *("    " + line for line in wrapped(remark, width - 4))]


def _topic(topic: Topic, choices: Callable[[str], Sequence[str]]) -> Iterator[Block]:
    yield Text(topic.title, "bold")
    rows = [row.row if isinstance(row, Flag) else row for row in topic.rows]
    margin = min(_MARGIN, max((len(label) for label, _ in rows), default=0) + _INDENT + _GAP)
    for row, (label, text) in zip(topic.rows, rows, strict=True):
        if isinstance(row, Flag) and "{choices}" in text:
            text = text.replace("{choices}", ", ".join(choices(row.name)))
        yield Fitted(partial(_row, label, text, margin))
    if topic.text:
        yield Indented(topic.text, _INDENT)


def _row(label: str, text: str, margin: int, width: int) -> list[str]:
    """The text next to its label; below one that reaches into it."""
    head = " " * _INDENT + label
    lines = [" " * margin + line for line in wrapped(text, width - margin)]
    if len(head) + _GAP > margin or not text:
        return [*(" " * _INDENT + line for line in wrapped(label, width - _INDENT)), *lines]
    return [head + lines[0][len(head) :], *lines[1:]]
