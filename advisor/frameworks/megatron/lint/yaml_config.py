"""Reads YAML: Megatron-LM's MODEL_ARGS, Bridge's ConfigContainer, or plain fields."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from advisor.base.errors import UserError
from advisor.frameworks.megatron.lint.given import KINDS, RENAMED, Given, Kind, field_of
from advisor.frameworks.names import Framework

MIXED_PRECISION: Final = "mixed_precision"
NEMO_KEYS: Final = ("activations_checkpoint_", "mcore_gpt")
"""How keys begin that NeMo 1 alone has."""
_RECIPES: Final = (
    ("fp8_delayed", "delayed"),
    ("fp8_current", "tensorwise"),
    ("fp8_subchannel", "blockwise"),
    ("mxfp8", "mxfp8"),
)
_ATTENTION_BACKENDS: Final = ("", "flash", "fused", "unfused", "local", "auto")
_PER_STAGE: Final = "num_layers_per_virtual_pipeline_stage"


def read_yaml(text: str, source: str) -> Given:
    """Fields of a YAML text; UserError where it is no YAML or holds nothing of Megatron.

    MODEL_ARGS: options as keys (tests/functional_tests/.../model_config.yaml of Megatron-LM).
    model: a mapping of fields, as Bridge writes its resolved configuration; with
    activations_checkpoint_* it is NeMo 1's, with `config` inside NeMo 2's. Otherwise fields at
    the top, or under language_model (Megatron-LM's --yaml-cfg).
    """
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise UserError("lint", source, f"is no YAML{line}") from None
    if not isinstance(tree, Mapping):
        raise UserError("lint", source, "holds no mapping of settings")
    if isinstance(tree.get("MODEL_ARGS"), Mapping):
        return _model_args(tree["MODEL_ARGS"], tree.get("ENV_VARS"))
    if isinstance(tree.get("model"), Mapping):
        return _bridge(tree)
    given = Given()
    nested = tree.get("language_model")
    _put_fields(given, {**tree, **nested} if isinstance(nested, Mapping) else tree)
    return given


def _model_args(options: Mapping[str, Any], environment: object) -> Given:
    given = Given()
    for option, value in options.items():
        name = field_of(str(option))
        if str(option).lstrip("-").replace("-", "_") == _PER_STAGE and isinstance(value, int):
            given.layers_per_virtual_stage = value
        if name and value is not False:
            given.spellings.add(str(option))
            given.put(name, value, str(option))
    _put_environment(given, environment)
    return given


def _bridge(tree: Mapping[str, Any]) -> Given:
    given = Given(framework=Framework.MEGATRON_BRIDGE)
    model = tree["model"]
    if any(str(key).startswith(NEMO_KEYS) for key in model):
        given.framework, given.version = Framework.NEMO, "1"
    elif isinstance(model.get("config"), Mapping):
        given.framework, given.version, model = Framework.NEMO, "2", model["config"]
    _put_fields(given, model)
    precision = tree.get(MIXED_PRECISION)
    if isinstance(precision, Mapping):
        _put_fields(given, {k: precision[k] for k in ("fp8", "fp8_recipe") if k in precision})
    elif precision:
        put_mixed_precision(given, str(precision))
    _put_environment(given, tree.get("env_vars"))
    return given


def put_mixed_precision(given: Given, name: str) -> None:
    """Bridge's named precision, which overwrites the model's own fp8 fields at validation."""
    for part, recipe in _RECIPES:
        if part in name:
            given.put("fp8", "hybrid", MIXED_PRECISION)
            given.put("fp8_recipe", recipe, MIXED_PRECISION)


def _put_fields(given: Given, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        field = RENAMED.get(name, name)
        plain = _plain(value)
        # A resolved configuration lists both spellings; the unused one is null or empty.
        if field not in KINDS or (name == "cuda_graph_scope" and not plain):
            continue
        if plain is not None and not (isinstance(plain, Mapping) or _misfits(field, plain)):
            given.put(field, plain, name)
            given.spellings.add(name)


def _misfits(field: str, value: object) -> bool:
    return isinstance(value, list) and KINDS[field] is not Kind.LIST


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


def _put_environment(given: Given, environment: object) -> None:
    if isinstance(environment, Mapping):
        options = str(environment.get("PYTORCH_CUDA_ALLOC_CONF", ""))
        given.put("expandable_segments", "expandable_segments:True" in options, "env_vars")
