"""What torchtitan refuses of a configuration: conditions of configs/rules/torchtitan.json.

Source: torchtitan 0.2.2 config/job_config.py, config/manager.py,
distributed/activation_checkpoint.py, distributed/parallel_dims.py.
"""

from math import prod
from typing import Final

from advisor.base.rule import Match
from advisor.base.units import whole_number
from advisor.frameworks.key_rows import written
from advisor.frameworks.torchtitan import options
from advisor.reading.key_rules import is_count
from advisor.reading.read_configuration import Keys, as_whole_number, near

_MODE: Final = f"{options.AC}.mode"
_OPTION: Final = f"{options.AC}.selective_ac_option"
_REPLICATE, _SHARD, _TP, _CP, _PP, _EP, _ETP = (
    f"{options.PARALLELISM}.{name}_degree"
    for name in (
        *("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel"),
        *("pipeline_parallel", "expert_parallel", "expert_tensor_parallel"),
    )
)
_CUSTOM_CLASSES: Final = ("job.custom_config_module", "experimental.custom_args_module")


def _misspelt_section(keys: Keys) -> Match | None:
    wrong = near(options.AC, [name for name in keys.under("") if name != options.AC])
    return Match(found=wrong, place=keys.where(wrong)) if wrong else None


def _illegal_option(keys: Keys) -> Match | None:
    option, name = keys.get(_OPTION), "selective_ac_option"
    if option is None or option == "op":
        return None
    if not isinstance(option, str):
        reason = f"{name} = {option} must be text (torchtitan calls isdigit() on it)"
        return Match(reason, f'{name} = "{option}"')
    if whole_number(option):
        return None
    reason = f"{name} = {option!r} is neither 'op' nor a positive number of layers"
    return Match(reason, 'use "op", or "2" for every second layer')


def _may_compile_the_model(keys: Keys) -> bool:
    unknown = keys.has("compile.enable") and keys.get("compile.enable") is None
    named = keys.get(options.COMPONENTS)
    with_model = named is None or "model" in options.components(named)
    enabled = keys.truth("compile.enable") and with_model
    return bool(enabled or unknown or keys.truth("training.compile"))


def _other_expert_degree(keys: Keys) -> str:
    ep, etp, tp = (keys.number(key) or 1 for key in (_EP, _ETP, _TP))
    return str(tp) if ep > 1 and etp not in (1, tp) else ""


def _other_product(keys: Keys) -> int:
    """The product of the degrees, where the GPUs are no such number or no multiple of it."""
    total = prod(max(keys.number(key) or 1, 1) for key in (_REPLICATE, _SHARD, _TP, _CP, _PP))
    sees_all = "whole" in keys.about or "file" not in keys.about
    all_said = sees_all and (keys.number(_SHARD) or 0) >= 1
    num_gpus = keys.num_gpus or 0
    return total if (num_gpus and total != num_gpus if all_said else num_gpus % total) else 0


def _waits_for_compile(keys: Keys) -> bool:
    asked = map(keys.truth, (options.ASYNC_TP, options.COMPILED_ASYNC_TP))
    return any(asked) and not _may_compile_the_model(keys)


RULES: Final = tuple(
    written(
        "torchtitan",
        {
            "latest": lambda keys: keys.release == "0.3",
            # its classes are its own: it raises on a name that a section has not
            "manager": lambda keys: not any(map(keys.has, _CUSTOM_CLASSES)),
            "shard": lambda value: as_whole_number(value) in (None, -1) or is_count(value),
            "removed_option.mode": lambda k: k.has(_MODE) and k.values[_MODE].written[:2] == "--",
            "unknown_section": _misspelt_section,
            "selective_ac_option": _illegal_option,
            "memory_budget.compile": lambda keys: (
                keys.get(_MODE) == "memory_budget" and not _may_compile_the_model(keys)
            ),
            "async_tensor_parallel.compile": _waits_for_compile,
            _ETP: _other_expert_degree,
            "parallel_degree.product": _other_product,
        },
        options.OPTIONS,
    )
)
"""Everything to be said of a configuration."""
