"""What torchtitan refuses of a configuration, in the words of its sources.

Source: torchtitan 0.2.2 config/job_config.py, config/manager.py,
distributed/activation_checkpoint.py, distributed/parallel_dims.py.
"""

from math import prod
from typing import Any, Final

from advisor.base.rule import Match
from advisor.base.units import whole_number
from advisor.frameworks.option import names_in
from advisor.frameworks.torchtitan import options
from advisor.reading import key_rules
from advisor.reading.document_keys import Keys, as_whole_number, near

_CONFIG: Final = "torchtitan 0.2.2 config/job_config.py"
_CHECKPOINT: Final = "torchtitan 0.2.2 distributed/activation_checkpoint.py"
_DIMS: Final = "torchtitan 0.2.2 distributed/parallel_dims.py _validate"
_MODE: Final = f"{options.AC}.mode"
_OPTION: Final = f"{options.AC}.selective_ac_option"
_REPLICATE, _SHARD, _TP, _CP, _PP, _EP, _ETP = (
    f"{options.PARALLELISM}.{name}_degree"
    for name in (
        *("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel"),
        *("pipeline_parallel", "expert_parallel", "expert_tensor_parallel"),
    )
)
_REMOVED: Final = (
    *(_OPTION, _ETP, options.ASYNC_TP, options.CONVERTERS, f"{options.AC}.early_stop"),
    f"{options.PARALLELISM}.disable_loss_parallel",
    f"{options.PARALLELISM}.context_parallel_rotate_method",
    f"{options.PARALLELISM}.expert_parallel_comm_backend",
)


def _has_own_fields(keys: Keys) -> bool:
    """Whether the classes are the manager's own, which raises on a name that a section has not."""
    return not (keys.has("job.custom_config_module") or keys.has("experimental.custom_args_module"))


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


_LEFT: Final = "-1 takes all GPUs that are left"
_manager: Final[dict[str, Any]] = {
    "source": "torchtitan 0.2.2 config/manager.py _dict_to_dataclass",
    "given": _has_own_fields,
}
_compile: Final[dict[str, Any]] = {"fix": "compile.enable = true", "lacks": "compile.enable"}
_degree: Final[dict[str, Any]] = {"source": _DIMS, "fault": "parallel_degree"}

RULES: Final = (
    key_rules.illegal_values(
        _REMOVED,
        lambda _: False,
        "torchtitan 0.3 has no option {key}",
        "leave it out, or use torchtitan 0.2",
        given=lambda keys: keys.release == "0.3",
        fault="removed_option",
        source="torchtitan 0.3.0 config/configs.py, distributed/activation_checkpoint.py",
    ),
    key_rules.key_rule(
        _MODE,
        lambda k: k.release == "0.3" and k.has(_MODE) and k.values[_MODE].written[:2] == "--",
        "torchtitan 0.3 has no option activation_checkpoint.mode: the kind is a subcommand",
        "write activation_checkpoint:full, or another kind, as the last word",
        fault="removed_option",
        source="torchtitan 0.3.0 distributed/activation_checkpoint.py",
    ),
    *(
        key_rules.unknown_names(
            section,
            names_in(options.OPTIONS, section),
            f"[{section}] has no such field",
            cutoff=0.5,
            otherwise=f"fields are {', '.join(names_in(options.OPTIONS, section)[:4])}, …",
            fault=f"{section}.unknown_field",
            **_manager,
        )
        for section in (options.AC, options.PARALLELISM)
    ),
    key_rules.illegal_values(
        options.SECTIONS,
        key_rules.is_section,
        "{key} = {value!r} must be a section",
        "write [{key}] and its keys below it",
        **_manager,
    ),
    key_rules.key_rule(
        "unknown_section",
        _misspelt_section,
        "[{found}] is not a section of the configuration",
        f"write [{options.AC}]",
        **_manager,
    ),
    key_rules.no_choice(
        _MODE,
        options.MODES,
        cutoff=0.4,
        fix=f"mode = {options.MODES[1]}",
        source=f"{_CONFIG} ActivationCheckpoint",
    ),
    key_rules.key_rule(
        _OPTION, _illegal_option, source=f"{_CHECKPOINT} _apply_ac_to_transformer_block"
    ),
    *key_rules.written("torchtitan"),
    key_rules.key_rule(
        _MODE,
        lambda k: k.get(_MODE) == "memory_budget" and not _may_compile_the_model(k),
        "Memory budget mode requires model to be compiled",
        fault="memory_budget.compile",
        source=f"{_CHECKPOINT} apply_ac",
        **_compile,
    ),
    key_rules.key_rule(
        (options.ASYNC_TP, options.COMPILED_ASYNC_TP),
        lambda k: (
            any(map(k.truth, (options.ASYNC_TP, options.COMPILED_ASYNC_TP)))
            and not _may_compile_the_model(k)
        ),
        "Async TP requires torch.compile",
        fault="async_tensor_parallel.compile",
        source="torchtitan 0.2.2 models/qwen3/infra/parallelize.py, distributed/tensor_parallel.py",
        **_compile,
    ),
    key_rules.no_choice(
        options.RESHARD, ("default", "always", "never"), source=f"{_CONFIG} Parallelism"
    ),
    key_rules.illegal_values(
        (f"{options.AC}.early_stop", f"{options.AC}.preserve_rng_state", "compile.enable"),
        key_rules.is_boolean,
        "{key} = {value} must be a boolean",
        "true or false",
        source=_CONFIG,
    ),
    key_rules.illegal_values(
        (_REPLICATE, _TP, _CP, _PP, _EP, _ETP),
        key_rules.is_count,
        "{name} = {value}: Parallelism degree should be >= 1, except for dp_shard",
        "1 switches it off",
        **_degree,
    ),
    key_rules.illegal_values(
        _SHARD,
        lambda value: as_whole_number(value) in (None, -1) or key_rules.is_count(value),
        "{name} = {value}: dp_shard must be -1 or >= 1",
        _LEFT,
        **_degree,
    ),
    key_rules.key_rule(
        _ETP,
        _other_expert_degree,
        "Currently we only support ETP=TP or ETP=1",
        "expert_tensor_parallel_degree = 1 or {found}",
        fault=_ETP,
        source=_DIMS,
    ),
    key_rules.key_rule(
        (_SHARD, options.PARALLELISM),
        _other_product,
        "the parallel degrees have the product {found}, but there are {keys.num_gpus} GPUs",
        f"let the product divide {{keys.num_gpus}}; data_parallel_shard_degree = {_LEFT}",
        fault="parallel_degree.product",
        source=_DIMS,
    ),
)
"""Everything to be said of a configuration."""
