"""Memory of every pipeline stage of a job under any recompute."""

from math import inf
from operator import mul

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import MemoryBreakdown, StageMemory
from advisor.base.dtypes import DType
from advisor.frameworks.protocols import FixedMemory, FrameworkAdapter
from advisor.job.job import GRADIENTS_AT_ONCE, Job
from advisor.job.pipeline_split import ModelChunk, Pipeline, Stages
from advisor.layers.family import family_of
from advisor.layers.shape import RankShape
from advisor.memory.activations import ActivationPeak, activation_peak
from advisor.memory.allocator import Reserved, model_error, reserved_memory
from advisor.memory.caching_allocator import OutOfMemoryError
from advisor.memory.chunk import AttentionMask, ChunkFootprint, chunk_footprint, running_bytes
from advisor.memory.imbalance import EVEN, RoutedBytes, Unevenness, routed_bytes, unevenness
from advisor.memory.replay import Held, Replayed, replay, weight_sizes
from advisor.memory.resident import NamedBytes
from advisor.memory.trace import chunk_trace
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan

_SHARES_LEFT = (0.01, 0.03, 0.06)
"""Of allocated bytes, what a card is given beside them to see whether a rank gets by with it."""


class StageParts(Struct, frozen=True, kw_only=True):
    """What a stage allocates. unsure: bytes by which its activations may differ, one sigma; uneven:
    see Reserved."""

    fixed: FixedMemory
    activations: ActivationPeak
    unsure: int = 0
    uneven: Unevenness = EVEN

    @property
    def allocated(self) -> int:
        """Bytes at the peak."""
        return self.fixed.static.total + self.fixed.resident + self.activations.total


class StageDetail(StageParts, frozen=True, kw_only=True):
    """Everything behind one StageMemory, for reports that explain it."""

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
        self._held_chunks = stages
        layout, config = job.layout, job.config
        self._pp = layout.pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        self._most_uneven = most_uneven(job)
        linear = any(kind.mixer in LINEAR_MIXERS for kind in set(job.model.layer_kinds))
        self._error = model_error(config.precision, linear_attention=linear)
        self._mask = AttentionMask(family_of(job.model).mask_bytes(shape))
        if config.loads_attention_mask:
            pairs = config.micro_batch_size * config.seq_length**2
            self._mask = AttentionMask(pairs // layout.context_parallel_size, pairs)
        self._fixed = pipeline.of_each_stage(
            lambda stage: stack.fixed_memory(job, shape, stages[stage])
        )

        self._graph_inputs = pipeline.of_each_stage(
            lambda stage: [stack.graph_inputs(job, chunk.layers) for chunk in stages[stage]]
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
        routed = [
            routed_bytes(self._shape, plans[group])
            for group in (pipeline.group_of if self._most_uneven > 0 else ())
        ]
        overlaps = self._job.layout.overlap_moe_expert_parallel_comm
        beside = max(running_bytes(self._shape, plan) for plan in plans) if overlaps else 0
        return [
            self._stage(
                number,
                tuple(footprints[chunk] for chunk in stage.chunks),
                tuple(routed[chunk] for chunk in stage.chunks if routed),
                beside,
            )
            for number, stage in enumerate(pipeline.stages)
        ]

    def replayed(self, plans: list[RecomputePlan]) -> list[StageDetail]:
        """The same, with the allocator replayed on the stage that may need most and on the one that
        is said to, until these are ones that were replayed. Stages of the same chunks leave the
        same share unused."""
        found = self.stages(plans)
        while True:
            reserved = [stage.reserved for stage in found]
            may = max(range(len(found)), key=lambda stage: reserved[stage].at_most)
            said = max(range(len(found)), key=lambda stage: reserved[stage].total)
            waiting = [stage for stage in (may, said) if reserved[stage].unused is None]
            if not waiting:
                return found
            worst = waiting[0]
            replayed = self.replayed_stage(plans, worst, found[worst])
            for stage, held in enumerate(self._pipeline.stages):
                if held == self._pipeline.stages[worst]:
                    found[stage] = self._like(found[stage], replayed.reserved)
            found[worst] = replayed

    def _like(self, detail: StageDetail, other: Reserved) -> StageDetail:
        """`detail` with the share unused that a replay has found on another stage."""
        unused = detail.reserved.allocated * (other.unused or 0) // other.allocated
        return replace(detail, reserved=self._reserved(detail, unused))

    def replayed_stage(
        self, plans: list[RecomputePlan], stage: int, detail: StageDetail
    ) -> StageDetail:
        """`detail` of one stage with the allocator replayed. What may be too much for the card is
        replayed as on a card that is full: the allocator then returns what lies free."""
        found = self.replay(plans, stage)
        reserved, requests = self._reserved(detail, found.unused), found.requests
        card = self._job.gpu.memory_bytes
        if self._job.config.memory_budget_bytes is None and reserved.at_most > card:
            for share in _SHARES_LEFT:
                capacity = int(found.allocated * (1 + share))
                requests += found.requests
                if capacity >= found.reserved:
                    break
                try:
                    pressed = self.replay(plans, stage, capacity)
                except OutOfMemoryError:
                    continue
                reserved = self._reserved(detail, pressed.unused)
                break
        return replace(detail, reserved=replace(reserved, requests=requests))

    def replay(
        self, plans: list[RecomputePlan], stage: int, capacity: int | None = None
    ) -> Replayed:
        """What the allocator of a rank of one stage counts; see memory.replay."""
        held, fixed, config = self._pipeline.stages[stage], self._fixed[stage], self._job.config
        weights = weight_sizes(self._shape, self._held_chunks[stage])
        step, together = fixed.optimizer_step, 0
        if not config.copies_gradients:
            step, together = sum(weights) * DType.FP32.itemsize, GRADIENTS_AT_ONCE
        chunks = [self._pipeline.chunks[chunk] for chunk in held.chunks]
        groups = [self._pipeline.group_of[chunk] for chunk in held.chunks]
        traces = tuple(
            chunk_trace(self._shape, plans[group], chunk.embedding, chunk.head, fixed.working_set)
            for chunk, group in zip(chunks, groups, strict=True)
        )
        return replay(
            Held(
                weights=weights,
                static=fixed.static,
                in_buffers=fixed.in_buffers and config.copies_gradients,
                resident=tuple(term.num_bytes for term in fixed.buffers),
                step=step,
                stepped_together=together,
            ),
            traces,
            held.classes,
            self._pp,
            stage,
            self._microbatches,
            expandable_segments=self._job.config.expandable_segments,
            capacity=capacity,
        )

    def _reserved(self, stage: StageParts, unused: int | None = None) -> Reserved:
        return reserved_memory(
            stage.allocated,
            self._job.layout,
            expandable_segments=self._job.config.expandable_segments,
            error=self._error,
            pools=stage.fixed.pools,
            unsure=stage.unsure,
            uneven=stage.uneven,
            unused=unused,
            engine=self._job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE,
        )

    def _stage(
        self,
        stage: int,
        footprints: tuple[ChunkFootprint, ...],
        routed: tuple[RoutedBytes, ...],
        beside: int,
    ) -> StageDetail:
        classes = self._pipeline.stages[stage].classes
        peak = activation_peak(
            self._shape, footprints, classes, self._pp, stage, self._microbatches
        )
        if beside:
            peak = peak.beside_forward(beside)
        fixed = self._fixed[stage]
        inputs = sum(map(mul, self._graph_inputs[stage], peak.in_flight))
        if inputs:
            fixed = replace(fixed, buffers=(*fixed.buffers, _graph_inputs(inputs)))
        whole = peak.or_optimizer_step(fixed.optimizer_step, fixed.step_words)
        uneven = EVEN
        if routed:
            chunks = [(routed[k], n) for k, n in zip(classes, peak.in_flight, strict=True)]
            uneven = unevenness(self._shape, chunks, self._most_uneven)
            uneven = uneven.beyond(whole.total - peak.total)
        parts = StageParts(
            fixed=fixed,
            activations=whole,
            unsure=footprints[0].unsure,  # such stacks have one chunk, one microbatch in flight
            uneven=uneven,
        )
        return StageDetail(
            fixed=fixed,
            activations=whole,
            unsure=parts.unsure,
            uneven=parts.uneven,
            reserved=self._reserved(parts),
        )

    def _footprint(self, plan: RecomputePlan, chunk: ModelChunk) -> ChunkFootprint:
        mask = self._mask if chunk.embedding or chunk.head else AttentionMask()
        working_set = self._fixed[0].working_set  # such stacks have one stage
        return chunk_footprint(self._shape, plan, chunk.embedding, chunk.head, mask, working_set)


def _graph_inputs(num_bytes: int) -> NamedBytes:
    return NamedBytes("inputs of CUDA graphs", num_bytes, "static inputs of captured layers")


def most_uneven(job: Job) -> float:
    """The largest excess over the mean that a rank's experts may get: none where routing is forced
    to balance, padded to capacity or given, and no more than capacity allows."""
    model, config = job.model, job.config
    if job.layout.expert_model_parallel_size == 1 or config.moe_load_imbalance != 1.0:
        return 0.0
    if config.moe_router_force_load_balancing or model.moe_pad_expert_input_to_capacity:
        return 0.0
    factor = model.moe_expert_capacity_factor
    return inf if factor is None else max(0.0, factor - 1.0)
