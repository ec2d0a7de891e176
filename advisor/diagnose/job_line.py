"""The job of a log as a line for `advise`, from what the log prints; else what is missing."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.lines import clean_line
from advisor.base.place import Place
from advisor.frameworks.readers import readers
from advisor.hardware.catalogue import full_name, gpu_names, load_gpu
from advisor.lint.request_from import request_from
from advisor.lint.target import read_target
from advisor.reading.document_tree import read_tree
from advisor.reading.model_names import named_model
from advisor.reading.read_configuration import ReadConfiguration, Reader
from advisor.reading.words import word

_ARGUMENT: Final = re.compile(r"^(\w+) \.{3,} (.+)$", re.M)  # Megatron-LM's dump
_CONFIG: Final = re.compile(r"Running with (?:args|configs?): (\{.+\})$", re.M)  # torchtitan's
_COMMAND: Final = re.compile(
    r"^(?:\+ |.*\b(?:cmd|[Cc]ommand)\b *[:=] )(\S.* --\w.*)$", re.M
)  # set -x
_TRAINER: Final = {
    "per_device_train_batch_size": r"Instantaneous batch size per device = ([\d,]+)",
    "gradient_accumulation_steps": r"Gradient Accumulation steps = ([\d,]+)",
    "total": r"Total train batch size .* = ([\d,]+)",
}
_WORLD: Final = re.compile(
    r"\b(?:world[_ ]size|num_processes|WORLD_SIZE|nproc_per_node)\W{1,3}(\d+)\b"
)
_CARD: Final = re.compile(r"\b(?:NVIDIA|AMD Instinct) ((?:RTX )?[A-Z]+\d+\w*)")
_ALIKE: Final = 0.015  # drivers and ECC move what torch sees of one card by so much at most
_FLAGS: Final = {
    "framework": "--framework",
    "tensor_model_parallel_size": "--tp",
    "pipeline_model_parallel_size": "--pp",
    "virtual_pipeline_model_parallel_size": "--vpp",
    "context_parallel_size": "--cp",
    "expert_model_parallel_size": "--ep",
    "seq_length": "--seq-length",
    "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size",
    "precision": "--precision",
}


class JobLine(Struct, frozen=True, kw_only=True):
    """words: after `advise`, empty where `missing` says what the log does not."""

    words: tuple[str, ...] = ()
    missing: str = ""


def job_line(head: str, capacity: float | None) -> JobLine:
    """The job of a log with this beginning, on cards that torch sees so many bytes of."""
    text = "\n".join(clean_line(line)[1] for line in head.splitlines())
    found = next(_configurations(text), None)
    if found is None:
        return JobLine(missing="its options (no dump of arguments and no command is in the log)")
    reader, configuration = found
    model = reader.model(configuration) or named_model([text])
    count, card = configuration.num_gpus or _count(text), _card(text, capacity)
    missing = {"the model": model, "the number of GPUs": count, "the GPU": card}
    if not all(missing.values()):
        return JobLine(missing=", ".join(name for name, value in missing.items() if not value))
    try:
        asked = request_from(replace(configuration, model=model), {"gpus": f"{count}x{card}"})
    except UserError as error:
        return JobLine(missing=str(error))
    if asked.seq_length is None:
        return JobLine(missing="the sequence length")
    words = ["--model", str(asked.model), "--gpus", asked.gpus]
    for name, flag in _FLAGS.items():
        if (value := getattr(asked, name)) not in (None, 1) or name == "micro_batch_size":
            words += [flag, str(value)] if value is not None else []
    stated = (one for one in asked.overrides if not one.startswith("model."))
    words += [one for one in stated if one.partition("=")[0] not in asked.omitted]
    return JobLine(words=tuple(words))


def _configurations(text: str) -> Iterator[tuple[Reader, ReadConfiguration]]:
    """What readers make of the log's dumps and commands, the fullest first."""
    if arguments := _ARGUMENT.findall(text):
        yield from _of_tree({name: _value(value) for name, value in arguments})
    for dump in _CONFIG.findall(text):
        sections = _value(dump)
        flags = [f"--{flag}={value}" for flag, value in _leaves(sections)]
        yield from _of_command(" ".join(("torchrun train.py", *flags)))
    for command in _COMMAND.findall(text):
        yield from _of_command(command)
    batch = {name: re.search(words, text) for name, words in _TRAINER.items()}
    if batch["per_device_train_batch_size"]:
        sizes = {name: int(match[1].replace(",", "")) for name, match in batch.items() if match}
        yield from _of_tree(sizes)


def _of_tree(values: Mapping[str, Any]) -> Iterator[tuple[Reader, ReadConfiguration]]:
    tree = read_tree(word(json.dumps(values), Place("log", 1, 1)), ".json")
    if tree is not None:
        yield from ((reader, one) for reader in readers() for one in reader.read(tree))


def _of_command(command: str) -> Iterator[tuple[Reader, ReadConfiguration]]:
    with suppress(UserError):
        yield from read_target(command).configurations


def _leaves(value: object, *path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, *path, str(name))
    elif isinstance(value, str | int | float):
        yield ".".join(path), value


def _value(text: str) -> Any:
    """What a program printed, by Python's or JSON's spelling; else the text."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return read(text)
    return text


def _count(text: str) -> int | None:
    world = _WORLD.search(text)
    sizes = [re.search(words, text) for words in _TRAINER.values()]
    if world or not all(sizes):
        return int(world[1]) if world else None
    device, steps, total = (int(match[1].replace(",", "")) for match in sizes if match)
    return total // (device * steps)


def _card(text: str, capacity: float | None) -> str:
    """The card that the log names, of the memory that torch sees; empty where it names none."""
    named = [full_name(card, gpu_names()) for card in _CARD.findall(text)]
    families = {name.partition("-")[0] for name in named if name}
    known = [load_gpu(name) for name in gpu_names() if name.partition("-")[0] in families]
    fitting = [
        one.name
        for one in known
        if capacity is None or abs(one.memory_bytes - capacity) <= _ALIKE * capacity
    ]
    return min(fitting, key=lambda name: (name not in named, name), default="")
