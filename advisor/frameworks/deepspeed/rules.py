"""What DeepSpeed asserts about checkpointing and offloading, and what comes to nothing.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py configure,
runtime/zero/config.py, runtime/zero/stage3.py.
"""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.deepspeed.config_file import calls_deepspeed
from advisor.frameworks.torch.rules import Problem
from advisor.frameworks.torch.setting import Granularity, Modifier, TorchSetting
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding

_CHECKPOINTING: Final = "DeepSpeed runtime/activation_checkpointing/checkpointing.py"
_ZERO: Final = "DeepSpeed runtime/zero"


def checkpoint_problems(setting: TorchSetting, job: Job) -> Iterator[Problem]:
    """Of the section activation_checkpointing."""
    parts = Modifier.PARTITION_ACTIVATIONS in setting.options
    if Modifier.CONTIGUOUS_MEMORY_OPTIMIZATION in setting.options and not parts:
        yield Problem(
            "activation_checkpointing.contiguous_memory_optimization",
            "Contiguous Checkpointing is only available with partitioned activations",
            "add +partition_activations",
            f"{_CHECKPOINTING} configure",
        )
    foreign = setting.options or setting.granularity is Granularity.UNIFORM
    if foreign and not calls_deepspeed(job):
        reason = (
            "a Hugging Face model calls torch's checkpoint, so DeepSpeed's function and its "
            "section activation_checkpointing are never used"
        )
        fix = "full, or --framework huggingface with full+offload"
        source = "transformers modeling_utils.py"
        yield Problem("activation_checkpointing.huggingface", reason, fix, source)


def offload_problems(job: Job) -> Iterator[Problem]:
    """Of offload_optimizer and offload_param."""
    sharding, config = job.layout.data_parallel_sharding, job.config
    full = sharding is DataParallelSharding.FULL
    if config.optimizer_cpu_offload and sharding is DataParallelSharding.NONE:
        reason = (
            "offload_optimizer is valid only with stages 1, 2 and 3: stage 0 does not shard states"
        )
        fix = "layout.data_parallel_sharding=optimizer"
        yield Problem("offload_optimizer.stage", reason, fix, f"{_ZERO}/offload_config.py")
    if config.optimizer_cpu_offload and config.optimizer_offload_fraction != 1.0 and not full:
        reason = "Partial offloading only supported for ZeRO Stage 3"
        fix = "job.optimizer_offload_fraction=1"
        yield Problem("offload_optimizer.ratio", reason, fix, f"{_ZERO}/config.py")
    if config.param_cpu_offload and not full:
        reason = "offload_param is valid only with stage 3"
        fix = "layout.data_parallel_sharding=full"
        yield Problem("offload_param.stage", reason, fix, f"{_ZERO}/offload_config.py")
