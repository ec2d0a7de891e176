"""Ranks that work together in a layout, with what joins them."""

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Group
from advisor.layers.shape import RankShape
from advisor.memory.static import stage_elements, stage_expert_elements
from advisor.time.machine import (
    Link,
    all_to_all_link,
    context_link,
    data_parallel_link,
    expert_data_parallel_link,
    group_span,
    link,
)
from advisor.time.roofline import Network


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
        ranks=layout.data_parallel_size * layout.context_parallel_size,
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


def network(
    layout: ParallelLayout, gpu: Gpu, calibration: Calibration, *, experts: bool
) -> Network:
    """Links and sizes of the groups that layers communicate in; `experts`: with those of expert
    parallelism. Ranks are numbered TP, CP, DP, PP, and experts' ETP, EP (megatron-core 0.16.1
    parallel_state.py), on nodes that are filled one after another."""
    groups = Group.TENSOR, Group.EXPERT_TENSOR, Group.EXPERT
    links = (link(gpu, calibration, group_span(layout, group)) for group in groups)
    tensor, expert_tensor, expert = links
    tp, exchanging = layout.tensor_model_parallel_size, layout.cp_all_to_all_size
    dense = Network(
        tensor=tensor,
        context=context_link(gpu, calibration, layout),
        context_all_to_all=all_to_all_link(gpu, calibration, exchanging, tp),
        tensor_ranks=tp,
        context_ranks=layout.context_parallel_size,
        context_all_to_all_ranks=exchanging,
    )
    ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_degree
    if not experts:
        return dense
    return replace(
        dense,
        expert=expert,
        expert_tensor=expert_tensor,
        expert_all_to_all=all_to_all_link(gpu, calibration, ep, etp),
        expert_ranks=ep,
        expert_tensor_ranks=etp,
    )
