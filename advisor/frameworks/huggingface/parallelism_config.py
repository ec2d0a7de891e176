"""Accelerate's ParallelismConfig of a layout: variables of the environment, keys of its file.

Source: accelerate 1.15.0 parallelism_config.py, utils/dataclasses.py, commands/launch.py.
"""

from typing import Final

from advisor.job.job import Job
from advisor.models.options import CpCommType

PARALLELISM: Final = "parallelism_config"
STRATEGIES: Final = {"allgather": CpCommType.ALL_GATHER, "alltoall": CpCommType.P2P}


def parallelism(job: Job) -> dict[str, str | int]:
    """Its fields, none without context parallelism: torch's is `cp`, DeepSpeed's Ulysses `sp`."""
    layout = job.layout
    ranks, kind = layout.context_parallel_size, layout.cp_comm_type
    if ranks == 1:
        return {}
    shards: dict[str, str | int] = {"dp_shard_size": layout.data_parallel_size}
    if kind is CpCommType.A2A:
        attention = str(job.config.attn_implementation)
        return {**shards, "sp_size": ranks, "sp_attn_implementation": attention}
    (strategy,) = (name for name, meant in STRATEGIES.items() if meant is kind)
    return {**shards, "cp_size": ranks, "cp_comm_strategy": strategy}


def parallelism_variables(job: Job) -> tuple[str, ...]:
    """NAME=VALUE of each, and that they are to be read."""
    found = parallelism(job)
    if not found:
        return ()
    named = (f"{PARALLELISM.upper()}_{name.upper()}={value}" for name, value in found.items())
    return ("ACCELERATE_USE_PARALLELISM_CONFIG=true", *named)
