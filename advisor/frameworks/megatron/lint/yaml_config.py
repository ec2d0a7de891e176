"""Reads a tree: Megatron-LM's MODEL_ARGS, Bridge's ConfigContainer, NeMo's YAML, plain fields."""

from collections.abc import Mapping
from typing import Any, Final

from advisor.base.place import Place
from advisor.frameworks.megatron.lint.peft_section import put_section
from advisor.frameworks.megatron.lint.settings import KINDS, RENAMED, ReadSettings, field_of
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.names import Framework
from advisor.reading.document_tree import Tree

MIXED_PRECISION: Final = "mixed_precision"
NEMO_KEYS: Final = ("activations_checkpoint_", "mcore_gpt")
"""How keys begin that NeMo 1 alone has."""
_RECIPES: Final = (
    ("fp8_delayed", "delayed"),
    ("with_fp8_mixed", "delayed"),
    ("fp8_current", "tensorwise"),
    ("fp8_subchannel", "blockwise"),
    ("mxfp8", "mxfp8"),
)
_ATTENTION_BACKENDS: Final = ("", "flash", "fused", "unfused", "local", "auto")
_IN_SECTIONS: Final = {
    row.bridge: name
    for name, row in SETTINGS.items()
    if name in KINDS and "." in row.bridge and not row.bridge.startswith("model.")
}
_PER_STAGE: Final = "num_layers_per_virtual_pipeline_stage"
_OWN: Final = ("tensor_model_parallel_size", "recompute_granularity", "num_layers")
"""A document without sections is Megatron's where it has one of these."""


def read_tree(tree: Tree) -> ReadSettings | None:
    """Fields of a document; None where it holds nothing of Megatron.

    MODEL_ARGS: options as keys (tests/functional_tests/.../model_config.yaml of Megatron-LM).
    model: a mapping of fields, as Bridge writes its resolved configuration; with
    activations_checkpoint_* it is NeMo 1's, with `config` inside NeMo 2's. Otherwise fields at
    the top, or under language_model (Megatron-LM's --yaml-cfg).
    """
    if tree.format == "toml":
        return None
    read = ReadSettings(place=tree.place)
    if isinstance(tree.get("MODEL_ARGS"), Mapping):
        _model_args(read, tree)
    elif isinstance(tree.get("model"), Mapping):
        _bridge(read, tree)
    else:
        _put_fields(read, tree)
        if isinstance(tree.get("language_model"), Mapping):
            _put_fields(read, tree, "language_model")
        elif not any(name in read.given.values for name in _OWN):
            return None
    _put_loose(read, tree)
    if isinstance(section := tree.get("peft"), Mapping):
        put_section(read, section, tree.where)
    dumped = read.given.version == "1" or "_target_" in read.loose
    read.is_whole = dumped and "num_layers" in read.given.values
    return read or None


def _put_loose(read: ReadSettings, tree: Tree, *path: str) -> None:
    """Every leaf under its last name; what stands further up wins."""
    for name, value in reversed(list(tree.items(*path))):
        if isinstance(value, Mapping):
            _put_loose(read, tree, *path, name)
    for name, value in tree.items(*path):
        if not isinstance(value, Mapping) and value is not None:
            read.put_loose(name, value, name, tree.where(*path, name))


def _model_args(read: ReadSettings, tree: Tree) -> None:
    for option, value in tree.items("MODEL_ARGS"):
        place = tree.where("MODEL_ARGS", option)
        name = field_of(option)
        if option.lstrip("-").replace("-", "_") == _PER_STAGE and isinstance(value, int):
            read.given.layers_per_virtual_stage = value
        if name and value is not False:
            read.given.spellings.add(option)
            read.put(name, value, option, place)
    _put_environment(read, tree, "ENV_VARS")


def _bridge(read: ReadSettings, tree: Tree) -> None:
    given = read.given
    given.framework = Framework.MEGATRON_BRIDGE
    path: tuple[str, ...] = ("model",)
    if any(name.startswith(NEMO_KEYS) for name, _ in tree.items("model")):
        given.framework, given.version = Framework.NEMO, "1"
    elif isinstance(tree.get("model", "config"), Mapping):
        given.framework, given.version, path = Framework.NEMO, "2", ("model", "config")
    _put_fields(read, tree, *path)
    if given.framework == Framework.NEMO:
        _put_fields(read, tree, "trainer", "strategy")
    else:
        for section, _, name in (path.partition(".") for path in _IN_SECTIONS):
            _put_fields(read, tree, section, only=(name,))
    precision = tree.get(MIXED_PRECISION)
    if isinstance(precision, Mapping):
        _put_fields(read, tree, MIXED_PRECISION, only=("fp8", "fp8_recipe"))
    elif precision:
        put_mixed_precision(read, str(precision), tree.where(MIXED_PRECISION))
    _put_environment(read, tree, "env_vars")


def field_in_section(path: str) -> str | None:
    """The field that a path of Bridge ends with, below its section: ...comm_overlap.NAME."""
    return _IN_SECTIONS.get(".".join(path.lstrip("+").split(".")[-2:]))


def put_mixed_precision(read: ReadSettings, name: str, place: Place) -> None:
    """Bridge's named precision, which overwrites the model's own fp8 fields at validation."""
    for part, recipe in _RECIPES:
        if part in name:
            read.put("fp8", "hybrid", MIXED_PRECISION, place)
            read.put("fp8_recipe", recipe, MIXED_PRECISION, place)


def _put_fields(
    read: ReadSettings, tree: Tree, *path: str, only: tuple[str, ...] | None = None
) -> None:
    for name, value in tree.items(*path):
        if only is None or name in only:
            put_field(read, name, value, tree.where(*path, name))


def put_field(read: ReadSettings, name: str, value: Any, place: Place) -> None:
    """A field as configurations hold it; what is no field of interest is skipped."""
    field = RENAMED.get(name, name)
    plain = _plain(value)
    # A resolved configuration lists both spellings; the unused one is null or empty.
    if field not in KINDS or (name == "cuda_graph_scope" and not plain):
        return
    misfits = isinstance(plain, Mapping) or (isinstance(plain, list) and KINDS[field] is not tuple)
    if plain is None or misfits:
        return
    read.put(field, plain, name, place)
    read.given.spellings.add(name)
    if isinstance(plain, list):
        read.item_places |= {(field, str(item)): place for item in plain}


def _plain(value: Any) -> Any:
    """An enum member of a dumped configuration, {_target_, _args_: [5]}, as its name."""
    if isinstance(value, Mapping) and "_args_" in value:
        args = value["_args_"]
        first = args[0] if isinstance(args, list) and args else None
        backend = str(value.get("_target_", "")).endswith("AttnBackend")
        if backend and isinstance(first, int) and 0 < first < len(_ATTENTION_BACKENDS):
            return _ATTENTION_BACKENDS[first]
        return first
    return value


def _put_environment(read: ReadSettings, tree: Tree, section: str) -> None:
    for name, value in tree.items(section):
        read.environment[name] = (str(value), tree.where(section, name))
