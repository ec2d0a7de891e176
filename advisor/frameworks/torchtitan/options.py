"""Fields of torchtitan's configuration in the order of 0.2.2 config/job_config.py, which a TOML
file or options set; of activation_checkpoint and parallelism all that 0.1 to 0.2 have."""

from typing import Any, Final

from advisor.base.dtypes import Precision
from advisor.frameworks.option import Option, key, listed
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
_FLOAT8: Final = ("quantize.linear.float8", "float8")
"""Sections of 0.2, and of 0.1."""
_KERNELS: Final = {name: name for name in ("fused", "foreach", "for-loop")}
GATHER: Final = "enable_fsdp_float8_all_gather"


def _precision(value: Any) -> str | None:
    """Of a model whose converters are float8's alone."""
    names = {*value} if isinstance(value, list) else {value}
    return str(Precision.FP8_CURRENT) if names and names <= {*_FLOAT8, "float8"} else None


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
    key(f"{AC}.mode", "selective", "recompute"),
    key(f"{AC}.selective_ac_option", "2", "recompute"),
    key(f"{AC}.memory_budget", 0.5, "recompute"),
    key(CONVERTERS, None, "job.precision", kind=object, means=_precision),
    *(key(f"{section}.{GATHER}", False, "job.fp8_param_gather") for section in _FLOAT8),
    key("compile.enable", False, "job.torch_compile"),
    key("training.compile", False, "job.torch_compile", note="0.1"),
    key(COMPONENTS, COMPILED, "job.compile_components", means=components),
    key("optimizer.implementation", "fused", "job.optimizer_implementation", means=_KERNELS),
    key("optimizer.early_step_in_backward", False, "job.optimizer_in_backward"),
    *listed("torchtitan"),
)
