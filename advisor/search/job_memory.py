"""Memory of every pipeline stage of a job under any recompute."""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import LIKELY, MemoryBreakdown, StageMemory
from advisor.base.dtypes import DType
from advisor.base.sharing import first_equal
from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.part_types import FixedMemory
from advisor.job.job import GRADIENTS_AT_ONCE, Job
from advisor.job.pipeline_split import ModelChunk, Pipeline, Stage, Stages
from advisor.layers.family import family_of
from advisor.layers.operators import Side
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory.activations import ActivationPeak, activation_peak, most_in_flight
from advisor.memory.allocator import Reserved, model_error, reserved_memory
from advisor.memory.caching_allocator import OutOfMemoryError
from advisor.memory.chunk import (
    AttentionMask,
    ChunkFootprint,
    chunk_footprint,
    kept_bytes,
    layers_backward,
)
from advisor.memory.events import Peak
from advisor.memory.imbalance import EVEN, Unevenness, UnevenStage, routed_bytes, uneven_stage
from advisor.memory.resident import NamedBytes
from advisor.memory.simulation import GraphTraces, Held, SimulatedPeaks, simulate, weight_sizes
from advisor.memory.trace import ChunkTrace, chunk_trace
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan
from advisor.plan.schedule import first_in_flight

_SHARES_LEFT = (0.01, 0.03, 0.06)
"""Of allocated bytes, what a card is given beside them to see whether a rank gets by with it."""


class StageDetail(Struct, frozen=True, kw_only=True):
    """Everything behind one StageMemory, for reports that explain it. unsure: bytes by which its
    activations may differ, one sigma."""

    fixed: FixedMemory
    activations: ActivationPeak
    reserved: Reserved
    unsure: int = 0

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
                activations=self.activations.kept + self.reserved.measured_more,
                transient=self.activations.transient,
                overhead=self.fixed.resident + overhead,
            ),
            in_flight_microbatches=sum(self.activations.in_flight) / vpp,
            peak_phase=self.activations.phase,
        )


class _StageChunks(Struct, frozen=True):
    """What the distinct chunks of a stage have of one microbatch: as they run, on both sides of
    CUDA graphs where there are some, and what the busiest rank holds beyond that where routing may
    be uneven."""

    footprints: tuple[ChunkFootprint, ...]
    sides: tuple[tuple[ChunkFootprint, ...], ...]
    busiest: UnevenStage | None


class StagePasses(Struct, frozen=True, kw_only=True):
    """What the passes of one stage hold beyond its fixed bytes: `chunks` in order, `sent` of a
    hidden state between stages, `optimizer` while that runs and no pass does."""

    chunks: tuple[ChunkFootprint, ...]
    sent: int
    optimizer: Peak


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
        model: MemoryModel,
    ) -> None:
        self._job, self._shape, self._pipeline = job, shape, pipeline
        self._held_chunks = stages
        layout, config = job.layout, job.config
        self._pp = layout.pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        self._hidden_bytes = shape.hidden(LAYER_INPUT).num_bytes
        self._most_uneven = most_uneven(job)
        linear = any(kind.mixer in LINEAR_MIXERS for kind in set(job.model.layer_kinds))
        self._error = model_error(config.precision, linear_attention=linear)
        self._mask = AttentionMask(family_of(job.model).mask_bytes(shape))
        if config.loads_attention_mask:
            pairs = config.micro_batch_size * config.seq_length**2
            self._mask = AttentionMask(pairs // layout.context_parallel_size, pairs)
        self._fixed = pipeline.of_each_stage(
            lambda stage: model.fixed_memory(job, shape, stages[stage])
        )
        self._working_set = self._fixed[0].working_set  # such stacks have one stage
        self._capture = model.graph_capture(job)
        self._sided_shapes = self._sides()
        if self._capture is not None:
            self._graph_inputs = [
                self._inputs_of_graphs(model, number) for number in range(self._pp)
            ]

    @property
    def fixed_bytes(self) -> int:
        """Weights, gradients, optimizer and buffers of the stage that has most of them."""
        return max(fixed.total for fixed in self._fixed)

    def at_least(self, plans: list[RecomputePlan]) -> Iterator[Reserved]:
        """What the stages reserve at least: what their layers keep of the microbatches that are in
        flight before the first backward, and nothing of a running pass."""
        kept = [kept_bytes(self._shape, plan) for plan in plans]
        for stage in range(self._pp):
            held = sum(kept[group] * n for group, n in self.in_flight(stage))
            yield self.reserved_of(stage, held)

    def in_flight(self, stage: int) -> list[tuple[int, int]]:
        """Of each chunk of a stage its group of layers, and the microbatches that have gone forward
        before the first backward."""
        vpp = self._job.layout.virtual_pipeline_model_parallel_size
        held = self._pipeline.stages[stage]
        groups = [self._pipeline.group_of[held.chunks[index]] for index in held.classes]
        numbers = first_in_flight(self._pp, vpp, self._microbatches, stage)
        return list(zip(groups, numbers, strict=True))

    def fixed_of(self, stage: int) -> int:
        """Weights, gradients, optimizer and buffers of a stage."""
        return self._fixed[stage].total

    def reserved_of(self, stage: int, held: int) -> Reserved:
        """What a stage reserves whose layers keep so many bytes, and that runs no pass."""
        fixed = self._fixed[stage]
        return self._reserved(fixed.total + held, fixed, 0, EVEN)

    def each_stage(self, plans: list[RecomputePlan]) -> Iterator[StageDetail]:
        """Memory of the stages in turn; each distinct chunk is looked at once, and so is what
        stages hold that hold the same."""
        alone = footprints = self._footprints(plans, self._shape, self._working_set)
        if self._job.layout.overlap_moe_expert_parallel_comm:
            footprints = self._in_turns(plans, alone)
        sides = self._sided_footprints(plans, footprints, alone)
        held: dict[int, _StageChunks] = {}
        for number, like in enumerate(self._pipeline.like):
            if like not in held:
                held[like] = self._held(plans, self._pipeline.stages[like], footprints, sides)
            yield self._stage(number, held[like])

    def _held(
        self,
        plans: list[RecomputePlan],
        stage: Stage,
        footprints: list[ChunkFootprint],
        sides: list[list[ChunkFootprint]],
    ) -> _StageChunks:
        """Of those of all chunks, what a stage holds."""
        busiest = None
        if self._most_uneven > 0:
            groups = [self._pipeline.group_of[chunk] for chunk in stage.chunks]
            routed = [routed_bytes(self._shape, plans[group]) for group in groups]
            each = [routed[chunk] for chunk in stage.classes]
            busiest = uneven_stage(self._shape, each, self._most_uneven)
        return _StageChunks(
            tuple([footprints[chunk] for chunk in stage.chunks]),
            tuple([tuple([side[chunk] for chunk in stage.chunks]) for side in sides]),
            busiest,
        )

    def of_passes(self, plans: list[RecomputePlan]) -> list[StagePasses]:
        """What the passes of every stage hold."""
        working_set = self._working_set
        if working_set is not None:
            working_set = replace(working_set, step=0)
        footprints = self._footprints(plans, self._shape, working_set)
        if self._job.layout.overlap_moe_expert_parallel_comm:
            footprints = self._in_turns(plans, footprints)
        return [
            StagePasses(
                chunks=tuple(footprints[stage.chunks[number]] for number in stage.classes),
                sent=self._hidden_bytes,
                optimizer=_optimizer_step(fixed),
            )
            for stage, fixed in zip(self._pipeline.stages, self._fixed, strict=True)
        ]

    def simulated(self, plans: list[RecomputePlan]) -> list[StageDetail]:
        """The same, with the allocator simulated on the stage that may need most and on the one
        that is said to, until these are ones that were simulated. Stages of the same chunks leave
        the same share unused."""
        found = list(self.each_stage(plans))
        while True:
            reserved = [stage.reserved for stage in found]
            may = max(range(len(found)), key=lambda stage: reserved[stage].at_most)
            said = max(range(len(found)), key=lambda stage: reserved[stage].total)
            waiting = [stage for stage in (may, said) if reserved[stage].unused is None]
            if not waiting:
                return found
            worst = waiting[0]
            simulated = self.simulated_stage(plans, worst, found[worst])
            for stage, like in enumerate(self._pipeline.like):
                if like == self._pipeline.like[worst]:
                    found[stage] = self._like(found[stage], simulated.reserved)
            found[worst] = simulated

    def _like(self, detail: StageDetail, other: Reserved) -> StageDetail:
        """`detail` with the share unused that a simulation has found on another stage."""
        unused = detail.reserved.allocated * (other.unused or 0) // other.allocated
        return replace(detail, reserved=self._with_unused(detail, unused))

    def simulated_stage(
        self, plans: list[RecomputePlan], stage: int, detail: StageDetail
    ) -> StageDetail:
        """`detail` of one stage with the allocator simulated. What may be too much for the card is
        simulated as on a card that is full: the allocator then returns what lies free."""
        found = self.simulate(plans, stage)
        reserved, requests = self._with_unused(detail, found.unused), found.requests
        card = self._job.gpu.memory_bytes
        if self._job.config.memory_budget_bytes is None and reserved.at_most > card:
            for share in _SHARES_LEFT:
                capacity = int(found.allocated * (1 + share))
                requests += found.requests
                if capacity >= found.reserved:
                    break
                try:
                    pressed = self.simulate(plans, stage, capacity)
                except OutOfMemoryError:
                    continue
                reserved = self._with_unused(detail, pressed.unused)
                break
        return replace(detail, reserved=replace(reserved, requests=requests))

    def simulate(
        self, plans: list[RecomputePlan], stage: int, capacity: int | None = None
    ) -> SimulatedPeaks:
        """What the allocator of a rank of one stage counts; see memory.simulation."""
        held, fixed, config = self._pipeline.stages[stage], self._fixed[stage], self._job.config
        weights = weight_sizes(self._shape, self._held_chunks[stage])
        step, together = fixed.optimizer_step, 0
        if not config.copies_gradients:
            step, together = sum(weights) * DType.FP32.itemsize, GRADIENTS_AT_ONCE
        chunks = [self._pipeline.chunks[chunk] for chunk in held.chunks]
        groups = [self._pipeline.group_of[chunk] for chunk in held.chunks]
        found = [plans[group] for group in groups]
        traces = tuple(
            chunk_trace(self._shape, plan, chunk.embedding, chunk.head, fixed.working_set)
            for chunk, plan in zip(chunks, found, strict=True)
        )
        graphs = None
        if self._capture is not None:
            graphs = self._graph_traces(self._graph_inputs[stage], traces, chunks, found)
        return simulate(
            Held(
                weights=weights,
                static=fixed.static,
                in_buffers=fixed.in_buffers and config.copies_gradients,
                grown_gradients=fixed.in_buffers and not config.copies_gradients,
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
            graphs=graphs,
        )

    def at_best(self, stage: StageDetail) -> Reserved:
        """What the stage reserves where its allocator leaves nothing unused: a simulation says
        more."""
        return self._with_unused(stage, 0)

    def _graph_traces(
        self,
        inputs: int,
        whole: tuple[ChunkTrace, ...],
        chunks: list[ModelChunk],
        plans: list[RecomputePlan],
    ) -> GraphTraces:
        if not self._sided_shapes:
            return GraphTraces(pool=whole, outside=(), inputs=inputs)
        inside, beside = self._sided_shapes
        return GraphTraces(
            pool=tuple(chunk_trace(inside, plan, True, True) for plan in plans),
            outside=tuple(
                chunk_trace(beside, plan, chunk.embedding, chunk.head)
                for plan, chunk in zip(plans, chunks, strict=True)
            ),
            inputs=inputs,
        )

    def most_allocated(self, stage: StageDetail, budget_bytes: int) -> int:
        """The most bytes that likely fit where as many are left unused as on `stage`."""
        unused = stage.reserved.unused

        def fits(allocated: int) -> bool:
            reserved = self._reserved(
                allocated, stage.fixed, stage.unsure, stage.reserved.uneven, unused
            )
            return reserved.fit_probability(budget_bytes) >= LIKELY

        return bisect_left(range(budget_bytes), True, key=lambda size: not fits(size)) - 1

    def _with_unused(self, stage: StageDetail, unused: int) -> Reserved:
        """The stage's reserved bytes where a simulation has left so many unused."""
        reserved = stage.reserved
        return self._reserved(
            reserved.allocated, stage.fixed, stage.unsure, reserved.uneven, unused
        )

    def _reserved(
        self,
        allocated: int,
        fixed: FixedMemory,
        unsure: int,
        uneven: Unevenness,
        unused: int | None = None,
    ) -> Reserved:
        return reserved_memory(
            allocated,
            self._job.layout,
            expandable_segments=self._job.config.expandable_segments,
            error=self._error,
            pools=fixed.pools,
            unsure=unsure,
            uneven=uneven,
            unused=unused,
            engine=self._job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE,
            eager=self._job.model.transformer_impl.is_eager,
        )

    def _stage(self, stage: int, held: _StageChunks) -> StageDetail:
        classes = self._pipeline.stages[stage].classes
        peak = activation_peak(
            self._hidden_bytes, held.footprints, classes, self._pp, stage, self._microbatches
        )
        fixed = self._fixed[stage]
        whole = peak.or_optimizer_step(fixed.optimizer_step, fixed.step_words)
        if self._capture is not None:
            more = self._graphed(stage, peak, held.sides) - whole.total
            if more > 0:
                fixed = replace(fixed, buffers=(*fixed.buffers, _graphs(more)))
        uneven = EVEN
        if held.busiest is not None:
            uneven = held.busiest.unevenness(peak.in_flight).beyond(whole.total - peak.total)
        unsure = held.footprints[0].unsure  # such stacks have one chunk, one microbatch in flight
        return StageDetail(
            fixed=fixed,
            activations=whole,
            unsure=unsure,
            reserved=self._reserved(fixed.total + whole.total, fixed, unsure, uneven),
        )

    def _graphed(
        self, stage: int, peak: ActivationPeak, sides: tuple[tuple[ChunkFootprint, ...], ...]
    ) -> int:
        """Bytes of a stage that are no fixed ones once its graphs are captured: their pool with
        all that its graphs ever need at once, inputs of their own, and what the passes beside them
        or the optimizer take. `peak` is that of the first steps, which have no graphs yet."""
        assert self._capture is not None
        inputs = self._graph_inputs[stage]
        step = self._fixed[stage].optimizer_step
        if self._capture.whole:
            return inputs + peak.total + step
        classes = self._pipeline.stages[stage].classes
        pool, outside = (
            activation_peak(hidden, side, classes, self._pp, stage, self._microbatches).total
            for hidden, side in zip((0, self._hidden_bytes), sides, strict=True)
        )
        return inputs + pool + max(outside, step)

    def _inputs_of_graphs(self, model: MemoryModel, stage: int) -> int:
        """Bytes that the graphs of a stage hold outside their pool, as many inputs among them as
        there are ever microbatches in flight."""
        job, shape, chunks = self._job, self._shape, self._held_chunks[stage]
        each = [model.graph_inputs(job, shape, chunk.layers) for chunk in chunks]
        classes = self._pipeline.stages[stage].classes
        most = most_in_flight(each, classes, self._pp, stage, self._microbatches)
        return most + model.graph_buffers(job, shape, chunks)

    def _sides(self) -> tuple[RankShape, ...]:
        """The shape as a pool of graphs has it, and as what is beside it has: none of either where
        no graph of a layer is."""
        if self._capture is None or self._capture.whole:
            return ()
        sides = (Side(self._capture, inside) for inside in (True, False))
        return tuple(first_equal(replace(self._shape, side=side)) for side in sides)

    def _sided_footprints(
        self,
        plans: list[RecomputePlan],
        whole: list[ChunkFootprint],
        alone: list[ChunkFootprint],
    ) -> list[list[ChunkFootprint]]:
        """Of each side, those of all chunks: in the pool of layers' graphs neither ends of the
        model nor what stages send, nor what another microbatch has, which counts outside."""
        if not self._sided_shapes:
            return []
        inside, outside = self._sided_shapes
        held = [chunk_footprint(inside, plan, False, False) for plan in plans]
        pool = [held[group] for group in self._pipeline.group_of]
        plain = self._footprints(plans, outside, self._working_set)
        if not self._job.layout.overlap_moe_expert_parallel_comm:
            return [pool, plain]
        beside = [
            replace(there, backward=_more(there.backward, both.backward, one.backward))
            for there, both, one in zip(plain, whole, alone, strict=True)
        ]
        return [pool, beside]

    def _footprints(
        self, plans: list[RecomputePlan], shape: RankShape, working_set: WorkingSet | None
    ) -> list[ChunkFootprint]:
        """Of all chunks, as `shape` has them."""
        pipeline = self._pipeline
        return [
            self._footprint(plans[group], chunk, shape, working_set)
            for chunk, group in zip(pipeline.chunks, pipeline.group_of, strict=True)
        ]

    def _in_turns(
        self, plans: list[RecomputePlan], alone: list[ChunkFootprint]
    ) -> list[ChunkFootprint]:
        """`alone` with the forward of another microbatch beside each backward."""
        from advisor.memory.overlap import beside_forward, overlapped

        pipeline, delayed = self._pipeline, self._job.layout.delay_wgrad_compute
        layer = beside_forward(self._shape, tuple(plans), delayed=delayed)
        return [
            overlapped(
                footprint,
                layers_backward(self._shape, plans[group], chunk.embedding, chunk.head),
                layer,
                self._hidden_bytes,
            )
            for footprint, chunk, group in zip(
                alone, pipeline.chunks, pipeline.group_of, strict=True
            )
        ]

    def _footprint(
        self,
        plan: RecomputePlan,
        chunk: ModelChunk,
        shape: RankShape,
        working_set: WorkingSet | None,
    ) -> ChunkFootprint:
        mask = self._mask if chunk.embedding or chunk.head else AttentionMask()
        return chunk_footprint(shape, plan, chunk.embedding, chunk.head, mask, working_set)


def _more(peak: Peak, both: Peak, one: Peak) -> Peak:
    """`peak` with what `both` has more than `one`."""
    return Peak(peak.num_bytes + both.num_bytes - one.num_bytes, both.point)


def _optimizer_step(fixed: FixedMemory) -> Peak:
    if fixed.working_set is not None:
        return Peak(fixed.working_set.step, "optimizer step")
    return Peak(fixed.optimizer_step, f"optimizer step: {fixed.step_words}")


def _graphs(num_bytes: int) -> NamedBytes:
    name = "pool and inputs of CUDA graphs"
    return NamedBytes(name, num_bytes, "cuda_graphs.py: the pool is not shared")


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
