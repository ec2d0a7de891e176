"""The workload as a log itself tells it: the arguments that Megatron-LM and DeepSpeed print."""

import ast
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import whole_number
from advisor.frameworks.megatron.options import table
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting, parse_setting
from harness.base.collections import Scalar, flatten
from harness.trial.trial import Backend, world_size

_SIZES: Final = {
    **{
        argument: row.ours.removeprefix("job.")
        for row in (
            *table.SECTIONS["Parallelism"].rows,
            *table.SECTIONS["Batch"].rows,
            *(
                table.SETTINGS[name]
                for name in ("expert_model_parallel_size", "num_layers", "hidden_size")
            ),
        )
        if row.kind is int and row.ours.endswith(f".{row.name}")
        for argument in (row.name, row.flag.removeprefix("--").replace("-", "_"))
    },
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
}
"""Argument -> field of a workload: Megatron's options, and DeepSpeed's two."""


def stated_workload(arguments: Mapping[str, str]) -> dict[str, Any]:
    """The part of a workload, as JSON, that `arguments` tell."""
    found: dict[str, Any] = {}
    for name, path in _SIZES.items():
        size = _size(arguments.get(name, ""))
        if size is not None:
            _enter(found, path, size)
    replicas, rest = divmod(_size(arguments.get("world_size", "")) or 0, world_size(found))
    if replicas and not rest:
        _enter(found, "layout.data_parallel_size", replicas)
    recompute = stated_recompute(arguments)
    if recompute is not None:
        found["recompute"] = recompute
    return found


def stated_recompute(arguments: Mapping[str, str]) -> str | None:
    """The recompute setting that the arguments give, as the advisor spells it; None where they do
    not tell. Megatron prints ['core_attn'] even where nothing is recomputed."""
    granularity = arguments.get("recompute_granularity")
    if granularity is None:
        return None
    method = arguments.get("recompute_method", "None")
    try:
        setting = RecomputeSetting(
            granularity=Granularity(granularity.lower()),
            modules=_names(arguments.get("recompute_modules", "None")),
            method=None if method == "None" else Method(method),
            num_layers=_size(arguments.get("recompute_num_layers", "")),
            offload_modules=_names(arguments.get("offload_modules", "[]")) or (),
            distribute_saved_activations=arguments.get("distribute_saved_activations") == "True",
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return same_spelling(setting)


def contradictions(workload: Mapping[str, Any], arguments: Mapping[str, str]) -> tuple[str, ...]:
    """What the log tells otherwise than `workload` asks, one text each."""
    asked: dict[str, Scalar] = flatten(workload)
    stated = flatten(stated_workload(arguments))
    recompute = asked.get("recompute")
    if "recompute" in stated and isinstance(recompute, str):
        try:
            asked["recompute"] = same_spelling(parse_setting(recompute))
        except UserError:  # a setting that Megatron does not have
            stated.pop("recompute")
    return tuple(
        f"{name} is {value} in the log, {asked[name]} in the request"
        for name, value in stated.items()
        if name in asked and asked[name] is not None and str(asked[name]) != str(value)
    )


def unknown_workload(arguments: Mapping[str, str], name: str) -> dict[str, Any]:
    """A workload of which only the log tells: its model has no name but its sizes, else `name`."""
    found = stated_workload(arguments)
    model = found.setdefault("model", {})
    sizes = model.get("num_layers"), model.get("hidden_size")
    model["name"] = name if None in sizes else f"{sizes[0]}x{sizes[1]}"
    return {"layout": {}, **found, "backend": Backend.COMMAND.value}


def same_spelling(setting: RecomputeSetting) -> str:
    """One text for all settings that act alike: modules sorted, what has no effect left out."""
    modules = tuple(sorted(setting.effective_modules))
    acts = setting.granularity is Granularity.FULL or modules
    return replace(
        setting,
        granularity=setting.granularity if acts else Granularity.NONE,
        modules=modules or None,
        distribute_saved_activations=setting.distribute_saved_activations
        and setting.granularity is Granularity.FULL,
        offload_modules=tuple(sorted(setting.offload_modules)),
    ).spec


def _enter(found: dict[str, Any], path: str, value: int) -> None:
    group, _, name = path.rpartition(".")
    (found.setdefault(group, {}) if group else found)[name] = value


def _size(text: str) -> int | None:
    return whole_number(text) or None


def _names(text: str) -> tuple[str, ...] | None:
    values = ast.literal_eval(text)
    return None if values is None else tuple(str(value) for value in values)
