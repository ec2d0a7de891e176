"""Memory of every pipeline stage of a job under any recompute."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property, partial

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import MemoryBreakdown, StageMemory
from advisor.base.dtypes import DType
from advisor.base.sharing import first_equal
from advisor.frameworks.framework_parts import MemoryModel
from advisor.frameworks.part_types import FixedMemory
from advisor.job.job import GRADIENTS_AT_ONCE, Job
from advisor.job.pipeline_split import Pipeline, Stages
from advisor.layers.family import family_of
from advisor.layers.operators import PoolSide
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory import chunk as of_chunk
from advisor.memory.activations import ActivationPeak, activation_peak, most_in_flight
from advisor.memory.allocator import Reserved, model_error, reserved_memory
from advisor.memory.caching_allocator import OutOfMemoryError
from advisor.memory.chunk import NO_MASK, ChunkFootprint, ChunkTrace, chunk_footprint, chunk_trace
from advisor.memory.chunk_units import bytes_on_host, kept_bytes
from advisor.memory.events import Peak
from advisor.memory.imbalance import EVEN, UnevenStage, most_uneven, routed_bytes, uneven_stage
from advisor.memory.simulation import GraphTraces, Held, SimulatedPeaks, simulate, weight_sizes
from advisor.memory.static import NamedBytes, stage_weights
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan
from advisor.plan.schedule import first_in_flight

_GRAPHS = "pool and inputs of CUDA graphs"
_UNEVEN = "uneven routing: the busiest rank, 9 runs in 10"
_SHARES_LEFT = (0.01, 0.03, 0.06)
"""Of allocated bytes, what a card is given in addition to see whether a rank gets by with it."""


class StageDetail(Struct, frozen=True, kw_only=True):
    """What one StageMemory is made of, for reports that explain it. unsure: bytes by which its
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


class JobMemory:
    """Peaks of a job's stages; what no recompute changes is computed once.

    Plans are those of each group of layers of `pipeline`. fixed: what each stage holds under any.
    sent_bytes: of a hidden state that stages send. job, shape: whose microbatches all are the worst
    one, and that one on a rank.
    """

    def __init__(
        self, job: Job, shape: RankShape, stages: Stages, pipeline: Pipeline, model: MemoryModel
    ) -> None:
        self.job, self.shape, self._stages, self._pipeline = job, shape, stages, pipeline
        self._pp = job.layout.pipeline_model_parallel_size
        self.sent_bytes = shape.hidden(LAYER_INPUT).num_bytes
        self._chunks = list(zip(pipeline.chunks, pipeline.group_of, strict=True))
        self._most_uneven, self._mask = most_uneven(job), _attention_mask(job, shape)
        self.fixed = pipeline.of_each_stage(
            lambda stage: model.fixed_memory(job, shape, stages[stage])
        )
        self._working_set = self.fixed[0].working_set  # such stacks have one stage
        impl, kinds = job.model.transformer_impl, set(job.model.layer_kinds)
        linear = any(kind.mixer in LINEAR_MIXERS for kind in kinds)
        self._reserved = partial(
            reserved_memory,
            layout=job.layout,
            expandable_segments=job.config.expandable_segments,
            error=model_error(job.config.precision, derived=linear or job.has_te_linear),
            engine=impl is TransformerImpl.TRANSFORMER_ENGINE,
            eager=impl.is_eager,
        )
        self._capture, self._sides = model.graph_capture(job), list[RankShape]()
        if self._capture is not None:
            self._graph_inputs = [self._inputs_of_graphs(model, k) for k in range(self._pp)]
            if not self._capture.whole:  # as a pool of graphs has the shape, and what is outside
                sides = (PoolSide(self._capture, inside) for inside in (True, False))
                self._sides = [first_equal(replace(shape, side=side)) for side in sides]

    @property
    def fixed_bytes(self) -> int:
        """Weights, gradients, optimizer and buffers of the stage that has most of them."""
        return max(fixed.total for fixed in self.fixed)

    def at_least(self, plans: list[RecomputePlan]) -> Iterator[Reserved]:
        """What the stages reserve at least: what their layers keep of the microbatches that are in
        flight before the first backward, and next to it what the end of the model needs."""
        kept = [kept_bytes(self.shape, plan) for plan in plans]
        for stage in range(self._pp):
            held = sum(kept[group] * n for group, n in self.in_flight(stage))
            yield self.reserved_of(stage, held + self._end_bytes * (stage == self._pp - 1))

    @cached_property
    def _end_bytes(self) -> int:
        """The most bytes of head and loss in the first microbatch, which no other runs next to."""
        turns = self.job.layout.overlap_moe_expert_parallel_comm
        if self._working_set is not None or turns or not self._stages[-1][-1].head:
            return 0
        end = chunk_footprint(self.shape, RecomputePlan(()), False, True)
        return max(end.forward.num_bytes, end.backward.num_bytes)

    def in_flight(self, stage: int) -> list[tuple[int, int]]:
        """Of each chunk of a stage its group of layers, and the microbatches that have gone forward
        before the first backward."""
        held, microbatches = self._pipeline.stages[stage], self.job.num_microbatches
        groups = [self._pipeline.group_of[held.chunks[index]] for index in held.classes]
        numbers = first_in_flight(self._pp, len(groups), microbatches, stage)
        return list(zip(groups, numbers, strict=True))

    def reserved_of(self, stage: int, held: int) -> Reserved:
        """What a stage reserves whose layers keep so many bytes, and that runs no pass."""
        fixed = self.fixed[stage]
        return self._reserved(fixed.total + held, pools=fixed.pools)

    def reserved_with(
        self, stage: int, held: int, unused: int | None, others: tuple[NamedBytes, ...]
    ) -> Reserved:
        """What a stage reserves that holds so many bytes and its buffers, and that trains nothing;
        next to `others` on its card. unused: see reserved_memory."""
        fixed = self.fixed[stage]
        pools = () if unused == 0 else fixed.pools
        return self._reserved(fixed.resident + held, pools=pools, unused=unused, others=others)

    def next_to(
        self, waiting: Sequence[tuple[NamedBytes, ...]], others: tuple[NamedBytes, ...]
    ) -> "JobMemory":
        """The same next to what waits on each stage for another phase, and next to `others` on its
        card."""
        found = copy(self)
        found.fixed = [
            replace(fixed, buffers=(*fixed.buffers, *more))
            for fixed, more in zip(self.fixed, waiting, strict=True)
        ]
        found._reserved = partial(self._reserved, others=others)
        return found

    def forward_only(
        self, plans: list[RecomputePlan], stage: int, shape: RankShape
    ) -> tuple[int, int]:
        """See chunk.forward_without_grad; of a stage's chunks, which run one after another, on
        microbatches of `shape`. plans: of no recompute."""
        held, working_set = self._pipeline.stages[stage], self.fixed[stage].working_set
        found = [
            of_chunk.forward_without_grad(
                shape, plans[group], chunk.embedding, chunk.head, working_set
            )
            for chunk, group in (self._chunks[number] for number in held.chunks)
        ]
        return max(peak.num_bytes for peak, _ in found), sum(stays for _, stays in found)

    def largest_weight(self, stage: int) -> int:
        """Elements of the largest tensor of a stage, of all tensor-parallel ranks."""
        weights = stage_weights(self.shape, self._stages[stage])
        each = (weight.num_elements // weight.copies for weight, _ in weights)
        return max(each) * self.shape.tp

    def host_bytes(self, plans: list[RecomputePlan], stage: int) -> int:
        """Host memory of a rank of a stage: states that wait there, and what the microbatches in
        flight keep of their layers."""
        kept = (bytes_on_host(self.shape, plans[group]) * n for group, n in self.in_flight(stage))
        return self.fixed[stage].host_bytes + sum(kept)

    def each_stage(self, plans: list[RecomputePlan]) -> Iterator[StageDetail]:
        """Memory of the stages in turn; each distinct chunk is looked at once, and so is what
        stages hold that hold the same."""
        alone, chunks = self._footprints(plans, self._working_set)
        sides = self._of_sides(plans, alone, chunks)
        busiest = self._pipeline.of_each_stage(lambda stage: self._busiest(plans, stage))
        for stage, fixed in enumerate(self.fixed):
            peak = self._peak(stage, chunks, self.sent_bytes)
            step = fixed.optimizer_step + self._left(stage, chunks)
            fixed = replace(fixed, optimizer_step=step)
            whole = peak.or_optimizer_step(fixed.optimizer_step, fixed.step_words)
            if self._capture is not None:
                more = self._graphed(stage, peak, sides) - whole.total
                graphs = NamedBytes(_GRAPHS, more, "cuda_graphs.py: the pool is not shared")
                buffers = (*fixed.buffers, graphs) if more > 0 else fixed.buffers
                fixed = replace(fixed, buffers=buffers)
            if fixed.computing is not None:
                own = self._peak(stage, self._alone(plans, self.shape, fixed.computing), 0)
                (pool,), there = fixed.pools, whole.total - own.total
                free = replace(pool, num_bytes=max(pool.num_bytes - there, 0))
                fixed = replace(fixed, pools=(free,))
            uneven = EVEN
            if (most := busiest[stage]) is not None:
                uneven = most.unevenness(peak.in_flight).beyond(whole.total - peak.total)
            if uneven.stated:
                routed = NamedBytes(_UNEVEN, uneven.stated, "arXiv 2408.15664, table 2")
                fixed = replace(fixed, buffers=(*fixed.buffers, routed))
            # stacks that are unsure have one chunk, and one microbatch in flight
            unsure = chunks[self._pipeline.stages[stage].chunks[0]].unsure
            allocated = fixed.total + whole.total
            yield StageDetail(
                fixed=fixed,
                activations=whole,
                unsure=unsure,
                reserved=self._reserved(allocated, pools=fixed.pools, unsure=unsure, uneven=uneven),
            )

    def footprints(self, plans: list[RecomputePlan]) -> list[tuple[ChunkFootprint, ...]]:
        """Of the chunks of every stage in order, without the optimizer's step."""
        working_set = self._working_set
        if working_set is not None:
            working_set = replace(working_set, step=0)
        _, found = self._footprints(plans, working_set)
        stages = self._pipeline.stages
        return [tuple(found[held.chunks[number]] for number in held.classes) for held in stages]

    @staticmethod
    def optimizer_step(fixed: FixedMemory) -> Peak:
        """What a stage of these `fixed` bytes holds beyond them while the optimizer runs and no
        pass does."""
        if fixed.working_set is not None:
            return Peak(fixed.working_set.step, "optimizer step")
        return Peak(fixed.optimizer_step, f"optimizer step: {fixed.step_words}")

    def simulated(self, plans: list[RecomputePlan]) -> list[StageDetail]:
        """The same, with the allocator simulated on the stage that may need most and on the one
        that is said to, until these are ones that were simulated. Stages of the same chunks leave
        the same share unused."""
        found, like = list(self.each_stage(plans)), self._pipeline.like
        while True:
            reserved = [stage.reserved for stage in found]
            may = max(range(len(found)), key=lambda stage: reserved[stage].at_most)
            said = max(range(len(found)), key=lambda stage: reserved[stage].total)
            waiting = [stage for stage in (may, said) if reserved[stage].unused is None]
            if not waiting:
                return found
            worst = waiting[0]
            simulated = self.simulated_stage(plans, worst, found[worst])
            same = simulated.reserved
            for stage, detail in enumerate(found):
                if like[stage] == like[worst]:
                    unused, returnable = [
                        detail.reserved.allocated * found_there // same.allocated
                        for found_there in (same.unused or 0, same.returnable)
                    ]
                    found[stage] = self.with_unused(detail, unused, returnable)
            found[worst] = simulated

    def simulated_stage(
        self, plans: list[RecomputePlan], stage: int, detail: StageDetail
    ) -> StageDetail:
        """`detail` of one stage with the allocator simulated. What may be too much for the card is
        simulated as on a card that is full, too: the allocator then returns what lies free. What is
        said to be too much is what such a card gives."""
        found = self.simulate(plans, stage)
        simulated, requests = self.with_unused(detail, found.unused), found.requests
        reserved, card = simulated.reserved, self.job.gpu.memory_bytes
        full = self.job.config.memory_budget_bytes is None and reserved.at_most > card
        for share in _SHARES_LEFT if full else ():
            capacity = int(found.allocated * (1 + share))
            requests += found.requests
            if capacity >= found.reserved:
                break
            try:
                pressed = self.simulate(plans, stage, capacity)
            except OutOfMemoryError:
                continue
            if reserved.total > card:
                simulated = self.with_unused(detail, pressed.unused)
            else:
                returnable = found.unused - pressed.unused
                simulated = self.with_unused(detail, found.unused, returnable)
            break
        return replace(simulated, reserved=replace(simulated.reserved, requests=requests))

    def simulate(
        self, plans: list[RecomputePlan], stage: int, capacity: int | None = None
    ) -> SimulatedPeaks:
        """What the allocator of a rank of one stage counts; see memory.simulation."""
        held, fixed, config = self._pipeline.stages[stage], self.fixed[stage], self.job.config
        weights, copies = weight_sizes(self.shape, self._stages[stage]), config.copies_gradients
        left = sum(chunk.left for chunk in self.footprints(plans)[stage])
        step = self.optimizer_step(fixed).num_bytes + left
        chunks = [(self._chunks[chunk][0], plans[self._chunks[chunk][1]]) for chunk in held.chunks]

        def traces(shape: RankShape, found: WorkingSet | None) -> tuple[ChunkTrace, ...]:
            ends = ((plan, chunk.embedding, chunk.head) for chunk, plan in chunks)
            return tuple([chunk_trace(shape, *one, found) for one in ends])

        whole, graphs = traces(self.shape, fixed.working_set), None
        if self._capture is not None:
            pool, outside = whole, tuple[ChunkTrace, ...]()
            if self._sides:
                inside, other = self._sides
                pool = tuple([chunk_trace(inside, plan, True, True) for _, plan in chunks])
                outside = traces(other, None)
            graphs = GraphTraces(pool=pool, outside=outside, inputs=self._graph_inputs[stage])
        return simulate(
            Held(
                weights=weights,
                static=fixed.static,
                in_buffers=fixed.in_buffers and copies,
                grown_gradients=fixed.in_buffers and not copies,
                resident=tuple(term.num_bytes for term in fixed.buffers),
                step=step if copies else sum(weights) * DType.FP32.itemsize,
                main_params=fixed.static.optimizer * fixed.thirds_with_model // 3,
                stepped_together=0 if copies else GRADIENTS_AT_ONCE,
            ),
            whole,
            held.classes,
            self._pp,
            stage,
            self.job.num_microbatches,
            expandable_segments=config.expandable_segments,
            capacity=capacity,
            graphs=graphs,
        )

    def with_unused(self, detail: StageDetail, unused: int, returnable: int = 0) -> StageDetail:
        """`detail` where the allocator leaves so many bytes unused, as a simulation says, and gives
        so many of them back to a card that is full."""
        found = self._with_allocated(detail, detail.reserved.allocated, unused, returnable)
        return replace(detail, reserved=found)

    def _with_allocated(
        self, detail: StageDetail, allocated: int, unused: int | None, returnable: int
    ) -> Reserved:
        fixed, unsure, uneven = detail.fixed, detail.unsure, detail.reserved.uneven
        found = self._reserved(
            allocated, pools=fixed.pools, unsure=unsure, uneven=uneven, unused=unused
        )
        return replace(found, returnable=returnable)

    def most_allocated(self, stage: StageDetail, budget_bytes: int) -> int:
        """The most bytes that likely fit where as many are left unused as on `stage`."""

        def exceeds(allocated: int) -> bool:
            there = stage.reserved
            reserved = self._with_allocated(stage, allocated, there.unused, there.returnable)
            return reserved.fit_probability(budget_bytes) < self.job.config.certainty

        return bisect_left(range(budget_bytes), True, key=exceeds) - 1

    def _peak(self, stage: int, chunks: list[ChunkFootprint], sent: int) -> ActivationPeak:
        """Of all chunks those of a stage, which sends so many bytes of a hidden state."""
        held, microbatches = self._pipeline.stages[stage], self.job.num_microbatches
        distinct = tuple([chunks[chunk] for chunk in held.chunks])
        return activation_peak(sent, distinct, held.classes, self._pp, stage, microbatches)

    def _left(self, stage: int, chunks: list[ChunkFootprint]) -> int:
        """Bytes that the passes of a stage leave until its next forward: the optimizer works next
        to them."""
        held = self._pipeline.stages[stage]
        return sum(chunks[held.chunks[number]].left for number in held.classes)

    def _busiest(self, plans: list[RecomputePlan], stage: int) -> UnevenStage | None:
        """What the busiest rank of a stage holds beyond the mean, where routing may be uneven."""
        if self._most_uneven <= 0:
            return None
        held = self._pipeline.stages[stage]
        routed = [routed_bytes(self.shape, plans[self._chunks[chunk][1]]) for chunk in held.chunks]
        each = [routed[chunk] for chunk in held.classes]
        return uneven_stage(self.shape, each, self._most_uneven)

    def _graphed(self, stage: int, peak: ActivationPeak, sides: list[list[ChunkFootprint]]) -> int:
        """Bytes of a stage that are no fixed ones once its graphs are captured: their pool with
        all that its graphs ever need at once, inputs of their own, and what the passes outside them
        or the optimizer take. `peak` is that of the first steps, which have no graphs yet."""
        inputs, step = self._graph_inputs[stage], self.fixed[stage].optimizer_step
        if not sides:
            return inputs + peak.total + step
        pool, outside = (
            self._peak(stage, side, hidden).total
            for hidden, side in zip((0, self.sent_bytes), sides, strict=True)
        )
        return inputs + pool + max(outside, step)

    def _inputs_of_graphs(self, model: MemoryModel, stage: int) -> int:
        """Bytes that the graphs of a stage hold outside their pool, as many inputs among them as
        there are ever microbatches in flight."""
        job, shape, chunks = self.job, self.shape, self._stages[stage]
        each = [model.graph_inputs(job, shape, chunk.layers) for chunk in chunks]
        classes = self._pipeline.stages[stage].classes
        most = most_in_flight(each, classes, self._pp, stage, job.num_microbatches)
        return most + model.graph_buffers(job, shape, chunks)

    def _of_sides(
        self, plans: list[RecomputePlan], alone: list[ChunkFootprint], both: list[ChunkFootprint]
    ) -> list[list[ChunkFootprint]]:
        """Footprints of all chunks in the pool of layers' graphs, and outside it: in the pool
        neither ends of the model nor what stages send, nor what another microbatch has."""
        if not self._sides:
            return []
        inside, outside = self._sides
        pool = [chunk_footprint(inside, plans[group], False, False) for _, group in self._chunks]
        plain = self._alone(plans, outside, self._working_set)
        if both is not alone:
            plain = [
                replace(one, backward=Peak(one.backward.num_bytes + more, there.backward.point))
                for one, there, here in zip(plain, both, alone, strict=True)
                for more in (there.backward.num_bytes - here.backward.num_bytes,)
            ]
        return [pool, plain]

    def _footprints(
        self, plans: list[RecomputePlan], working_set: WorkingSet | None
    ) -> tuple[list[ChunkFootprint], list[ChunkFootprint]]:
        """Of all chunks, alone, and with the forward of another microbatch next to each backward
        where the job has them in turns."""
        alone = self._alone(plans, self.shape, working_set)
        if not self.job.layout.overlap_moe_expert_parallel_comm:
            return alone, alone
        from advisor.memory.overlap import more_in_turns, overlapped

        delayed = self.job.layout.delay_wgrad_compute
        layer = more_in_turns(self.shape, tuple(plans), delayed=delayed)
        return alone, [
            overlapped(one, self.shape, plans[group], (chunk.embedding, chunk.head), layer)
            for one, (chunk, group) in zip(alone, self._chunks, strict=True)
        ]

    def _alone(
        self, plans: list[RecomputePlan], shape: RankShape, working_set: WorkingSet | None
    ) -> list[ChunkFootprint]:
        """Of all chunks, as `shape` has them."""
        chunks = ((plans[group], chunk.embedding, chunk.head) for chunk, group in self._chunks)
        return [
            chunk_footprint(shape, *one, self._mask if one[1] or one[2] else NO_MASK, working_set)
            for one in chunks
        ]


def _attention_mask(job: Job, shape: RankShape) -> of_chunk.AttentionMask:
    """The one that comes with a microbatch."""
    if not job.config.loads_attention_mask:
        return of_chunk.AttentionMask(family_of(job.model).mask_bytes(shape))
    pairs = job.config.micro_batch_size * job.config.seq_length**2
    return of_chunk.AttentionMask(pairs // job.layout.context_parallel_size, pairs)
