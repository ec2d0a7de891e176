"""torchtitan's configurations: TOML files, and options of its command line.

Up to 0.2 both set the fields of one data class; from 0.3 on the kind of checkpointing is a
subcommand, `activation_checkpoint:full`.
"""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.names import Framework
from advisor.frameworks.torchtitan.checks import AC, MODES, findings
from advisor.job.layout import DataParallelSharding
from advisor.reading.command_options import options
from advisor.reading.document_keys import Keys, put_tree
from advisor.reading.document_tree import Tree
from advisor.reading.read_configuration import (
    Checked,
    Document,
    Level,
    ReadConfiguration,
    ReadValue,
)
from advisor.reading.shell import Command

_SECTIONS: Final = ("parallelism", "training", AC, "model", "compile", "job", "optimizer", "float8")
_FIELDS: Final = {
    "training.seq_len": "job.seq_length",
    "training.local_batch_size": "job.micro_batch_size",
    "training.batch_size": "job.micro_batch_size",
    "training.global_batch_size": "job.global_batch_size",
    "parallelism.tensor_parallel_degree": "layout.tensor_model_parallel_size",
    "parallelism.pipeline_parallel_degree": "layout.pipeline_model_parallel_size",
    "parallelism.context_parallel_degree": "layout.context_parallel_size",
    "parallelism.expert_parallel_degree": "layout.expert_model_parallel_size",
    "parallelism.expert_tensor_parallel_degree": "layout.expert_tensor_parallel_size",
    "parallelism.data_parallel_shard_degree": "layout.data_parallel_size",
}
_SUBCOMMANDS: Final = {
    "none": "none",
    "full": "full",
    "selective": "selective",
    "memory-budget": "memory_budget",
}
_RESHARD: Final = "parallelism.fsdp_reshard_after_forward"


class TorchTitanReader:
    """TOML, and `--section.key value`."""

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """The configuration in a document, if it is torchtitan's."""
        keys = None
        if isinstance(document, Tree) and document.format == "toml":
            keys = _read_toml(document)
        elif isinstance(document, Command):
            keys = _read_command(document)
        if keys is not None:
            yield _configuration(keys)

    def check(self, configuration: ReadConfiguration, version: str | None) -> Checked:
        """What the release refuses."""
        from advisor.frameworks.torchtitan.adapter import TorchTitan

        keys: Keys = configuration.settings
        release = TorchTitan().version(version or configuration.version)
        found = sorted(
            findings(keys, configuration.num_gpus), key=lambda f: list(Level).index(f.level)
        )
        return Checked(
            configuration=configuration,
            label=f"torchtitan {release}",
            understood=_understood(keys),
            findings=tuple(found),
        )

    def model(self, configuration: ReadConfiguration) -> str:
        """Name and flavor."""
        return configuration.model


def _read_toml(tree: Tree) -> Keys | None:
    sections = [name for name, _ in tree.items()]
    own = [name for name in sections if name in _SECTIONS]
    if len(own) < 2 and AC not in sections and "parallelism" not in sections:
        return None
    keys = Keys(place=tree.place)
    put_tree(keys, tree)
    keys.about["version"] = "0.1" if keys.has("training.batch_size") else "0.2"
    return keys


def _read_command(command: Command) -> Keys | None:
    keys = Keys(place=command.place)
    keys.about["version"] = "0.2"
    for word in command.words:
        section, _, kind = word.text.partition(":")
        if section.replace("-", "_") == AC and kind in _SUBCOMMANDS:
            keys.put(f"{AC}.mode", _SUBCOMMANDS[kind], word.place)
            keys.about["version"] = "0.3"
    for option in options(command.words):
        section, dot, name = option.name.removeprefix("--").replace("-", "_").partition(".")
        if not dot or section not in _SECTIONS or not option.name.startswith("--"):
            continue
        negated = name.startswith("no_") and not option.values
        keys.put(
            f"{section}.{name.removeprefix('no_') if negated else name}",
            option.text if option.values else not negated,
            option.place,
            option.name,
        )
    if keys.has("job.config_file") or "CONFIG_FILE" in command.environment:
        keys.about["file"] = "yes"
    elif any("run_train" in text for text in command.texts):
        keys.about["file"] = "its default"
    recognised = any(key.split(".")[0] in (AC, "parallelism", "training") for key in keys.values)
    titan = any("torchtitan" in text or "run_train" in text for text in command.texts)
    return keys if recognised and (titan or not _is_anothers(command)) else None


def _is_anothers(command: Command) -> bool:
    return any("=" in text and text[:1].isalpha() and "." in text for text in command.texts)


def _configuration(keys: Keys) -> ReadConfiguration:
    values: dict[str, ReadValue] = {}
    for key, field in _FIELDS.items():
        number = keys.number(key)
        if number is not None and number > 0:
            given = keys.values[key]
            values[field] = ReadValue(value=number, written=given.written, place=given.place)
    if keys.get(_RESHARD) == "never":
        given = keys.values[_RESHARD]
        values["layout.data_parallel_sharding"] = ReadValue(
            value=DataParallelSharding.GRADIENTS, written=given.written, place=given.place
        )
    return ReadConfiguration(
        framework=Framework.TORCHTITAN,
        version=keys.about["version"],
        place=keys.place,
        values=values,
        recompute=_recompute(keys),
        model=_model(keys),
        settings=keys,
    )


def _model(keys: Keys) -> str:
    """`llama3` of flavor `8B` is our llama3_8b."""
    name, flavor = keys.get("model.name"), keys.get("model.flavor")
    if not name:
        return ""
    if not flavor or (str(name).startswith("deepseek") and flavor == "671B"):
        return str(name).lower()
    return f"{name}_{flavor}".lower().replace("-", "_")


def _recompute(keys: Keys) -> str | None:
    mode = keys.get(f"{AC}.mode") or ("selective" if any(keys.under(AC)) else None)
    if mode not in MODES:
        return None
    if mode == "memory_budget":
        return f"budget:{keys.get(f'{AC}.memory_budget') or 0.5}"
    if mode != "selective":
        return str(mode)
    option = keys.get(f"{AC}.selective_ac_option") or "2"
    return "op:torchtitan" if option == "op" else f"selective:{option}"


def _understood(keys: Keys) -> str:
    setting = _recompute(keys)
    if not any(keys.under(AC)):
        return "no mode of activation checkpointing"
    return "a mode that is not known" if setting is None else f"activation checkpointing {setting}"
