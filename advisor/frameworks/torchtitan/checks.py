"""What torchtitan refuses of a configuration, in the words of its sources.

Source: torchtitan 0.2.2 config/job_config.py, config/manager.py,
distributed/activation_checkpoint.py, distributed/parallel_dims.py.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

from advisor.base.rule import Finding, Verdict
from advisor.frameworks.option import names_in
from advisor.frameworks.torchtitan.options import (
    AC,
    ASYNC_TP,
    MODES,
    OPTIONS,
    PARALLELISM,
    RESHARD,
    SECTIONS,
)
from advisor.reading.document_keys import Keys, near, whole
from advisor.reading.key_checks import illegal_values, is_boolean, no_choice, unknown_names

_CONFIG: Final = "torchtitan 0.2.2 config/job_config.py"
_MANAGER: Final = "torchtitan 0.2.2 config/manager.py _dict_to_dataclass"
_CHECKPOINT: Final = "torchtitan 0.2.2 distributed/activation_checkpoint.py"
_APPLIED: Final = f"{_CHECKPOINT} _apply_ac_to_transformer_block"
_DIMS: Final = "torchtitan 0.2.2 distributed/parallel_dims.py _validate"
_TENSOR_PARALLEL: Final = (
    "torchtitan 0.2.2 models/qwen3/infra/parallelize.py, distributed/tensor_parallel.py"
)
_MODE: Final = f"{AC}.mode"
_OPTION: Final = f"{AC}.selective_ac_option"
_REPLICATE, _SHARD, _TP, _CP, _PP, _EP, _ETP = (
    f"{PARALLELISM}.{name}_degree"
    for name in (
        *("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel"),
        *("pipeline_parallel", "expert_parallel", "expert_tensor_parallel"),
    )
)


def findings(keys: Keys) -> Iterator[Finding]:
    """Everything to be said of the configuration."""
    yield from _fields(keys)
    yield from _mode(keys)
    yield from _compile(keys)
    resharding = ("default", "always", "never")
    yield from no_choice(keys, RESHARD, resharding, f"{_CONFIG} Parallelism")
    switches = (f"{AC}.early_stop", f"{AC}.preserve_rng_state", "compile.enable")
    reason = "{key} = {value} must be a boolean"
    yield from illegal_values(keys, switches, is_boolean, reason, "true or false", _CONFIG)
    yield from _degrees(keys)


def _fields(keys: Keys) -> Iterator[Finding]:
    """A name that a section has not: the manager raises, unless the classes are other ones."""
    if keys.has("job.custom_config_module") or keys.has("experimental.custom_args_module"):
        return
    for section in (AC, PARALLELISM):
        names = names_in(OPTIONS, section)
        yield from unknown_names(
            keys,
            section,
            names,
            f"[{section}] has no such field",
            _MANAGER,
            rule=f"{section}.unknown_field",
            cutoff=0.5,
            otherwise=f"fields are {', '.join(names[:4])}, …",
        )
    reason, fix = "{key} = {value!r} must be a section", "write [{}] and its keys below it"
    for section in SECTIONS:
        yield from illegal_values(
            keys, (section,), _is_section, reason, fix.format(section), _MANAGER
        )
    wrong = near(AC, [name for name in keys.under("") if name != AC])
    if wrong:
        reason, fix = f"[{wrong}] is not a section of the configuration", f"write [{AC}]"
        yield keys.error("unknown_section", reason, fix, _MANAGER, wrong)


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _mode(keys: Keys) -> Iterator[Finding]:
    source = f"{_CONFIG} ActivationCheckpoint"
    yield from no_choice(keys, _MODE, MODES, source, cutoff=0.4, fix=f"mode = {MODES[1]}")
    option, mode, rule = keys.get(_OPTION), keys.get(_MODE), "selective_ac_option"
    if option is not None and not isinstance(option, str):
        reason = f"{rule} = {option} must be text (torchtitan calls isdigit() on it)"
        yield keys.error(rule, reason, f'{rule} = "{option}"', _APPLIED, _OPTION)
    elif option is not None and option != "op" and not (option.isdigit() and int(option) > 0):
        reason = f"{rule} = {option!r} is neither 'op' nor a positive number of layers"
        yield keys.error(rule, reason, 'use "op", or "2" for every second layer', _APPLIED, _OPTION)
    if option is not None and mode in MODES and mode != "selective":
        rule, fix = "selective_ac_option.unused", "leave it out, or mode = selective"
        reason = f"selective_ac_option is used only with mode = selective, but mode = {mode}"
        yield keys.finding(Verdict.NOTE, rule, reason, fix, _CHECKPOINT, _OPTION)
    rule, source = "memory_budget", "torch 2.13 _functorch/partitioners.py:3117"
    reason, fix = "memory_budget = {value} must be between 0 and 1", "memory_budget = 0.5"
    yield from illegal_values(
        keys, (f"{AC}.memory_budget",), _is_fraction, reason, fix, source, rule
    )


def _is_fraction(value: Any) -> bool:
    try:
        return 0.0 <= float(value) <= 1.0
    except (TypeError, ValueError):
        return False


def _compile(keys: Keys) -> Iterator[Finding]:
    """What needs torch.compile; a file that is not read here may switch it on."""
    enabled, components = keys.truth("compile.enable"), keys.get("compile.components")
    said = keys.has("compile.enable")
    verdict = Verdict.NOTE if keys.about.get("file") and not said else Verdict.REFUSED
    if keys.truth("training.compile") or (said and keys.get("compile.enable") is None):
        return
    fix, whole_model = "compile.enable = true", components is None or "model" in str(components)
    if keys.get(_MODE) == "memory_budget" and not (enabled and whole_model):
        rule, source = "memory_budget.compile", f"{_CHECKPOINT} apply_ac"
        reason = "Memory budget mode requires model to be compiled"
        yield keys.finding(verdict, rule, reason, fix, source, _MODE)
    if keys.truth(ASYNC_TP) and not enabled:
        rule, reason = "async_tensor_parallel.compile", "Async TP requires torch.compile"
        yield keys.finding(verdict, rule, reason, fix, _TENSOR_PARALLEL, ASYNC_TP)


def _degrees(keys: Keys) -> Iterator[Finding]:
    reason = "{name} = {value}: Parallelism degree should be >= 1, except for dp_shard"
    at, rule, fix = (_REPLICATE, _TP, _CP, _PP, _EP, _ETP), "parallel_degree", "1 switches it off"
    yield from illegal_values(keys, at, _is_degree, reason, fix, _DIMS, rule)
    shard, num_gpus = keys.number(_SHARD), keys.num_gpus
    fix = "-1 takes all GPUs that are left"
    if shard is not None and shard != -1 and shard < 1:
        reason = f"data_parallel_shard_degree = {shard}: dp_shard must be -1 or >= 1"
        yield keys.error(rule, reason, fix, _DIMS, _SHARD)
    ep, etp, tp = (keys.number(key) or 1 for key in (_EP, _ETP, _TP))
    if ep > 1 and etp not in (1, tp):
        reason = "Currently we only support ETP=TP or ETP=1"
        yield keys.error(_ETP, reason, f"expert_tensor_parallel_degree = 1 or {tp}", _DIMS, _ETP)
    total = prod(max(keys.number(key) or 1, 1) for key in (_REPLICATE, _SHARD, _TP, _CP, _PP))
    all_said = shard is not None and shard >= 1
    if num_gpus is not None and (total != num_gpus if all_said else num_gpus % total):
        reason = f"the parallel degrees have the product {total}, but there are {num_gpus} GPUs"
        fix = f"data_parallel_shard_degree = {fix}"
        yield keys.error("parallel_degree.product", reason, fix, _DIMS, _SHARD, PARALLELISM)


def _is_degree(value: Any) -> bool:
    return (whole(value) or 0) >= 1
