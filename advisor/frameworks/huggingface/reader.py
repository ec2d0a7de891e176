"""Hugging Face: TrainingArguments on a command line, in Python or YAML, and Accelerate's file."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.frameworks.huggingface.accelerate_checks import FSDP
from advisor.frameworks.huggingface.accelerate_checks import findings as accelerate_findings
from advisor.frameworks.huggingface.checks import CHECKPOINTING, checkpointing, findings
from advisor.frameworks.huggingface.python_arguments import in_python
from advisor.frameworks.names import Framework
from advisor.job.layout import DataParallelSharding
from advisor.reading.command_options import Option, options, program_at
from advisor.reading.document_keys import Keys, known, put_mapping, put_tree
from advisor.reading.document_tree import Tree
from advisor.reading.model_names import named_model
from advisor.reading.python_source import PythonSource
from advisor.reading.read_configuration import (
    Checked,
    Document,
    Level,
    ReadConfiguration,
    ReadValue,
)
from advisor.reading.shell import Command
from advisor.reading.words import Word

_OWN: Final = (
    *CHECKPOINTING,
    "per_device_train_batch_size",
    "gradient_checkpointing_kwargs",
    "activation_checkpointing_kwargs",
    "fsdp",
    "fsdp_config",
    "fsdp_transformer_layer_cls_to_wrap",
)
_BESIDE: Final = ("output_dir", "model_name_or_path", "model_id", "model_name")
_ACCELERATE: Final = (FSDP, "deepspeed_config", "distributed_type", "compute_environment")
_JSON: Final = (FSDP, "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
_FIELDS: Final = {
    "per_device_train_batch_size": "job.micro_batch_size",
    "max_seq_length": "job.seq_length",
    "max_length": "job.seq_length",
    "block_size": "job.seq_length",
    "model_max_length": "job.seq_length",
}


class HuggingFaceReader:
    """TrainingArguments and Accelerate."""

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations in a document that a Trainer or Accelerate reads."""
        if isinstance(document, PythonSource):
            for keys in in_python(document):
                yield _configuration(keys)
            return
        found = _read_command(document) if isinstance(document, Command) else _read_tree(document)
        if found is not None:
            yield _configuration(found)

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the release refuses or passes over."""
        from advisor.frameworks.huggingface.adapter import HuggingFace

        keys: Keys = configuration.settings
        release = HuggingFace().version(version or "")
        found = [*findings(keys, release)]
        if keys.about.get("kind") == "file" or keys.about.get("launcher"):
            found += accelerate_findings(keys)
        found.sort(key=lambda finding: list(Level).index(finding.level))
        label = "Accelerate" if keys.about.get("kind") == "file" else f"transformers {release}"
        return Checked(
            configuration=configuration,
            label=label,
            understood=_understood(keys),
            findings=tuple(found),
        )

    def model(self, configuration: ReadConfiguration) -> str:
        """The preset that the name of the checkpoint holds."""
        return named_model([configuration.model])


def _read_tree(tree: Tree) -> Keys | None:
    keys = Keys(place=tree.place)
    if any(name in tree.values for name in _ACCELERATE) and tree.format != "toml":
        if any(name in tree.values for name in ("per_device_train_batch_size", *CHECKPOINTING)):
            keys.about["kind"] = "arguments"
        else:
            keys.about["kind"] = "file"
    elif any(_is_argument(tree, name) for name in _OWN) and tree.format != "toml":
        keys.about["kind"] = "arguments"
    else:
        return None
    put_tree(keys, tree)
    return keys


def _is_argument(tree: Tree, name: str) -> bool:
    """DeepSpeed has a section with the name of an argument."""
    held = tree.get(name)
    return held is not None and not (name in CHECKPOINTING and isinstance(held, Mapping))


def _read_command(command: Command) -> Keys | None:
    """Options of the training program; before it, those of `accelerate launch`."""
    keys = Keys(place=command.place)
    keys.about["kind"] = "command"
    at = program_at(command.words)
    launched = "accelerate" in command.texts[: at or len(command.texts)]
    if launched:
        keys.about["launcher"] = "accelerate"
        for option in options(command.words[: at or len(command.words)]):
            name = option.name.lstrip("-").replace("-", "_")
            if name.startswith("fsdp_"):
                keys.put(f"{FSDP}.{name}", option.text or True, option.place, option.name)
            elif name in ("mixed_precision", "num_processes"):
                keys.put(name, option.text, option.place, option.name)
    for option in options(command.words[at:]):
        _put(keys, option)
    own = any(key.split(".")[0] in _OWN for key in keys.values)
    beside = any(key in _BESIDE for key in keys.values)
    misspelt = any(key.startswith(("gradient_check", "activation_check")) for key in keys.values)
    return keys if own or (misspelt and beside) else None


def _put(keys: Keys, option: Option) -> None:
    if not option.name.startswith("--"):
        return
    name = option.name.removeprefix("--").replace("-", "_")
    if "." in name:
        return
    if name in _JSON and option.values:
        keys.values |= _json(keys, name, option.values[0], option).values
        return
    value: Any = " ".join(word.text for word in option.values) if option.values else True
    keys.put(name, value, option.place, option.name)


def _json(keys: Keys, name: str, word: Word, option: Option) -> Keys:
    """A dictionary written as JSON, or the name of a file that holds one."""
    found = Keys(place=keys.place)
    try:
        held = json.loads(word.text)
    except json.JSONDecodeError:
        held = None
    if isinstance(held, Mapping):
        put_mapping(found, held, option.place, name)
    elif word.text.endswith(".json") or not known(word.text):
        found.put(f"{name}_file", word.text, option.place, option.name)
    else:
        found.put(name, word.text, option.place, option.name)
    return found


def _configuration(keys: Keys) -> ReadConfiguration:
    values: dict[str, ReadValue] = {}

    def put(field: str, value: Any, key: str) -> None:
        given = keys.values[key]
        values[field] = ReadValue(value=value, written=given.written, place=given.place)

    for key, field in _FIELDS.items():
        number = keys.number(key)
        if number is not None and number > 0:
            put(field, number, key)
    if keys.truth("fp16"):
        put("job.precision", "fp16", "fp16")
    elif keys.truth("bf16"):
        put("job.precision", "bf16", "bf16")
    sharding = _sharding(keys)
    if sharding is not None:
        put("layout.data_parallel_sharding", *sharding)
    num_gpus = keys.number("num_processes")
    steps, micro = (
        keys.number("gradient_accumulation_steps"),
        keys.number("per_device_train_batch_size"),
    )
    if micro and num_gpus:
        put("job.global_batch_size", micro * (steps or 1) * num_gpus, "per_device_train_batch_size")
    return ReadConfiguration(
        framework=Framework.HUGGINGFACE,
        place=keys.place,
        values=values,
        recompute=_recompute(keys),
        model=str(keys.get("model_name_or_path") or ""),
        num_gpus=num_gpus,
        settings=keys,
    )


def _sharding(keys: Keys) -> tuple[DataParallelSharding, str] | None:
    fsdp = str(keys.get("fsdp") or "")
    if "shard_grad_op" in fsdp:
        return DataParallelSharding.GRADIENTS, "fsdp"
    if "full_shard" in fsdp:
        return DataParallelSharding.FULL, "fsdp"
    key = f"{FSDP}.fsdp_reshard_after_forward"
    if keys.truth(key) is not None:
        full = keys.truth(key)
        return (DataParallelSharding.FULL if full else DataParallelSharding.GRADIENTS), key
    return None


def _recompute(keys: Keys) -> str | None:
    """What is checkpointed, in the spelling of --recompute."""
    inside = keys.truth(f"{FSDP}.fsdp_activation_checkpointing")
    on = checkpointing(keys)
    if on is None and inside is None:
        return None
    if not on and not inside:
        return "none"
    sections = [f"{name}_kwargs" for name in CHECKPOINTING]
    every = next((keys.number(f"{s}.every_n_layers") for s in sections), None)
    text = f"selective:{every}" if every and every > 1 else "full"
    offload = f"{FSDP}.fsdp_activation_checkpointing_offload"
    if any(keys.truth(f"{s}.offload") for s in sections) or keys.truth(offload):
        text += "+offload"
    reentrant = next(
        (keys.get(f"{s}.use_reentrant") for s in sections if keys.has(f"{s}.use_reentrant")), None
    )
    if isinstance(reentrant, bool):
        text += "+use_reentrant" if reentrant else "+no_reentrant"
    return text


def _understood(keys: Keys) -> str:
    setting = _recompute(keys)
    if setting is None:
        return "nothing about checkpointing"
    return "no checkpointing" if setting == "none" else f"checkpointing {setting}"
