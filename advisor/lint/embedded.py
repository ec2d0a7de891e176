"""Commands that the YAML of a scheduler holds (Kubernetes, Ray, SkyPilot, a pipeline of CI): blocks
of text, lines and lists of words, after what it exports."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

from advisor.base.place import Place
from advisor.base.yaml_tree import Written, read_collections
from advisor.reading.words import Piece, Word, word

_RUNS: Final = re.compile(r"\.py\b|\b(?:python3?|torchrun|srun|bash)\b")
_COMMAND: Final = re.compile(r"(?:\bpython3?|run|\.py) .*--")
_LINE: Final = re.compile(r"\S.*")
Part = tuple[int, str]
"""Where a piece of text stands, and the text."""


def commands_in(text: str, file: str) -> Word | None:
    """All of them as one shell script, each character at its place; None where there are none."""
    exports, commands = list[Part](), list[Part]()
    for is_mapping, values in read_collections(text):
        named = dict(zip(values[::2], values[1::2], strict=False)) if is_mapping else {}
        given = {key.text: value for key, value in named.items() if key and value}
        if {"name", "value"} <= given.keys():
            exports += _exported(given["name"], given["value"])
        elif any(one and one.text.startswith("--") for one in values if not is_mapping):
            commands += _words([one for one in values if one])
        else:
            commands += chain.from_iterable(_lines(one) for one in values if one)
    whole, parts = word(text, Place(file, 1, 1)), exports + commands
    if not _RUNS.search("".join(said for _, said in parts)):
        return None
    return Word(tuple(Piece(text=said, place=whole.place_at(at)) for at, said in parts))


def _exported(name: Written, value: Written) -> Iterator[Part]:
    if not re.search(r"['$]", value.text):
        yield from ((value.start, f"export {name.text}='"), (value.start, value.text))
        yield value.start, "'\n"


def _words(values: list[Written]) -> Iterator[Part]:
    """A list of words as one command."""
    for one in values:
        yield from ((one.start, "'"), (one.start, one.text), (one.start, "' "))
    yield values[-1].start, "\n"


def _lines(value: Written) -> Iterator[Part]:
    """A block of text, whose lines are commands or (folded) one, or a line that is a command."""
    if value.is_block or _COMMAND.search(value.text):
        for line in _LINE.finditer(value.text):
            yield value.start + line.start(), line[0]
            yield value.start + line.start(), " " if value.is_folded else "\n"
        yield value.start, "\n"
