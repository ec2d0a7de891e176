"""What settings of Megatron keep, and what a rank holds whatever is recomputed."""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.megatron.buffers import last_inputs, stage_buffers, stream_pools
from advisor.frameworks.megatron.muon import STATIC_LABELS, muon_memory, without_narrow_weights
from advisor.frameworks.megatron.plan import (
    chunk_plan,
    copies_outputs_of,
    of_release,
    reads_full_recompute,
)
from advisor.frameworks.megatron.revisions import revision_of
from advisor.frameworks.megatron.setting import NONE, Granularity, as_megatron
from advisor.frameworks.part_types import FixedMemory
from advisor.job.job import CudaGraphImpl, Job
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.memory.static import (
    GRADIENT_COPIES,
    STATE_COPIES,
    StaticMemory,
    fp32_states,
    gradient_copies,
    stage_elements,
    stage_expert_elements,
    static_memory,
)
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import RecomputePlan, Setting


class MegatronMemory(MemoryModel):
    """Of one of the three, which share their release of megatron-core."""

    def __init__(self, framework: str) -> None:
        self.framework = framework

    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """See plan.chunk_plan; full recompute that a release does not read is none."""
        own, revision = as_megatron(setting), revision_of(self.framework, job)
        if own.granularity is Granularity.FULL:
            pattern = shape.model.hybrid_layer_pattern
            own = own if pattern is None or reads_full_recompute(pattern, revision) else NONE
        copies = copies_outputs_of(revision)
        return chunk_plan(own, shape.model, layers, job.layout.sequence_parallel, copies)

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """See of_release."""
        overlaps = job.layout.overlap_moe_expert_parallel_comm
        return of_release(shape, revision_of(self.framework, job), overlaps_exchange=overlaps)

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """16-bit weights, the gradient buffer, the optimizer's shard, Megatron's own buffers."""
        buffers = stage_buffers(shape, chunks, job.gpu)
        if job.config.optimizer.is_muon:
            return muon_memory(job, revision_of(self.framework, job), shape, chunks, buffers)
        config, static = job.config, StaticMemory(weights=0, gradients=0, optimizer=0)
        largest = 0
        for elements, shards in _gradient_buffers(shape, chunks, job.layout):
            static += static_memory(
                elements, shards, config.main_grads_dtype, config.optimizer_bytes
            )
            largest = max(largest, -(-elements // shards))
        stays = 1 - config.offloaded_fraction
        static = replace(static, optimizer=int(stays * static.optimizer))
        static = without_narrow_weights(static, config, shape, chunks)
        gradients, states = (
            gradient_copies(static, config),
            int(stays * largest) * fp32_states(config),
        )
        return FixedMemory(
            static=static,
            words=STATIC_LABELS,
            buffers=buffers,
            optimizer_step=gradients + states + last_inputs(shape, chunks),
            step_words=STATE_COPIES if states > gradients else GRADIENT_COPIES,
            pools=stream_pools(
                shape,
                chunks,
                overlaps_exchange=job.layout.overlap_moe_expert_parallel_comm,
            ),
            in_buffers=job.layout.use_distributed_optimizer,
        )

    def reductions(self, job: Job) -> int:
        """The last one."""
        return 1

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """Those that the job's graphs capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return frozenset()
        from advisor.frameworks.megatron.graphed import graphed_modules

        return graphed_modules(job)

    def graph_capture(self, job: Job) -> Capture | None:
        """See graphed.graph_capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return None
        from advisor.frameworks.megatron.graphed import graph_capture

        return graph_capture(job)

    def graph_inputs(self, job: Job, shape: RankShape, layers: tuple[LayerKind, ...]) -> int:
        """See graphed.graph_inputs."""
        from advisor.frameworks.megatron.graphed import graph_inputs

        return graph_inputs(job.config, shape, layers)

    def graph_buffers(self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
        """See graphed.graph_buffers."""
        from advisor.frameworks.megatron.graphed import graph_buffers

        return graph_buffers(job, shape, chunks, revision_of(self.framework, job))


def _gradient_buffers(
    shape: RankShape, chunks: tuple[ModelChunk, ...], layout: ParallelLayout
) -> Iterator[tuple[int, int]]:
    """Parameters of each gradient buffer, and the shards of their optimizer: the routed experts'
    are apart under expert parallelism."""
    experts = 0
    if layout.expert_model_parallel_size > 1:
        experts = stage_expert_elements(shape, chunks)
        yield experts, layout.expert_optimizer_shards
    yield stage_elements(shape, chunks) - experts, layout.optimizer_shards
