"""Arguments of transformers' Trainer (5.23.0) and keys of Accelerate's file (1.15.0).

Source: transformers training_args.py, torch utils/checkpoint.py, accelerate
commands/config/config_args.py, commands/launch.py, parallelism_config.py, utils/dataclasses.py.
"""

from typing import Final

from advisor.base.dtypes import Precision
from advisor.frameworks.dialect_rows import rows_of
from advisor.frameworks.option import listed, modelled
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.models.options import CpCommType

PARALLELISM: Final = "parallelism_config"
STRATEGIES: Final = {"allgather": CpCommType.ALL_GATHER, "alltoall": CpCommType.P2P}
ACCELERATOR: Final = "accelerator_config"
FSDP: Final = "fsdp_config"
DEEPSPEED: Final = "deepspeed_config"
FP8: Final = "fp8_config"
BACKEND: Final = f"{FP8}.backend"
BLOCKS: Final = f"{FP8}.use_mxfp8_block_scaling"
BACKENDS: Final = {"TE": Precision.FP8_DELAYED, "AO": Precision.FP8_CURRENT}
CHECKPOINTING: Final = ("activation_checkpointing", "gradient_checkpointing")
SECTIONS: Final = tuple(f"{name}_kwargs" for name in CHECKPOINTING)
MICRO_BATCH: Final = "per_device_train_batch_size"
OPTIM: Final = "optim"
STEPS: Final = "gradient_accumulation_steps"
TO_HOST: Final = "activation_offloading"
"""Of TRL and axolotl: hooks around a training step."""
SAVES: Final = "selective_checkpointing"
"""Axolotl's: outputs that checkpoints keep, attention's unless it says more."""
ATTENTION_ALONE: Final = (True, "attention", ["attention"], ("attention",))
INSIDE: Final = f"{FSDP}.fsdp_activation_checkpointing"
INSIDE_OFFLOAD: Final = f"{INSIDE}_offload"
_FIELD: Final = f"{PARALLELISM}.{PARALLELISM}_"
CP_SIZE: Final = f"{_FIELD}cp_size"
SP_SIZE: Final = f"{_FIELD}sp_size"
PARTIAL_TRAINING: Final = "adapters, frozen or quantized weights"
KERNELS: Final = {"adamw_torch_fused": "fused", "adamw_torch": "foreach"}
FSDP1: Final = {
    **dict.fromkeys(("FULL_SHARD", "1", "HYBRID_SHARD", "4"), DataParallelSharding.FULL),
    **dict.fromkeys(
        ("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5"), DataParallelSharding.GRADIENTS
    ),
}
"""Its strategies."""
ARGUMENTS: Final = tuple(modelled("huggingface"))
FILE: Final = (*modelled("accelerate"), *listed("accelerate"))
OPTIONS: Final = (*(*ARGUMENTS, *FILE, *listed("huggingface"), *rows_of("huggingface")),)


def fp8_keys(config: JobConfig) -> dict[str, str]:
    """Those of the file's fp8_config; none in 16 bits."""
    if config.precision is not Precision.FP8_CURRENT:
        return {"backend": "TE"} if config.precision is Precision.FP8_DELAYED else {}
    gathers = str(config.fp8_param_gather).lower()
    return {"backend": "AO", "enable_fsdp_float8_all_gather": gathers}


def parallelism(job: Job) -> dict[str, str | int]:
    """Fields of Accelerate's ParallelismConfig, none without context parallelism (torch's is `cp`,
    DeepSpeed's Ulysses `sp`) and replicas, which FSDP1 takes to be the machines."""
    layout = job.layout
    ranks, kind = layout.context_parallel_size, layout.cp_comm_type
    replicas = layout.data_parallel_replicate_size
    if ranks == 1 and (replicas == 1 or job.config.flat_parameters):
        return {}
    if ranks == 1:
        return {"dp_replicate_size": replicas, "dp_shard_size": layout.sharding_ranks}
    shards: dict[str, str | int] = {"dp_shard_size": layout.data_parallel_size}
    if kind is CpCommType.A2A:
        attention = str(job.config.attn_implementation)
        return {**shards, "sp_size": ranks, "sp_attn_implementation": attention}
    (strategy,) = (name for name, meant in STRATEGIES.items() if meant is kind)
    return {**shards, "cp_size": ranks, "cp_comm_strategy": strategy}


def parallelism_variables(job: Job) -> tuple[str, ...]:
    """NAME=VALUE of each, and that they are to be read; of FP8 as well."""
    found, keys_of_fp8 = parallelism(job), fp8_keys(job.config)
    fp8 = tuple(f"ACCELERATE_FP8_{name.upper()}={value}" for name, value in keys_of_fp8.items())
    fp8 = ("ACCELERATE_MIXED_PRECISION=fp8", *fp8) if fp8 else ()
    if not found:
        return fp8
    named = (f"{PARALLELISM.upper()}_{name.upper()}={value}" for name, value in found.items())
    return (*fp8, "ACCELERATE_USE_PARALLELISM_CONFIG=true", *named)
