"""The job of a log as words for `advise`, from the options that the log prints."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.lines import clean_line
from advisor.base.place import Place
from advisor.diagnose.story import WORLD
from advisor.frameworks.readers import readers_of
from advisor.hardware.catalogue import full_name, gpu_names
from advisor.lint.request_from import request_from
from advisor.lint.target import read_target
from advisor.reading.document_tree import read_tree
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import ReadConfiguration, Reader
from advisor.reading.words import word

_ARGUMENT: Final = re.compile(r"^(\w+) \.{3,} (.+)$", re.M)  # Megatron-LM's dump
_CONFIG: Final = re.compile(r"Running with (?:args|configs?): (\{.+\})$", re.M)  # torchtitan's
_COMMAND: Final = re.compile(r"^(?:\+ |.*\b(?:cmd|[Cc]ommand)\b *[:=] )(\S.* --\w.*)$", re.M)
_CARD: Final = re.compile(r"\b(?:NVIDIA|AMD Instinct) ((?:RTX )?[A-Z]+\d+\w*(?:[ -]\w*\d\w*)*)")


def job_words(head: str) -> tuple[tuple[str, ...], str | None]:
    """What `advise` is asked for the job of a log with this beginning, and the recompute setting
    that ran, if known. UserError that says what is missing."""
    text = "\n".join(clean_line(line)[1] for line in head.splitlines())
    reader, read = next(_configurations(text), (None, None))
    if reader is None or read is None:
        raise UserError("LOG", None, "the log does not hold the job's options or its command")
    model = reader.model(read) or named_model([text])
    world = WORLD.search(text)
    count = read.num_gpus or (int(world[1]) if world else None)
    cards = (full_name(name, gpu_names()) for name in _CARD.findall(text))
    card = next(filter(None, cards), "")
    length = "job.seq_length" in read.values
    said = {"the model": model, "the number of GPUs": count, "the GPU": card, "a length": length}
    if missing := [name for name, value in said.items() if not value]:
        raise UserError("LOG", None, f"the log does not name {', '.join(missing)}")
    asked = request_from(replace(read, model=model), {"gpus": f"{count}x{card}"})
    words = []
    for name in asked.__struct_fields__:
        value, flag = getattr(asked, name), f"--{name.replace('_', '-')}"
        if value and isinstance(value, str | int) and name != "takes_recipe":
            words += [flag] if value is True else [flag, str(value)]
    stated = (one for one in asked.overrides if one.partition("=")[0] not in asked.omitted)
    words += [one for one in stated if not one.startswith("model.")]
    return tuple(words), read.recompute


def _configurations(text: str) -> Iterator[tuple[Reader, ReadConfiguration]]:
    """What readers make of the log's dumps and commands."""
    if arguments := _ARGUMENT.findall(text):
        values = {name: _value(value) for name, value in arguments}
        tree = read_tree(word(json.dumps(values), Place("log", 1, 1)), ".json")
        if tree is not None:
            yield from ((reader, one) for reader in readers_of(tree) for one in reader.read(tree))
    dumps = (_leaves(_value(dump)) for dump in _CONFIG.findall(text))
    commands = (" ".join(("torchrun train.py", *leaves)) for leaves in dumps)
    for command in (*commands, *_COMMAND.findall(text)):
        with suppress(UserError):
            yield from read_target(command).configurations


def _leaves(value: object, *path: str) -> Iterator[str]:
    """``--training.seq_len=8192`` of every leaf."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, *path, str(name))
    elif isinstance(value, str | int | float):
        yield f"--{'.'.join(path)}={value}"


def _value(text: str) -> Any:
    """What a program printed, by JSON's or Python's spelling; else the text."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return read(text)
    return text
