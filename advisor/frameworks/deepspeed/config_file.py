"""The DeepSpeed configuration of a setting and its job, as one line of JSON.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/zero/config.py,
runtime/activation_checkpointing/config.py, runtime/pipe/engine.py.
"""

import json
from typing import Any, Final

from advisor.frameworks.deepspeed.options import SEQUENCE, SHARDINGS
from advisor.frameworks.torch.setting import Granularity, Modifier, TorchSetting
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.models.options import TransformerImpl

STAGES: Final = {sharding: stage for stage, sharding in SHARDINGS.items()}


def deepspeed_config(setting: TorchSetting, job: Job) -> str:
    """Batch, bf16, ZeRO stage, and the sections about checkpointing."""
    sharding = job.layout.data_parallel_sharding or DataParallelSharding.FULL
    config: dict[str, Any] = {
        "train_batch_size": job.config.global_batch_size,
        "train_micro_batch_size_per_gpu": job.config.micro_batch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": STAGES[sharding], **_offloading(job)},
    }
    if job.layout.context_parallel_size > 1:
        config[SEQUENCE] = job.layout.context_parallel_size
    if not calls_deepspeed(job):  # transformers' layers never read the section
        return json.dumps(config)
    return json.dumps(config | _checkpointing(setting, job))


def calls_deepspeed(job: Job) -> bool:
    """Whether the model's layers are checkpointed by DeepSpeed's function; Hugging Face's are by
    torch's."""
    return job.model.transformer_impl is not TransformerImpl.TRANSFORMERS


def _offloading(job: Job) -> dict[str, Any]:
    """Optimizer states, and in stage 3 parameters, in pinned host memory."""
    config, written = job.config, {}
    if config.optimizer_cpu_offload:
        written["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if config.optimizer_offload_fraction != 1.0:
            written["offload_optimizer"]["ratio"] = config.optimizer_offload_fraction
    if config.param_cpu_offload:
        written["offload_param"] = {"device": "cpu", "pin_memory": True}
    return written


def _checkpointing(setting: TorchSetting, job: Job) -> dict[str, Any]:
    """`activation_checkpointing` configures the function that is called on each checkpoint, by the
    model or by the pipeline engine, which `pipeline` has make one of every n blocks.

    number_checkpoints is the length of the contiguous buffers: with fewer than the model makes
    DeepSpeed ends in an IndexError, with more they are larger than need be.
    """
    layers, each = job.model.num_layers, setting.num_layers or 1
    written: dict[str, Any] = {}
    if setting.granularity is Granularity.UNIFORM:
        reentrant = setting.use_reentrant is not False
        written["pipeline"] = {"activation_checkpoint_interval": each, "use_reentrant": reentrant}
    if setting.granularity is Granularity.FULL or setting.options:
        flags = {name: name in setting.options for name in Modifier if name is not Modifier.OFFLOAD}
        written["activation_checkpointing"] = flags | {"number_checkpoints": -(-layers // each)}
    return written
