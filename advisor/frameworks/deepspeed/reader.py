"""DeepSpeed's configurations: its JSON file, and the same as a dictionary in Python."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.frameworks.deepspeed.checks import findings
from advisor.frameworks.deepspeed.config_file import STAGES
from advisor.frameworks.deepspeed.config_keys import AC, ZERO
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.setting import Option
from advisor.reading.document_keys import Keys, put_mapping, put_tree
from advisor.reading.document_tree import Tree
from advisor.reading.python_source import PythonSource
from advisor.reading.read_configuration import (
    Checked,
    Document,
    Level,
    ReadConfiguration,
    ReadValue,
)

_OWN: Final = (ZERO, "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", AC)
_SHARDINGS: Final = {stage: sharding for sharding, stage in STAGES.items()}
_FIELDS: Final = {
    "train_micro_batch_size_per_gpu": "job.micro_batch_size",
    "train_batch_size": "job.global_batch_size",
    "pipeline.stages": "layout.pipeline_model_parallel_size",
}
_SWITCHES: Final = tuple(option for option in Option if option is not Option.OFFLOAD)


class DeepSpeedReader:
    """JSON and dictionaries."""

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configurations in a document that are DeepSpeed's."""
        if isinstance(document, PythonSource):
            yield from _in_python(document)
        elif isinstance(document, Tree) and _is_own_tree(document):
            keys = Keys(place=document.place, faults=document.faults)
            keys.about["whole"] = "yes"
            put_tree(keys, document)
            yield _configuration(keys)

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the release refuses or passes over."""
        from advisor.frameworks.deepspeed.adapter import DeepSpeed

        keys: Keys = configuration.settings
        found = sorted(
            findings(keys, configuration.num_gpus), key=lambda f: list(Level).index(f.level)
        )
        return Checked(
            configuration=configuration,
            label=f"DeepSpeed {DeepSpeed().version(version or '')}",
            understood=_understood(keys),
            findings=tuple(found),
        )

    def model(self, configuration: ReadConfiguration) -> str:
        """DeepSpeed names none."""
        return configuration.model


def _is_own_tree(tree: Tree) -> bool:
    """JSON that nobody can read is taken for DeepSpeed's, which alone keeps its settings in it."""
    if tree.format == "toml":
        return False
    return _is_own(tree.values) or (tree.format == "json" and not tree.values)


def _is_own(values: Mapping[str, Any]) -> bool:
    if "train_batch_size" in values and any(name in values for name in ("fp16", "bf16")):
        return True
    return any(name in values for name in _OWN)


def _in_python(source: PythonSource) -> Iterator[ReadConfiguration]:
    seen = []
    for way in source.ways:
        for name, value in way.assigned.items():
            held = value.value
            if not isinstance(held, dict) or not _is_own(held) or (name, held) in seen:
                continue
            seen.append((name, held))
            keys = Keys(place=value.place)
            put_mapping(keys, held, value.place)
            yield _configuration(keys)


def _configuration(keys: Keys) -> ReadConfiguration:
    values: dict[str, ReadValue] = {}

    def put(field: str, value: Any, key: str) -> None:
        given = keys.values[key]
        values[field] = ReadValue(value=value, written=given.written, place=given.place)

    for key, field in _FIELDS.items():
        number = keys.number(key)
        if number is not None and number > 0:
            put(field, number, key)
    stage = keys.get(f"{ZERO}.stage")
    if isinstance(stage, int) and stage in _SHARDINGS:
        put("layout.data_parallel_sharding", _SHARDINGS[stage], f"{ZERO}.stage")
    if keys.get(f"{ZERO}.offload_optimizer.device") == "cpu":
        put("job.optimizer_cpu_offload", True, f"{ZERO}.offload_optimizer.device")
    if keys.get(f"{ZERO}.offload_param.device") == "cpu":
        put("job.param_cpu_offload", True, f"{ZERO}.offload_param.device")
    for key, precision in (("fp16.enabled", "fp16"), ("bf16.enabled", "bf16")):
        if keys.truth(key):
            put("job.precision", precision, key)
    return ReadConfiguration(
        framework=Framework.DEEPSPEED,
        takes_over=(Framework.HUGGINGFACE,),  # a Trainer's job names the file
        place=keys.place,
        values=values,
        recompute=_recompute(keys),
        settings=keys,
    )


def _options(keys: Keys) -> list[Option]:
    return [option for option in _SWITCHES if keys.truth(f"{AC}.{option}")]


def _recompute(keys: Keys) -> str | None:
    """The section says how a checkpoint is kept; whether there is one is the model's affair."""
    interval = keys.number("pipeline.activation_checkpoint_interval")
    head = f"uniform:{interval}" if interval else "full"
    if not interval and not any(keys.under(AC)):
        return None
    return "+".join([head, *_options(keys)])


def _understood(keys: Keys) -> str:
    stage = keys.get(f"{ZERO}.stage")
    zero = "ZeRO stage not said" if stage is None else f"ZeRO stage {stage}"
    if not any(keys.under(AC)):
        return f"{zero}, nothing about activation checkpointing"
    options = ", ".join(_options(keys)) or "no option of activation checkpointing"
    return f"{zero}, {options}"
