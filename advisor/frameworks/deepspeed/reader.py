"""DeepSpeed's configurations: its JSON file, and the same as a dictionary in Python."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.frameworks.deepspeed.checks import RULES
from advisor.frameworks.deepspeed.options import (
    AC,
    BATCH,
    INTERVAL,
    MICRO_BATCH,
    OPTIONS,
    STAGE,
    STEPS,
    ZERO,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.keyed_reader import KeyedReader
from advisor.frameworks.torch.setting import Modifier
from advisor.job.layout import DataParallelSharding
from advisor.reading import document_tree, python_source, read_configuration
from advisor.reading.read_configuration import Keys, put_mapping, put_tree

_SWITCHES: Final = tuple(option for option in Modifier if option is not Modifier.OFFLOAD)


class DeepSpeedReader(KeyedReader):
    """JSON and dictionaries."""

    framework = Framework.DEEPSPEED
    label = "DeepSpeed"
    takes_over = (Framework.HUGGINGFACE,)  # a Trainer's job names the file
    options = OPTIONS
    rules = RULES

    def find(self, document: read_configuration.Document) -> Iterator[Keys]:
        """The configurations in a document that are DeepSpeed's."""
        if isinstance(document, python_source.PythonSource):
            yield from _in_python(document)
        elif isinstance(document, document_tree.Tree) and _is_own_tree(document):
            keys = Keys(place=document.place, faults=document.faults, about={"whole": "yes"})
            put_tree(keys, document)
            yield keys

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """Without a stage nothing is sharded."""
        return {"layout.data_parallel_sharding": DataParallelSharding.NONE}

    def num_microbatches(self, keys: Keys) -> int | None:
        """Those that gradients are accumulated over; where both batches are said they decide."""
        given = keys.values.get(STEPS)
        both = keys.number(MICRO_BATCH) and keys.number(BATCH)
        if both or (given is None and not (keys.has(MICRO_BATCH) or keys.has(BATCH))):
            return None
        return keys.number(STEPS) if given is not None else 1

    def unknown(self, keys: Keys) -> Iterator[read_configuration.UnknownValue]:
        """Neither 16-bit type is fp32, which is not modelled."""
        yield from super().unknown(keys)
        if not any(keys.has(f"{name}.enabled") for name in ("bf16", "fp16", "bfloat16")):
            yield read_configuration.UnknownValue(
                written="neither bf16 nor fp16", text="", place=keys.place, path="job.precision"
            )

    def recompute(self, keys: Keys) -> str | None:
        """The section says how a checkpoint is kept; whether there is one is the model's affair."""
        interval = keys.number(INTERVAL)
        head = f"uniform:{interval}" if interval else "full"
        if not interval and not any(keys.under(AC)):
            return None
        return "+".join([head, *_switched(keys)])

    def understood(self, keys: Keys) -> str:
        """The stage and the options."""
        stage = keys.get(STAGE)
        zero = "ZeRO stage not stated" if stage is None else f"ZeRO stage {stage}"
        if not any(keys.under(AC)):
            return f"{zero}, activation checkpointing not stated"
        options = ", ".join(_switched(keys)) or "no activation checkpointing option"
        return f"{zero}, {options}"


def _is_own_tree(tree: document_tree.Tree) -> bool:
    """JSON that is broken is taken for DeepSpeed's, which alone keeps its settings in it."""
    if tree.format == "toml":
        return False
    return _is_own(tree.values) or (tree.format == "json" and not tree.values and bool(tree.faults))


def _is_own(values: Mapping[str, Any]) -> bool:
    if BATCH in values and any(name in values for name in ("fp16", "bf16")):
        return True
    own = any(name in values for name in (ZERO, MICRO_BATCH, "zero_allow_untested_optimizer"))
    return own or isinstance(values.get(AC), Mapping)


def _in_python(source: python_source.PythonSource) -> Iterator[Keys]:
    seen = []
    for way in source.ways:
        for name, value in way.assigned.items():
            held = value.value
            if isinstance(held, dict) and _is_own(held) and (name, held) not in seen:
                seen.append((name, held))
                keys = Keys(place=value.place)
                put_mapping(keys, held, value.place)
                yield keys


def _switched(keys: Keys) -> list[Modifier]:
    return [option for option in _SWITCHES if keys.truth(f"{AC}.{option}")]
