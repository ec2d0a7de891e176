"""What DeepSpeed asserts about checkpointing and offloading, and what comes to nothing.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py configure,
runtime/zero/config.py, runtime/zero/stage3.py.
"""

from typing import Final

from advisor.frameworks.deepspeed.config_file import calls_deepspeed
from advisor.frameworks.torch.rules import Rules, TorchRule
from advisor.frameworks.torch.setting import Granularity, Modifier, TorchSetting
from advisor.frameworks.torch.supported_jobs import StackFacts
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding

_ZERO: Final = "DeepSpeed runtime/zero"


def _is_zero_3(_: TorchSetting, job: Job, __: StackFacts) -> bool:
    return job.layout.data_parallel_sharding is DataParallelSharding.FULL


def _passes_deepspeed_by(setting: TorchSetting, job: Job, _: StackFacts) -> bool:
    asks = setting.options or setting.granularity is Granularity.UNIFORM
    return bool(asks) and not calls_deepspeed(job)


RULES: Final[Rules] = {
    "offload_optimizer.stage": TorchRule(
        given=lambda _, job, __: job.config.optimizer_cpu_offload,
        when=lambda _, job, __: job.layout.data_parallel_sharding is DataParallelSharding.NONE,
        reason="offload_optimizer is valid only with stages 1, 2 and 3: stage 0 does not shard "
        "states",
        fix="layout.data_parallel_sharding=optimizer",
        source=f"{_ZERO}/offload_config.py",
        example="layout.data_parallel_sharding=no_shard job.optimizer_cpu_offload=true",
    ),
    "offload_optimizer.ratio": TorchRule(
        given=lambda _, job, __: job.config.optimizer_cpu_offload,
        when=lambda setting, job, facts: (
            job.config.optimizer_offload_fraction != 1.0 and not _is_zero_3(setting, job, facts)
        ),
        reason="Partial offloading only supported for ZeRO Stage 3",
        fix="job.optimizer_offload_fraction=1",
        source=f"{_ZERO}/config.py",
        example="layout.data_parallel_sharding=gradients job.optimizer_cpu_offload=true "
        "job.optimizer_offload_fraction=0.5",
    ),
    "offload_param.stage": TorchRule(
        given=lambda _, job, __: job.config.param_cpu_offload,
        when=lambda setting, job, facts: not _is_zero_3(setting, job, facts),
        reason="offload_param is valid only with stage 3",
        fix="layout.data_parallel_sharding=full",
        source=f"{_ZERO}/offload_config.py",
        example="layout.data_parallel_sharding=gradients job.param_cpu_offload=true",
    ),
    "activation_checkpointing.contiguous_memory_optimization": TorchRule(
        given=lambda setting, _, __: Modifier.CONTIGUOUS_MEMORY_OPTIMIZATION in setting.options,
        when=lambda setting, _, __: Modifier.PARTITION_ACTIVATIONS not in setting.options,
        reason="Contiguous Checkpointing is only available with partitioned activations",
        fix="add +partition_activations",
        source="DeepSpeed runtime/activation_checkpointing/checkpointing.py configure",
        example="full+contiguous_memory_optimization",
    ),
    "activation_checkpointing.huggingface": TorchRule(
        when=_passes_deepspeed_by,
        reason="a Hugging Face model calls torch's checkpoint, so DeepSpeed's function and its "
        "section activation_checkpointing are never used",
        fix="full, or --framework huggingface with full+offload",
        source="transformers modeling_utils.py",
        example="model.transformer_impl=transformers full+cpu_checkpointing",
    ),
    "pipeline.zero_stage": TorchRule(
        given=lambda setting, _, __: setting.granularity is Granularity.UNIFORM,
        when=lambda _, job, __: (
            job.layout.data_parallel_sharding
            in (DataParallelSharding.GRADIENTS, DataParallelSharding.FULL)
        ),
        reason="ZeRO-2 and ZeRO-3 cannot be combined with a PipelineModule, which runs in "
        "DeepSpeed's pipeline engine",
        fix="layout.data_parallel_sharding=optimizer",
        source="DeepSpeed runtime/pipe/engine.py",
        example="uniform:2",
    ),
}
