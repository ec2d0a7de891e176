"""TrainingArguments of a setting and its job, as options of a script that parses them.

Source: transformers 4.57.1, 5.17.0, 5.23.0 training_args.py (HfArgumentParser), accelerate 1.15.0.
"""

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.huggingface.options import FP8, PARALLELISM, TO_HOST, fp8_keys, parallelism
from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.job.job import AttnImplementation, Job, JobConfig, OptimizerImplementation
from advisor.job.layout import DataParallelSharding

_CHECKPOINTING: Final = "gradient_checkpointing"
_DECODER_LAYERS: Final = "TRANSFORMER_BASED_WRAP"

Pairs = Iterator[tuple[str, Any]]
"""Names of arguments, and their values; dictionaries are those of one argument."""


def words(pairs: Iterable[tuple[str, Any]]) -> str:
    """`--name value` of each, for a shell; a list is several words, a dictionary JSON."""
    said = []
    for name, value in pairs:
        several = value if isinstance(value, list | tuple) else [value]
        texts = (json.dumps(one) if isinstance(one, dict) else str(one) for one in several)
        said += [f"--{name}", *texts]
    return shlex.join(said)


def training_arguments(setting: TorchSetting) -> Pairs:
    """Those of the checkpointing by the name that all releases have, from 5.23 on an alias of
    activation_checkpointing. every_n_layers and offload: from 5.16 on."""
    if setting.granularity is Granularity.NONE:
        if setting.offloads:
            yield TO_HOST, True
        return
    yield _CHECKPOINTING, True
    options: dict[str, Any] = {}
    if setting.use_reentrant is not None:
        options["use_reentrant"] = setting.use_reentrant
    if setting.granularity is Granularity.SELECTIVE:
        options["every_n_layers"] = setting.num_layers
    if setting.offloads:
        options["offload"] = True
    if options:
        yield f"{_CHECKPOINTING}_kwargs", options


def job_arguments(job: Job) -> Pairs:
    """Batch, precision and FSDP2."""
    config = job.config
    if not fp8_keys(config):
        yield _half(config), True
    yield "per_device_train_batch_size", config.micro_batch_size
    yield "gradient_accumulation_steps", job.num_microbatches
    if config.optimizer.is_quantized:
        yield "optim", str(config.optimizer)
    elif config.optimizer_implementation is OptimizerImplementation.FOREACH:
        yield "optim", "adamw_torch"
    if config.use_liger_kernel:
        yield "use_liger_kernel", True
    yield from kernel_arguments(config)
    if config.sync_each_batch:
        each = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        yield "accelerator_config", each
    if not job.layout.is_whole:
        reshards = job.layout.data_parallel_sharding is DataParallelSharding.FULL
        fsdp = {
            "version": 1 if config.flat_parameters else 2,
            "reshard_after_forward": reshards,
            "auto_wrap_policy": _DECODER_LAYERS,
        }
        if config.param_cpu_offload:
            fsdp["cpu_offload"] = True
        strategy = "full_shard"
        if config.flat_parameters:
            del fsdp["reshard_after_forward"]
            strategy = _flat_strategy(job).lower()
        yield "fsdp", f"{strategy} auto_wrap"
        yield "fsdp_config", fsdp


def _half(config: JobConfig) -> str:
    return "fp16" if config.precision is Precision.FP16 else "bf16"


def kernel_arguments(config: JobConfig) -> Pairs:
    """What runs the layers; attn_implementation is from_pretrained's, and an option of programs
    that have TRL's ModelConfig."""
    if config.torch_compile:
        yield "torch_compile", True
    if config.attn_implementation is not AttnImplementation.SDPA:
        yield "attn_implementation", str(config.attn_implementation)


def _flat_strategy(job: Job) -> str:
    """FSDP1's; the hybrid ones have all shards on each machine."""
    full = job.layout.data_parallel_sharding is DataParallelSharding.FULL
    if job.layout.data_parallel_replicate_size > 1:
        return "HYBRID_SHARD" if full else "HYBRID_SHARD_ZERO2"
    return "FULL_SHARD" if full else "SHARD_GRAD_OP"


def accelerate_file(setting: TorchSetting, job: Job) -> str:
    """YAML of Accelerate: processes, precision, FSDP2 and its checkpoints of wrapped layers."""
    replicas, fp8 = job.layout.data_parallel_replicate_size, fp8_keys(job.config)
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"mixed_precision: {'fp8' if fp8 else _half(job.config)}",
        *((f"{FP8}:",) if fp8 else ()),
        *(f"  {key}: {value}" for key, value in fp8.items()),
        f"num_processes: {job.num_gpus}",
        *((f"num_machines: {replicas}",) if job.config.flat_parameters and replicas > 1 else ()),
        *(("dynamo_config:", "  dynamo_backend: INDUCTOR") if job.config.torch_compile else ()),
    ]
    if job.num_gpus == 1 and job.has_te_linear:
        return "\n".join([*lines, "distributed_type: 'NO'"]) + "\n"
    if job.layout.is_whole and job.num_gpus > 1:
        return "\n".join([*lines, "distributed_type: MULTI_GPU"]) + "\n"
    lines += ["distributed_type: FSDP", "fsdp_config:"]
    full = job.layout.data_parallel_sharding is DataParallelSharding.FULL
    flat = job.config.flat_parameters
    values = {
        "fsdp_version": 1 if flat else 2,
        **(
            {"fsdp_sharding_strategy": _flat_strategy(job)}
            if flat
            else {"fsdp_reshard_after_forward": full}
        ),
        "fsdp_auto_wrap_policy": _DECODER_LAYERS,
        "fsdp_activation_checkpointing": setting.granularity is Granularity.FULL,
        "fsdp_activation_checkpointing_offload": setting.offloads,
        **({"fsdp_offload_params": True} if job.config.param_cpu_offload else {}),
        **({"fsdp_cpu_ram_efficient_loading": False} if fp8.get("backend") == "AO" else {}),
    }
    lines += [
        f"  {key}: {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in values.items()
    ]
    if found := parallelism(job):
        lines.append(f"{PARALLELISM}:")
        lines += [f"  {PARALLELISM}_{name}: {value}" for name, value in found.items()]
    return "\n".join(lines) + "\n"


def attention_note(kernel: AttnImplementation) -> str:
    """Whose option it is."""
    return (
        f"--attn_implementation is an option of TRL's programs; in another program load the model "
        f'with from_pretrained(..., attn_implementation="{kernel}")'
    )


REDUCE_DTYPE: Final = DType.BF16
"""Accelerate's mixed_precision bf16 means param_dtype and reduce_dtype (utils/dataclasses.py)."""
