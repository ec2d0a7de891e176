"""torchtitan's configurations: TOML files, and options of its command line.

Up to 0.2 both set the fields of one data class; from 0.3 on the kind of checkpointing is a
subcommand, `activation_checkpoint:full`.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from advisor.frameworks.names import Framework
from advisor.frameworks.torch.keyed_reader import KeyedReader
from advisor.frameworks.torchtitan.checks import RULES
from advisor.frameworks.torchtitan.options import AC, MODES, OPTIONS, PARALLELISM, SECTIONS
from advisor.reading.command_options import options, unread_words
from advisor.reading.document_tree import Tree
from advisor.reading.model_names import named_model
from advisor.reading.python_source import PythonSource
from advisor.reading.read_configuration import Document, Keys, as_whole_number, put_tree
from advisor.reading.shell import Note, ShellCommand

_BATCH: Final = ("job.seq_length", "job.micro_batch_size")
_PROGRAMS: Final = (re.compile("run_train"), re.compile("run_train|torchtitan"))
_BEFORE_0_1: Final = re.compile(
    r"(?:training|experimental)\.(?=(?!data_parallel_seed)\w+_parallel)"
)
"""Sections that the degrees of parallelism stood in before they had their own."""
_MODELS: Final = "torchtitan.models."
_KINDS: Final = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
_CLASSES: Final = {
    "TrainingConfig": "training",
    "ParallelismConfig": PARALLELISM,
    "CompileConfig": "compile",
}
_SUBCOMMANDS: Final = {mode.replace("_", "-"): mode for mode in MODES}


class TorchTitanReader(KeyedReader):
    """TOML, `--section.key value`, and the functions of 0.3's registry."""

    framework = Framework.TORCHTITAN
    label = "torchtitan"
    options = OPTIONS
    rules = RULES

    def find(self, document: Document) -> Iterator[Keys]:
        """The configuration in a document, if it is torchtitan's."""
        if isinstance(document, Tree) and document.format == "toml":
            yield from _in_toml(document)
        elif isinstance(document, ShellCommand):
            yield from _in_command(document)
        elif isinstance(document, PythonSource):
            yield from _in_python(document)

    def model_named(self, keys: Keys) -> str:
        """`llama3` of flavor `8B` is our llama3_8b; without a flavor its assets' folder, called
        as on the Hugging Face hub, names it."""
        name, flavor = keys.get("model.name"), keys.get("model.flavor")
        assets = named_model([str(keys.get("model.hf_assets_path") or "")])
        if not name or (assets and not flavor):
            return assets
        if not flavor or (str(name).startswith("deepseek") and flavor == "671B"):
            return str(name).lower()
        return f"{name}_{flavor}".lower().replace("-", "_")

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """Defaults of the options; a file that is not seen may say otherwise."""
        if not _sees_all(keys):
            return {}
        return {row.ours: row.default for row in OPTIONS if row.ours in _BATCH and row.default}

    def num_microbatches(self, keys: Keys) -> int | None:
        """A global batch of -1 is one microbatch a rank."""
        return 1 if _sees_all(keys) else None

    def recompute(self, keys: Keys) -> str | None:
        """The mode; selective where it is not said."""
        says = any(keys.under(AC)) or _sees_all(keys)
        mode = keys.get(f"{AC}.mode") or ("selective" if says else None)
        if mode not in MODES:
            return None
        if mode == "memory_budget":
            return f"budget:{keys.get(f'{AC}.memory_budget') or 0.5}"
        if mode != "selective":
            return str(mode)
        option = keys.get(f"{AC}.selective_ac_option") or ("op" if keys.release == "0.3" else "2")
        return "op:torchtitan" if option == "op" else f"selective:{option}"

    def understood(self, keys: Keys) -> str:
        """The mode."""
        setting = self.recompute(keys)
        if not any(keys.under(AC)):
            return "no activation checkpointing mode"
        return f"activation checkpointing {setting}" if setting is not None else "an unknown mode"


def _sees_all(keys: Keys) -> bool:
    """Whether what the keys do not say is torchtitan's default."""
    return "whole" in keys.about or "file" not in keys.about


def _in_toml(tree: Tree) -> Iterator[Keys]:
    sections = [name for name, _ in tree.items()]
    own = [name for name in sections if name in SECTIONS]
    if len(own) >= 2 or AC in sections or PARALLELISM in sections:
        keys = Keys(place=tree.place, about={"whole": "yes"})
        put_tree(keys, tree)
        keys.release = "0.1" if keys.has("training.batch_size") else "0.2"
        for old in filter(_BEFORE_0_1.match, [*keys.values]):
            keys.values[_BEFORE_0_1.sub(f"{PARALLELISM}.", old)] = keys.values.pop(old)
        yield keys


def _in_python(source: PythonSource) -> Iterator[Keys]:
    """What a function makes, or sets of a configuration that another makes."""
    models = [name.split(".")[2] for name in source.imports if name.startswith(_MODELS)]
    for way in source.ways:
        keys = Keys(place=way.place, release="0.3", about={"file": "another's configuration"})
        for call in way.calls:
            kind, _, last = call.name.rpartition(".")
            section = _CLASSES.get(last, AC if kind in _KINDS else "")
            if kind == "Trainer":
                keys.about = {"whole": "yes"}
            if kind in _KINDS:
                keys.put(f"{AC}.mode", _KINDS[kind], call.place)
            if last == "model_registry" and models and call.positional:
                keys.put("model.name", models[0], call.place)
                keys.put("model.flavor", call.positional[0].value, call.place)
            for name, value in call.keywords.items() if section else ():
                keys.put(f"{section}.{name}", value.value, value.place, name)
        for name, value in way.assigned.items():
            path = name.partition(".")[2]
            if path.partition(".")[0] in (*_CLASSES.values(), AC) and "." in path:
                keys.put(path, value.value, value.place, name)
        if keys.values and any(name.startswith("torchtitan.") for name in source.imports):
            yield keys


def _in_command(command: ShellCommand) -> Iterator[Keys]:
    keys = Keys(place=command.place, release="0.2")
    for word in command.words:
        section, _, kind = word.text.partition(":")
        if section.replace("-", "_") == AC and kind in _SUBCOMMANDS:
            keys.put(f"{AC}.mode", _SUBCOMMANDS[kind], word.place)
            keys.release = "0.3"
    for option in options(command.words):
        section, dot, name = option.name.removeprefix("--").replace("-", "_").partition(".")
        if not dot or section not in SECTIONS or not option.name.startswith("--"):
            continue
        said = [w for w in option.values if f"{AC}:" not in w.text.replace("-", "_")]
        negated = name.startswith("no_") and not said
        key = f"{section}.{name.removeprefix('no_') if negated else name}"
        keys.put(key, option.text if said else not negated, option.place, option.name)
    runs, titan = (any(map(name.search, command.texts)) for name in _PROGRAMS)
    exported = {name: word.text for name, word in command.environment.items()}
    given = exported if runs else {}
    named = {o.name.replace("-file", "_file"): o.text for o in options(command.words) if titan}
    file = named.get("--job.config_file") or exported.get("CONFIG_FILE")
    if not file and ({"--module", "--config"} <= {*named} or {"MODULE", "CONFIG"} & {*given}):
        config = named.get("--config") or given.get("CONFIG") or "by default"
        keys.release, file = "0.3", f"configuration {config} of torchtitan's registry"
    if file:
        keys.about["file"], keys.unread = "yes", (Note(file, keys.place),)
    elif runs:
        keys.about["file"] = "its default"
    keys.num_gpus = as_whole_number(given.get("NGPU", "")) or None
    recognised = {AC, PARALLELISM, "training"} & {*keys.under("")} or (
        file and unread_words(command.words)
    )
    others = any("=" in text and text[:1].isalpha() and "." in text for text in command.texts)
    if recognised and (titan or not others):
        yield keys
