"""What torchtitan refuses of a configuration, in the words of its sources.

Source: torchtitan 0.2.2 config/job_config.py, config/manager.py,
distributed/activation_checkpoint.py, distributed/parallel_dims.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.reading.document_keys import Keys, finding, near
from advisor.reading.read_configuration import Finding, Level

AC: Final = "activation_checkpoint"
MODES: Final = ("none", "full", "selective", "memory_budget")
_CONFIG: Final = "torchtitan 0.2.2 config/job_config.py"
_MANAGER: Final = "torchtitan 0.2.2 config/manager.py"
_CHECKPOINT: Final = "torchtitan 0.2.2 distributed/activation_checkpoint.py"
_DIMS: Final = "torchtitan 0.2.2 distributed/parallel_dims.py"
_FIELDS: Final = {
    AC: (
        "mode",
        "selective_ac_option",
        "per_op_sac_force_recompute_mm_shapes_by_fqns",
        "early_stop",
        "memory_budget",
        "visualize_memory_budget_pareto",
        "preserve_rng_state",
        "determinism_check",
        "debug",
    ),
    "parallelism": (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "disable_loss_parallel",
        "enable_async_tensor_parallel",
        "pipeline_parallel_degree",
        "pipeline_parallel_split_points",
        "module_fqns_per_model_part",
        "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers",
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule",
        "pipeline_parallel_schedule_csv",
        "pipeline_parallel_microbatch_size",
        "pipeline_parallel_microbatches",
        "pipeline_parallel_expert_parallel_overlap",
        "context_parallel_degree",
        "context_parallel_load_balancer",
        "context_parallel_rotate_method",
        "expert_parallel_degree",
        "expert_tensor_parallel_degree",
        "expert_parallel_comm_backend",
        "enable_compiled_autograd",
        "enable_approx_mid_point_recompute",
    ),
}
"""Fields of 0.1 to 0.2."""
_DEGREES: Final = (
    "data_parallel_replicate_degree",
    "tensor_parallel_degree",
    "context_parallel_degree",
    "pipeline_parallel_degree",
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
)


def findings(keys: Keys, num_gpus: int | None) -> Iterator[Finding]:
    """Everything to be said of the configuration."""
    yield from _fields(keys)
    yield from _mode(keys)
    yield from _budget(keys)
    yield from _switches(keys)
    yield from _degrees(keys, num_gpus)


def _error(keys: Keys, rule: str, reason: str, fix: str, source: str, *at: str) -> Finding:
    return finding(keys, Level.ERROR, rule, reason, fix, source, *at)


def _fields(keys: Keys) -> Iterator[Finding]:
    """A name that a section has not: the manager raises."""
    if keys.has("job.custom_config_module") or keys.has("experimental.custom_args_module"):
        return
    for section, names in _FIELDS.items():
        for name in keys.under(section):
            if name not in names:
                meant = near(name, names, 0.5)
                yield _error(
                    keys,
                    f"{section}.unknown_field",
                    f"{name}: [{section}] has no such field",
                    f"did you mean {meant}?" if meant else f"one of {', '.join(names[:4])}, …",
                    f"{_MANAGER} _dict_to_dataclass",
                    f"{section}.{name}",
                )
    wrong = near("activation_checkpoint", [k.split(".")[0] for k in keys.values if AC not in k])
    if wrong:
        yield _error(
            keys,
            "unknown_section",
            f"[{wrong}] is no section of the configuration",
            f"write [{AC}]",
            f"{_MANAGER} _dict_to_dataclass",
            wrong,
        )


def _mode(keys: Keys) -> Iterator[Finding]:
    mode, option = keys.get(f"{AC}.mode"), keys.get(f"{AC}.selective_ac_option")
    if mode is not None and mode not in MODES:
        meant = near(str(mode), MODES, 0.4)
        yield _error(
            keys,
            "mode",
            f"mode = {mode} is none of {', '.join(MODES)}",
            f"did you mean {meant}?" if meant else f"mode = {MODES[1]}",
            f"{_CONFIG} ActivationCheckpoint",
            f"{AC}.mode",
        )
    if option is None:
        return
    if not isinstance(option, str):
        yield _error(
            keys,
            "selective_ac_option",
            f"selective_ac_option = {option} is no text: it has no isdigit()",
            f'selective_ac_option = "{option}"',
            f"{_CHECKPOINT} _apply_ac_to_transformer_block",
            f"{AC}.selective_ac_option",
        )
    elif option != "op" and (not option.isdigit() or int(option) < 1):
        yield _error(
            keys,
            "selective_ac_option",
            f"selective_ac_option = {option!r} is neither 'op' nor a positive number of layers",
            "op, or 2 for every second layer",
            f"{_CHECKPOINT} _apply_ac_to_transformer_block",
            f"{AC}.selective_ac_option",
        )
    if mode in ("none", "full", "memory_budget"):
        yield finding(
            keys,
            Level.NOTE,
            "selective_ac_option.unused",
            f"selective_ac_option is read with mode = selective alone, and mode is {mode}",
            "leave it out, or mode = selective",
            _CHECKPOINT,
            f"{AC}.selective_ac_option",
        )


def _budget(keys: Keys) -> Iterator[Finding]:
    budget = keys.get(f"{AC}.memory_budget")
    if budget is not None:
        try:
            legal = 0.0 <= float(budget) <= 1.0
        except (TypeError, ValueError):
            legal = False
        if not legal:
            yield _error(
                keys,
                "memory_budget",
                f"memory_budget = {budget} is no fraction from 0 to 1",
                "memory_budget = 0.5",
                "torch 2.13 _functorch/partitioners.py:3117",
                f"{AC}.memory_budget",
            )
    if keys.get(f"{AC}.mode") != "memory_budget":
        return
    components = keys.get("compile.components")
    compiled = keys.truth("compile.enable") and (components is None or "model" in components)
    unknown = keys.has("compile.enable") and keys.get("compile.enable") is None
    if not compiled and not unknown and not keys.truth("training.compile"):
        # What a file sets that is not read here cannot be missing.
        elsewhere = keys.about.get("file") and not keys.has("compile.enable")
        yield finding(
            keys,
            Level.NOTE if elsewhere else Level.ERROR,
            "memory_budget.compile",
            "Memory budget mode requires model to be compiled",
            "compile.enable = true",
            f"{_CHECKPOINT} apply_ac",
            f"{AC}.mode",
        )


def _switches(keys: Keys) -> Iterator[Finding]:
    reshard = keys.get("parallelism.fsdp_reshard_after_forward")
    if reshard is not None and reshard not in ("default", "always", "never"):
        yield _error(
            keys,
            "fsdp_reshard_after_forward",
            f"fsdp_reshard_after_forward = {reshard} is none of default, always, never",
            "default",
            f"{_CONFIG} Parallelism",
            "parallelism.fsdp_reshard_after_forward",
        )
    asynchronous = keys.truth("parallelism.enable_async_tensor_parallel")
    compiled = keys.truth("compile.enable") or keys.truth("training.compile")
    if asynchronous and not compiled and keys.get("compile.enable") in (None, False):
        elsewhere = keys.about.get("file") and not keys.has("compile.enable")
        yield finding(
            keys,
            Level.NOTE if elsewhere else Level.ERROR,
            "async_tensor_parallel.compile",
            "Async TP requires torch.compile",
            "compile.enable = true",
            "torchtitan 0.2.2 models/qwen3/infra/parallelize.py, distributed/tensor_parallel.py",
            "parallelism.enable_async_tensor_parallel",
        )
    for key in (f"{AC}.early_stop", f"{AC}.preserve_rng_state", "compile.enable"):
        value = keys.get(key)
        if value is not None and not isinstance(value, bool) and keys.truth(key) is None:
            yield _error(
                keys, "wrong_type", f"{key} = {value} is no boolean", "true or false", _CONFIG, key
            )


def _degrees(keys: Keys, num_gpus: int | None) -> Iterator[Finding]:
    product = 1
    for name in _DEGREES:
        key = f"parallelism.{name}"
        value = keys.get(key)
        degree = keys.number(key)
        if value is not None and (degree is None or degree < 1):
            yield _error(
                keys,
                "parallel_degree",
                f"{name} = {value}: Parallelism degree should be >= 1, except for dp_shard",
                "1 switches it off",
                f"{_DIMS} _validate",
                key,
            )
        if not name.startswith("expert"):
            product *= max(degree or 1, 1)
    shard = keys.number("parallelism.data_parallel_shard_degree")
    if shard is not None and shard != -1 and shard < 1:
        yield _error(
            keys,
            "parallel_degree",
            f"data_parallel_shard_degree = {shard}: dp_shard must be -1 or >= 1",
            "-1 takes all GPUs that are left",
            f"{_DIMS} _validate",
            "parallelism.data_parallel_shard_degree",
        )
    yield from _experts(keys)
    total = product * max(shard or 1, 1)
    wrong = num_gpus is not None and num_gpus % total
    if num_gpus is not None and shard is not None and shard >= 1:
        wrong = total != num_gpus
    if wrong:
        yield _error(
            keys,
            "parallel_degree.product",
            f"the parallel degrees have the product {total}, and there are {num_gpus} GPUs",
            "data_parallel_shard_degree = -1 takes all GPUs that are left",
            f"{_DIMS} _validate",
            "parallelism.data_parallel_shard_degree",
            "parallelism",
        )


def _experts(keys: Keys) -> Iterator[Finding]:
    ep = keys.number("parallelism.expert_parallel_degree") or 1
    etp = keys.number("parallelism.expert_tensor_parallel_degree") or 1
    tp = keys.number("parallelism.tensor_parallel_degree") or 1
    if ep > 1 and etp not in (1, tp):
        yield _error(
            keys,
            "parallelism.expert_tensor_parallel_degree",
            "Currently we only support ETP=TP or ETP=1",
            f"expert_tensor_parallel_degree = 1 or {tp}",
            f"{_DIMS} _validate",
            "parallelism.expert_tensor_parallel_degree",
        )
