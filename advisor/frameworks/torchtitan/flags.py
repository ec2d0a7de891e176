"""What to paste behind torchtitan's launch command, by version.

Up to 0.2 the options are those of one data class (config/job_config.py, parsed by tyro); from 0.3
on the kind of checkpointing is a subcommand of tyro, which must come last.
"""

from collections.abc import Iterator
from typing import Final

from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.job import Job
from advisor.layout import DataParallelSharding

_SUBCOMMANDS: Final = {
    Granularity.NONE: "none", Granularity.FULL: "full", Granularity.OP: "selective",
    Granularity.BUDGET: "memory-budget",
}  # fmt: skip


def mode_flags(setting: TorchSetting, version: str) -> Iterator[str]:
    """Options that give exactly `setting`, whatever the TOML file or the recipe says."""
    if setting.granularity is Granularity.BUDGET:
        yield "--compile.enable"
    if version == "0.3":
        yield f"activation_checkpoint:{_SUBCOMMANDS[setting.granularity]}"
        if setting.budget is not None:
            yield f"--activation_checkpoint.memory_budget={setting.budget:g}"
        return
    prefix = "--activation_checkpoint."
    match setting.granularity:
        case Granularity.SELECTIVE:
            yield f"{prefix}mode=selective"
            yield f"{prefix}selective_ac_option={setting.num_layers}"
        case Granularity.OP:
            yield f"{prefix}mode=selective"
            yield f"{prefix}selective_ac_option=op"
        case Granularity.BUDGET:
            yield f"{prefix}mode=memory_budget"
            yield f"{prefix}memory_budget={setting.budget:g}"
        case _:
            yield f"{prefix}mode={setting.granularity}"


def job_flags(job: Job) -> Iterator[str]:
    """Batch, sequence, and how FSDP shards. `default` frees all groups but the head's between the
    passes, `never` frees none."""
    config = job.config
    keeps = job.layout.data_parallel_sharding is DataParallelSharding.GRADIENTS
    yield f"--training.local_batch_size={config.micro_batch_size}"
    yield f"--training.global_batch_size={config.global_batch_size}"
    yield f"--training.seq_len={config.seq_length}"
    yield f"--parallelism.data_parallel_shard_degree={job.layout.data_parallel_size}"
    yield f"--parallelism.fsdp_reshard_after_forward={'never' if keeps else 'default'}"
