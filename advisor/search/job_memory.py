"""Memory of every pipeline stage of a job under any recompute."""

from msgspec import Struct

from advisor.answer.evaluation import MemoryBreakdown, StageMemory
from advisor.frameworks.protocols import FixedMemory, FrameworkAdapter
from advisor.job.job import Job
from advisor.job.pipeline_split import ModelChunk, Pipeline, Stages
from advisor.layers.family import family_of
from advisor.layers.shape import RankShape
from advisor.memory.activations import ActivationPeak, activation_peak
from advisor.memory.allocator import Reserved, model_error, reserved_memory
from advisor.memory.chunk import AttentionMask, ChunkFootprint, chunk_footprint
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.plan.recompute_plan import RecomputePlan


class StageDetail(Struct, frozen=True, kw_only=True):
    """Everything behind one StageMemory, for reports that explain it."""

    fixed: FixedMemory
    activations: ActivationPeak
    reserved: Reserved

    def summary(self, stage: int, vpp: int) -> StageMemory:
        """Its terms by component."""
        overhead = self.reserved.total - self.reserved.allocated
        return StageMemory(
            stage=stage,
            peak_allocated_bytes=self.reserved.allocated,
            peak_reserved_bytes=self.reserved.total,
            memory_bytes=MemoryBreakdown(
                weights=self.fixed.static.weights,
                gradients=self.fixed.static.gradients,
                optimizer=self.fixed.static.optimizer,
                activations=self.activations.kept,
                transient=self.activations.transient,
                overhead=self.fixed.resident + overhead,
            ),
            in_flight_microbatches=sum(self.activations.in_flight) / vpp,
            peak_phase=self.activations.phase,
        )


class JobMemory:
    """Peaks of a job's stages; what no recompute changes is computed once.

    Plans are those of each group of layers of `pipeline`.
    """

    def __init__(
        self,
        job: Job,
        shape: RankShape,
        stages: Stages,
        pipeline: Pipeline,
        stack: FrameworkAdapter,
    ) -> None:
        self._job, self._shape, self._pipeline = job, shape, pipeline
        layout, config = job.layout, job.config
        self._pp = layout.pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        linear = any(kind.mixer in LINEAR_MIXERS for kind in set(job.model.layer_kinds))
        self._error = model_error(config.precision, linear_attention=linear)
        self._mask = AttentionMask(family_of(job.model).mask_bytes(shape))
        if config.loads_attention_mask:
            pairs = config.micro_batch_size * config.seq_length**2
            self._mask = AttentionMask(pairs // layout.context_parallel_size, pairs)
        self._fixed = pipeline.of_each_stage(
            lambda stage: stack.fixed_memory(job, shape, stages[stage])
        )

    @property
    def fixed_bytes(self) -> int:
        """Weights, gradients, optimizer and buffers of the stage that has most of them."""
        return max(fixed.static.total + fixed.resident for fixed in self._fixed)

    def stages(self, plans: list[RecomputePlan]) -> list[StageDetail]:
        """Memory of all stages; each distinct chunk is looked at once."""
        pipeline = self._pipeline
        footprints = [
            self._footprint(plans[group], chunk)
            for chunk, group in zip(pipeline.chunks, pipeline.group_of, strict=True)
        ]
        return [
            self._stage(number, tuple(footprints[chunk] for chunk in stage.chunks))
            for number, stage in enumerate(pipeline.stages)
        ]

    def _stage(self, stage: int, footprints: tuple[ChunkFootprint, ...]) -> StageDetail:
        classes = self._pipeline.stages[stage].classes
        peak = activation_peak(
            self._shape, footprints, classes, self._pp, stage, self._microbatches
        )
        fixed = self._fixed[stage]
        peak = peak.or_optimizer_step(fixed.optimizer_step, fixed.step_words)
        reserved = reserved_memory(
            fixed.static.total + fixed.resident + peak.total,
            peak.total,
            self._job.layout,
            expandable_segments=self._job.config.expandable_segments,
            error=self._error,
            pools=fixed.pools,
            unsure=footprints[0].unsure,  # such stacks have one chunk, one microbatch in flight
        )
        return StageDetail(fixed=fixed, activations=peak, reserved=reserved)

    def _footprint(self, plan: RecomputePlan, chunk: ModelChunk) -> ChunkFootprint:
        mask = self._mask if chunk.embedding or chunk.head else AttentionMask()
        working_set = self._fixed[0].working_set  # such stacks have one stage
        return chunk_footprint(self._shape, plan, chunk.embedding, chunk.head, mask, working_set)
