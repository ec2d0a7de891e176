"""Arguments of transformers' Trainer (5.23.0) and keys of Accelerate's file (1.15.0).

Source: transformers training_args.py, torch utils/checkpoint.py, accelerate
commands/config/config_args.py, commands/launch.py, parallelism_config.py, utils/dataclasses.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.dialect_rows import rows_of
from advisor.frameworks.option import Option, key, listed
from advisor.job.job import AttnImplementation, Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.models.options import CpCommType

PARALLELISM: Final = "parallelism_config"
STRATEGIES: Final = {"allgather": CpCommType.ALL_GATHER, "alltoall": CpCommType.P2P}
ACCELERATOR: Final = "accelerator_config"
_EACH_BATCH: Final = f"{ACCELERATOR}.gradient_accumulation_kwargs.sync_each_batch"
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
RESHARD: Final = f"{FSDP}.fsdp_reshard_after_forward"
INSIDE: Final = f"{FSDP}.fsdp_activation_checkpointing"
INSIDE_OFFLOAD: Final = f"{INSIDE}_offload"
_FIELD: Final = f"{PARALLELISM}.{PARALLELISM}_"
CP_SIZE: Final = f"{_FIELD}cp_size"
SP_SIZE: Final = f"{_FIELD}sp_size"
_SHARDING: Final = "layout.data_parallel_sharding"
PARTIAL_TRAINING: Final = "adapters, frozen or quantized weights"
_DTYPES: Final = {str(dtype): str(dtype) for dtype in (DType.BF16, DType.FP32)}
_OPTIMIZERS: Final = {
    "adamw_torch": "adam",
    "adamw_torch_fused": "adam",
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "adamw_torch_8bit": "adamw_torch_8bit",
    "adamw_torch_4bit": "adamw_torch_4bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_32bit": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
_FLAT: Final = {1: True, "1": True, 2: False, "2": False}
KERNELS: Final = {"adamw_torch_fused": "fused", "adamw_torch": "foreach"}
_ATTENTION: Final = {str(kernel): str(kernel) for kernel in AttnImplementation}
_ALL: Final = dict.fromkeys((True, "true", "True"), DataParallelSharding.FULL)
_COMPILERS: Final = {"inductor": True, "no": False}
FSDP1: Final = {
    **dict.fromkeys(("FULL_SHARD", "1", "HYBRID_SHARD", "4"), DataParallelSharding.FULL),
    **dict.fromkeys(
        ("SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5"), DataParallelSharding.GRADIENTS
    ),
}
"""Its strategies."""
_GRADIENTS: Final = dict.fromkeys((False, "false", "False"), DataParallelSharding.GRADIENTS)
_RESHARDS: Final = FSDP1 | _ALL | _GRADIENTS


def _keywords(section: str) -> Iterator[Option]:
    """What torch's checkpoint takes, and transformers from 5 on."""
    yield key(f"{section}.use_reentrant", None, "recompute", kind=bool)
    yield key(f"{section}.every_n_layers", None, "recompute", kind=int)
    yield key(f"{section}.offload", False, "recompute")


def _saves_attention(value: object) -> bool | None:
    return True if value in ATTENTION_ALONE else None


ARGUMENTS: Final[tuple[Option, ...]] = (
    key(MICRO_BATCH, 8, "job.micro_batch_size"),
    key("max_seq_length", None, "job.seq_length", kind=int),
    key("max_length", None, "job.seq_length", kind=int),
    key("block_size", None, "job.seq_length", kind=int),
    key("model_max_length", None, "job.seq_length", kind=int),
    key("bf16", False, "job.precision", means={True: "bf16"}),
    key("fp16", False, "job.precision", means={True: "fp16"}),
    key("dtype", None, "job.weights_dtype", kind=str, means=_DTYPES),
    key("torch_dtype", None, "job.weights_dtype", kind=str, means=_DTYPES),
    key(OPTIM, "adamw_torch_fused", "job.optimizer", means=_OPTIMIZERS),
    key("torch_compile", False, "job.torch_compile"),
    key("use_liger_kernel", False, "job.use_liger_kernel"),
    key("attn_implementation", "sdpa", "job.attn_implementation", means=_ATTENTION),
    key("fsdp", None, _SHARDING, kind=object, means=_ALL),
    key(f"{FSDP}.version", 2, "job.flat_parameters", kind=object, means=_FLAT),
    key(f"{FSDP}.reshard_after_forward", None, _SHARDING, kind=object, means=_RESHARDS),
    *(key(name, None, "recompute", kind=bool) for name in CHECKPOINTING),
    *(row for section in SECTIONS for row in _keywords(section)),
    key(TO_HOST, False, "recompute", kind=object),
    key(SAVES, None, "recompute", kind=object, means={True: True}),
    key(f"{SAVES}.save", None, "recompute", kind=object, means=_saves_attention),
    key(_EACH_BATCH, False, "job.sync_each_batch"),
)
FILE: Final[tuple[Option, ...]] = (
    key(INSIDE, False, "recompute"),
    key(INSIDE_OFFLOAD, False, "recompute"),
    key(RESHARD, None, _SHARDING, kind=object, means=_RESHARDS),
    key(f"{FSDP}.fsdp_version", None, "job.flat_parameters", kind=object, means=_FLAT),
    key(CP_SIZE, 1, "layout.context_parallel_size"),
    key(SP_SIZE, 1, "layout.context_parallel_size"),
    key(f"{_FIELD}cp_comm_strategy", "allgather", "layout.cp_comm_type", means=STRATEGIES),
    key(f"{_FIELD}dp_replicate_size", 1, "layout.data_parallel_replicate_size"),
    key(f"{_FIELD}tp_size", 1, "layout.tensor_model_parallel_size"),
    *(
        key(name, "no", "job.torch_compile", means=lambda value: _COMPILERS.get(str(value).lower()))
        for name in ("dynamo_config.dynamo_backend", "dynamo_backend")
    ),
    key("mixed_precision", None, "job.precision", kind=str, means={"bf16": "bf16", "fp16": "fp16"}),
    key(BACKEND, None, "job.precision", kind=str, means={}),
    key(BLOCKS, False, "job.precision", kind=bool, means={}),
    key(f"{FP8}.enable_fsdp_float8_all_gather", True, "job.fp8_param_gather"),
    *listed("accelerate"),
)
OPTIONS: Final = (*ARGUMENTS, *FILE, *listed("huggingface"), *rows_of("huggingface"))


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
