"""The DeepSpeed configuration of a setting and its job, as one line of JSON.

Source: DeepSpeed 0.19.8 runtime/config.py, runtime/zero/config.py,
runtime/activation_checkpointing/config.py, runtime/pipe/engine.py.
"""

import json
from typing import Any, Final

from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.job import Job
from advisor.layout import DataParallelSharding

STAGES: Final = {
    DataParallelSharding.NONE: 0, DataParallelSharding.OPTIMIZER: 1,
    DataParallelSharding.GRADIENTS: 2, DataParallelSharding.FULL: 3,
}  # fmt: skip


def deepspeed_config(setting: TorchSetting, job: Job) -> str:
    """Batch, bf16, ZeRO stage, and the sections about checkpointing."""
    sharding = job.layout.data_parallel_sharding or DataParallelSharding.FULL
    config: dict[str, Any] = {
        "train_batch_size": job.config.global_batch_size,
        "train_micro_batch_size_per_gpu": job.config.micro_batch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": STAGES[sharding]},
    }
    return json.dumps(config | _checkpointing(setting, job))


def _checkpointing(setting: TorchSetting, job: Job) -> dict[str, Any]:
    """`activation_checkpointing` configures the function that the model calls on each block;
    `pipeline` has the pipeline engine checkpoint every n blocks by itself."""
    layers = job.model.num_layers
    if setting.granularity is Granularity.FULL:
        return {"activation_checkpointing": {
            "partition_activations": False, "cpu_checkpointing": False,
            "contiguous_memory_optimization": False, "number_checkpoints": layers,
            "synchronize_checkpoint_boundary": False, "profile": False,
        }}  # fmt: skip
    if setting.granularity is Granularity.UNIFORM:
        reentrant = setting.use_reentrant is not False
        return {"pipeline": {"activation_checkpoint_interval": setting.num_layers,
                             "use_reentrant": reentrant}}  # fmt: skip
    return {}
