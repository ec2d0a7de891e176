"""Parameters of one rank by the ranks that reduce their gradients."""

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.static import stage_elements, stage_expert_elements
from advisor.time.network.fabric import data_parallel_link, expert_data_parallel_link
from advisor.time.network.links import Link


class ParameterGroup(Struct, frozen=True, kw_only=True):
    """Parameters of one rank in one gradient buffer: how many, over how many shards the optimizer
    cuts them, how many ranks reduce them, and what joins those."""

    elements: int
    shards: int
    ranks: int
    joined: Link


def parameter_groups(
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    layout: ParallelLayout,
    gpu: Gpu,
    calibration: Calibration,
) -> tuple[ParameterGroup, ...]:
    """Parameters of one rank of a stage: dense ones, and under expert parallelism routed experts in
    a buffer of their own. Source: megatron-core 0.16.1 distributed_data_parallel.py, which makes
    one buffer for each group of ranks."""
    experts = stage_expert_elements(shape, chunks)
    dense = ParameterGroup(
        elements=stage_elements(shape, chunks) - experts,
        shards=layout.optimizer_shards,
        ranks=layout.sharding_ranks,
        joined=data_parallel_link(gpu, calibration, layout),
    )
    if layout.expert_model_parallel_size == 1:
        return (replace(dense, elements=dense.elements + experts),)
    return dense, ParameterGroup(
        elements=experts,
        shards=layout.expert_optimizer_shards,
        ranks=layout.expert_data_parallel_size,
        joined=expert_data_parallel_link(gpu, calibration, layout),
    )
