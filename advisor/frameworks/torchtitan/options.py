"""Fields of torchtitan's configuration in the order of 0.2.2 config/job_config.py, which a TOML
file or options set; of activation_checkpoint and parallelism all that 0.1 to 0.2 have."""

from typing import Any, Final

from advisor.frameworks.option import Option, Status, key, keys
from advisor.job.job import COMPILED
from advisor.job.layout import DataParallelSharding

AC: Final = "activation_checkpoint"
PARALLELISM: Final = "parallelism"
MODES: Final = ("none", "full", "selective", "memory_budget")
SECTIONS: Final = (
    *(PARALLELISM, "training", AC, "model", "compile", "job", "optimizer", "float8", "quantize"),
)
CONVERTERS: Final = "model.converters"
ASYNC_TP: Final = f"{PARALLELISM}.enable_async_tensor_parallel"
COMPILED_ASYNC_TP: Final = "compile.enable_async_tensor_parallel"
COMPONENTS: Final = "compile.components"
RESHARD: Final = f"{PARALLELISM}.fsdp_reshard_after_forward"
_SHARDINGS: Final = {"never": DataParallelSharding.GRADIENTS}
_DEFAULT: Final = "predicted at its default"
_KERNEL: Final = "scales of all weights at once"
_DEBUGGING: Final = "visualize_memory_budget_pareto preserve_rng_state determinism_check debug"
_NOT_MODELLED: Final = {
    _DEFAULT: """
        disable_loss_parallel expert_parallel_comm_backend enable_compiled_autograd
        enable_approx_mid_point_recompute
    """,
    "pipelines are not modelled; CP is modelled with a balanced load": """
        pipeline_parallel_split_points module_fqns_per_model_part
        pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers
        pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_schedule_csv
        pipeline_parallel_microbatch_size pipeline_parallel_microbatches
        pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer
    """,
}
_FLOAT8: Final = ("quantize.linear.float8", "float8")
"""Sections of 0.2, and of 0.1."""
GATHER: Final = "enable_fsdp_float8_all_gather"
_SCALES: Final = "precompute_float8_dynamic_scale_for_fsdp"


def components(value: Any) -> tuple[str, ...]:
    """What a list names, or a text with commas; torchtitan passes over other names."""
    named = value if isinstance(value, list) else str(value).split(",")
    return tuple(name for name in COMPILED if name in named)


OPTIONS: Final[tuple[Option, ...]] = (
    key("training.seq_len", 2048, "job.seq_length"),
    key("training.local_batch_size", 8, "job.micro_batch_size"),
    key("training.batch_size", None, "job.micro_batch_size", kind=int, note="0.1"),
    key("training.global_batch_size", -1, "job.global_batch_size"),
    key(f"{PARALLELISM}.data_parallel_replicate_degree", 1, "layout.data_parallel_replicate_size"),
    key(f"{PARALLELISM}.data_parallel_shard_degree", -1, "layout.data_parallel_size"),
    key(RESHARD, "default", "layout.data_parallel_sharding", means=_SHARDINGS),
    key(f"{PARALLELISM}.tensor_parallel_degree", 1, "layout.tensor_model_parallel_size"),
    key(f"{PARALLELISM}.pipeline_parallel_degree", 1, "layout.pipeline_model_parallel_size"),
    key(f"{PARALLELISM}.context_parallel_degree", 1, "layout.context_parallel_size"),
    key(
        f"{PARALLELISM}.context_parallel_rotate_method",
        "allgather",
        "layout.cp_comm_type",
        means={"allgather": "all_gather", "alltoall": "p2p"},
    ),
    key(f"{PARALLELISM}.expert_parallel_degree", 1, "layout.expert_model_parallel_size"),
    key(f"{PARALLELISM}.expert_tensor_parallel_degree", 1, "layout.expert_tensor_parallel_size"),
    key(ASYNC_TP, False, "layout.tp_comm_overlap"),
    key(COMPILED_ASYNC_TP, False, "layout.tp_comm_overlap", note="from 0.3 on"),
    *keys(Status.UNPRICED, PARALLELISM, _NOT_MODELLED),
    key(f"{AC}.mode", "selective", "recompute"),
    key(f"{AC}.selective_ac_option", "2", "recompute"),
    *keys(
        Status.UNPRICED, AC, {_DEFAULT: "per_op_sac_force_recompute_mm_shapes_by_fqns early_stop"}
    ),
    key(f"{AC}.memory_budget", 0.5, "recompute"),
    *keys(Status.HARMLESS, AC, {"debugging": _DEBUGGING}),
    key(CONVERTERS, None, "job.precision", kind=object, means={}),
    *(key(f"{section}.{GATHER}", False, "job.fp8_param_gather") for section in _FLOAT8),
    *(row for section in _FLOAT8 for row in keys(Status.HARMLESS, section, {_KERNEL: _SCALES})),
    key("compile.enable", False, "job.torch_compile"),
    key("training.compile", False, "job.torch_compile", note="0.1"),
    key(COMPONENTS, COMPILED, "job.compile_components", means=components),
    key("optimizer.implementation", "fused", "job.optimizer_implementation"),
    key("optimizer.early_step_in_backward", False, "job.optimizer_in_backward"),
)
