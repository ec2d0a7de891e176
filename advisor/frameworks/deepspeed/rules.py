"""What DeepSpeed asserts about checkpointing and offloading, and what comes to nothing.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py configure,
runtime/zero/config.py, runtime/zero/stage3.py.
"""

from typing import Final

from advisor.frameworks.deepspeed.config_file import calls_deepspeed
from advisor.frameworks.torch.rules import Rules, stated
from advisor.frameworks.torch.setting import Granularity, Modifier, TorchSetting
from advisor.frameworks.torch.supported_jobs import StackFacts
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding


def _is_zero_3(_: TorchSetting, job: Job, __: StackFacts) -> bool:
    return job.layout.data_parallel_sharding is DataParallelSharding.FULL


def _passes_deepspeed_by(setting: TorchSetting, job: Job, _: StackFacts) -> bool:
    asks = setting.options or setting.granularity is Granularity.UNIFORM
    return bool(asks) and not calls_deepspeed(job)


RULES: Final[Rules] = stated(
    "deepspeed",
    {
        "offload_optimizer.stage": lambda _, job, __: (
            job.config.optimizer_cpu_offload
            and job.layout.data_parallel_sharding is DataParallelSharding.NONE
        ),
        "offload_optimizer.ratio": lambda setting, job, facts: (
            job.config.optimizer_cpu_offload
            and job.config.optimizer_offload_fraction != 1.0
            and not _is_zero_3(setting, job, facts)
        ),
        "offload_param.stage": lambda setting, job, facts: (
            job.config.param_cpu_offload and not _is_zero_3(setting, job, facts)
        ),
        "activation_checkpointing.contiguous_memory_optimization": lambda setting, _, __: (
            Modifier.CONTIGUOUS_MEMORY_OPTIMIZATION in setting.options
            and Modifier.PARTITION_ACTIVATIONS not in setting.options
        ),
        "activation_checkpointing.huggingface": _passes_deepspeed_by,
        "pipeline.zero_stage": lambda setting, job, _: (
            setting.granularity is Granularity.UNIFORM
            and job.layout.data_parallel_sharding
            in (DataParallelSharding.GRADIENTS, DataParallelSharding.FULL)
        ),
    },
)
