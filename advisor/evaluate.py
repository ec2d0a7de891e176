"""One setting on one job: memory of every stage, and the time of a step."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.answer import Evaluation, MemoryBreakdown, StageMemory, TimeBreakdown
from advisor.cost.calibration import Calibration
from advisor.cost.flops import model_flops, replayed_flops
from advisor.cost.groups import network, parameter_groups
from advisor.cost.machine import Machine, link, machine
from advisor.cost.roofline import Network
from advisor.cost.step_time import (
    DataParallelWork,
    PassTimes,
    ShardedWork,
    chunk_times,
    end_times,
    host_accumulation_seconds,
    host_optimizer_seconds,
    optimizer_seconds,
    pipeline_transfer_seconds,
)
from advisor.dtypes import DType
from advisor.frameworks.base import FixedMemory
from advisor.frameworks.registry import stack_of
from advisor.job import Job
from advisor.layers.eager.masked import mask_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.layout import DataParallelSharding
from advisor.memory.activations import ActivationPeak, activation_peak
from advisor.memory.allocator import Reserved, reserved_memory
from advisor.memory.chunk import AttentionMask, ChunkFootprint, chunk_footprint, kept_bytes
from advisor.models.attention import SoftmaxType
from advisor.models.hybrid import LINEAR_MIXERS
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.models.spec import AttentionBackend, ModelSpec, TransformerImpl
from advisor.pipeline import ModelChunk, Pipeline, pipeline_stages
from advisor.recompute import RecomputePlan, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDetail:
    """Everything behind one StageMemory, for reports that explain it."""

    fixed: FixedMemory
    activations: ActivationPeak
    reserved: Reserved


class Evaluator:
    """Evaluates settings of one job; what does not depend on the setting is computed once.

    `calibration` gives the efficiencies; `recompute_overhead` is against `none` on the same job.
    """

    def __init__(self, job: Job, calibration: Calibration) -> None:
        self.job = job
        self.calibration = calibration
        self.shape = rank_shape(job)
        self._stack = stack_of(job.config.framework)
        layout, config = job.layout, job.config
        self._pp = layout.pipeline_model_parallel_size
        self._vpp = layout.virtual_pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        self.stages = pipeline_stages(job.model, layout)
        self._pipeline = Pipeline(self.stages)
        self._kinds = tuple(dict.fromkeys(job.model.layer_kinds))
        linear = any(kind.mixer in LINEAR_MIXERS for kind in self._kinds)
        self._derived = linear or config.precision.is_quantized
        self._machine = machine(job.gpu, calibration, config.precision)
        experts = job.model.num_moe_experts is not None
        self._network = network(layout, job.gpu, calibration, experts=experts)
        self.budget_bytes = config.memory_budget_bytes or job.gpu.memory_bytes
        self._mask = AttentionMask(mask_bytes(self.shape))
        if config.loads_attention_mask:
            pairs = config.micro_batch_size * config.seq_length**2
            self._mask = AttentionMask(pairs // layout.context_parallel_size, pairs)
        self._parameters = [
            parameter_groups(self.shape, held, layout, job.gpu, calibration) for held in self.stages
        ]
        self._fixed = [self._stage_fixed(stage) for stage in range(self._pp)]
        self._data_parallel = [self._data_parallel_work(stage) for stage in range(self._pp)]
        self._ends = [self._end_times(chunks) for chunks in self.stages]
        self._optimizer_seconds = self._slowest_optimizer_seconds()
        self._model_flops = model_flops(
            job.model,
            config.seq_length,
            config.global_batch_size,
            job.model.padded_vocab_size(layout.tensor_model_parallel_size),
            self.shape.attended_length,
        )
        self._none_seconds = self._time(self._plans(self._stack.none)).total

    def evaluate(self, setting: Setting) -> Evaluation:
        """Memory and time of `setting`, which must be legal for the job."""
        plans = self._plans(setting)
        details = self._stage_details(plans)
        time = self._time(plans)
        error = self.calibration.step_time_error
        return Evaluation(
            job=self.job,
            setting=setting,
            calibration=self.calibration,
            stages=tuple(self._stage_memory(k, detail) for k, detail in enumerate(details)),
            time_seconds=time,
            step_time_low_seconds=time.total * (1 - error),
            step_time_high_seconds=time.total * (1 + error),
            fit_probability=min(d.reserved.fit_probability(self.budget_bytes) for d in details),
            budget_bytes=self.budget_bytes,
            saved_bytes_per_layer=self._saved_bytes_per_layer(setting),
            model_flops_per_step=float(self._model_flops),
            hardware_flops_per_step=float(self._model_flops + self._replayed_flops(plans)),
            recompute_overhead=time.total / self._none_seconds - 1,
        )

    def plan(self, setting: Setting, chunk: ModelChunk) -> RecomputePlan:
        """The plan of one model chunk under `setting`."""
        return self._plan(setting, chunk.layers)

    def _plan(self, setting: Setting, layers: tuple[LayerKind, ...]) -> RecomputePlan:
        return self._stack.plan(setting, self.shape, layers, self.job)

    def _plans(self, setting: Setting) -> list[RecomputePlan]:
        """The plan of each group of layers."""
        return [self._plan(setting, layers) for layers in self._pipeline.groups]

    def _saved_bytes_per_layer(self, setting: Setting) -> dict[FeedForward, int]:
        """Bytes that one layer keeps, one microbatch, by its feed-forward part: the mean over as
        many of them as the largest chunk has."""
        kept: dict[FeedForward, int] = {}
        for kind in self._kinds:
            most = max(layers.count(kind) for layers in self._pipeline.groups)
            plan = self._plan(setting, (kind,) * most)
            kept.setdefault(kind.feed_forward, kept_bytes(self.shape, plan) // most)
        return kept

    def stage_detail(self, setting: Setting, stage: int) -> StageDetail:
        """Memory of one stage in all its terms."""
        return self._stage_details(self._plans(setting))[stage]

    def _stage_details(self, plans: list[RecomputePlan]) -> list[StageDetail]:
        """Memory of all stages; each distinct chunk is looked at once."""
        pipeline = self._pipeline
        footprints = [
            self._footprint(plans[group], chunk)
            for chunk, group in zip(pipeline.chunks, pipeline.group_of, strict=True)
        ]
        return [
            self._stage_detail(number, tuple(footprints[chunk] for chunk in stage.chunks))
            for number, stage in enumerate(pipeline.stages)
        ]

    def _stage_detail(self, stage: int, footprints: tuple[ChunkFootprint, ...]) -> StageDetail:
        classes = self._pipeline.stages[stage].classes
        peak = activation_peak(self.shape, footprints, classes, self._pp, stage, self._microbatches)
        fixed = self._fixed[stage]
        peak = peak.or_optimizer_step(fixed.optimizer_step)
        reserved = reserved_memory(
            fixed.static.total + fixed.resident + peak.total,
            peak.total,
            self.job.layout,
            expandable_segments=self.job.config.expandable_segments,
            derived=self._derived,
            pools=fixed.pools,
        )
        return StageDetail(
            fixed=fixed,
            activations=peak,
            reserved=reserved,
        )

    def _footprint(self, plan: RecomputePlan, chunk: ModelChunk) -> ChunkFootprint:
        mask = self._mask if chunk.embedding or chunk.head else AttentionMask()
        working_set = self._fixed[0].working_set  # such stacks have one stage
        return chunk_footprint(self.shape, plan, chunk.embedding, chunk.head, mask, working_set)

    def _stage_fixed(self, stage: int) -> FixedMemory:
        return self._stack.fixed_memory(self.job, self.shape, self.stages[stage])

    def _stage_memory(self, stage: int, detail: StageDetail) -> StageMemory:
        overhead = detail.reserved.total - detail.reserved.allocated
        return StageMemory(
            stage=stage,
            peak_allocated_bytes=detail.reserved.allocated,
            peak_reserved_bytes=detail.reserved.total,
            memory_bytes=MemoryBreakdown(
                weights=detail.fixed.static.weights,
                gradients=detail.fixed.static.gradients,
                optimizer=detail.fixed.static.optimizer,
                activations=detail.activations.kept,
                transient=detail.activations.transient,
                overhead=detail.fixed.resident + overhead,
            ),
            in_flight_microbatches=sum(detail.activations.in_flight) / self._vpp,
            peak_phase=detail.activations.phase,
        )

    def _replayed_flops(self, plans: list[RecomputePlan]) -> int:
        """FLOPs of all replays of one step on all ranks."""
        one_pipeline = 0
        for plan, copies in zip(plans, self._pipeline.copies, strict=True):
            one_pipeline += copies * replayed_flops(self.shape, plan)
        return one_pipeline * self._microbatches * (self.job.num_gpus // self._pp)

    def _time(self, plans: list[RecomputePlan]) -> TimeBreakdown:
        """The slowest stage sets the pace; the others fill and drain the pipeline around it."""
        stages = self._stages_times(plans)
        slowest = max(range(self._pp), key=lambda stage: stages[stage].total)
        pace = stages[slowest]
        bubble = (sum(stage.total for stage in stages) - pace.total) / self._vpp
        work = pace.times(self._microbatches)
        return TimeBreakdown(
            forward=work.forward,
            backward=work.backward,
            recompute=work.recompute,
            exposed_communication=work.exposed + self._data_parallel_seconds(slowest, pace),
            pipeline_bubble=bubble,
            optimizer=self._optimizer_seconds,
            offload=work.offload + self._accumulation_seconds(slowest, pace),
        )

    def _accumulation_seconds(self, stage: int, pace: PassTimes) -> float:
        """Gradients summed on the host, where DeepSpeed's optimizer is: beside the backward in
        stage 3, on the stream of the kernels in the others."""
        sharding = self.job.layout.data_parallel_sharding
        if sharding is None or not self.job.config.optimizer_cpu_offload:
            return 0.0
        shard = sum(part.elements / part.ranks for part in self._parameters[stage])
        copies = host_accumulation_seconds(shard, self._microbatches, self._machine)
        if sharding is DataParallelSharding.FULL:
            return max(0.0, copies - self._microbatches * pace.backward)
        return copies

    def slowest_stage(self, setting: Setting) -> int:
        """The stage that sets the pace."""
        stages = self._stages_times(self._plans(setting))
        return max(range(self._pp), key=lambda stage: stages[stage].total)

    def _stages_times(self, plans: list[RecomputePlan]) -> list[PassTimes]:
        """One microbatch through all chunks of every stage, transfers included."""
        rates = self._machine, self._network
        passes = [chunk_times(self.shape, *rates, plan) for plan in plans]
        stages = []
        for stage, total in zip(self._pipeline.stages, self._ends, strict=True):
            for group, count in stage.groups:
                total += passes[group].times(count)
            stages.append(total)
        return stages

    def _end_times(self, chunks: tuple[ModelChunk, ...]) -> PassTimes:
        """One microbatch through the ends of the model that a stage holds, and its transfers."""
        rates = self._machine, self._network
        first = any(chunk.embedding for chunk in chunks)
        last = any(chunk.head for chunk in chunks)
        return self._pipeline_transfer() + end_times(self.shape, *rates, first, last)

    @property
    def rates(self) -> tuple[Machine, Network]:
        """Rates behind the times, for reports."""
        return self._machine, self._network

    def _pipeline_transfer(self) -> PassTimes:
        if self._pp == 1:
            return PassTimes()
        joined = link(self.job.gpu, self.calibration, self.job.num_gpus)
        hidden = self.shape.hidden(LAYER_INPUT).num_bytes
        fraction = self.calibration.hidden_fraction
        return PassTimes(exposed=pipeline_transfer_seconds(hidden, self._vpp, joined, fraction))

    def _data_parallel_work(self, stage: int) -> tuple[DataParallelWork, ...] | ShardedWork:
        layout, parts = self.job.layout, self._parameters[stage]
        itemsize = self.job.config.main_grads_dtype.itemsize
        sharding = layout.data_parallel_sharding
        if sharding in (DataParallelSharding.GRADIENTS, DataParallelSharding.FULL):
            (part,) = parts  # such stacks have no experts
            shard = part.elements / part.ranks * DType.BF16.itemsize
            away = shard / self._machine.host_bytes_per_second
            return ShardedWork(
                elements=part.elements, gradient_itemsize=itemsize, ranks=part.ranks,
                joined=part.joined, microbatches=self._microbatches,
                gathers_again=sharding is DataParallelSharding.FULL,
                hidden_fraction=self.calibration.hidden_fraction,
                from_host=away if self.job.config.param_cpu_offload else 0.0,
            )  # fmt: skip
        sharded = layout.use_distributed_optimizer
        if sharding is not None:
            sharded = sharding is DataParallelSharding.OPTIMIZER
        return tuple(
            DataParallelWork(
                elements=part.elements,
                gradient_itemsize=itemsize,
                ranks=part.ranks,
                sharded=sharded,
                overlap_grad_reduce=layout.overlap_grad_reduce,
                overlap_param_gather=layout.overlap_param_gather,
                joined=part.joined,
            )
            for part in parts
        )

    def _data_parallel_seconds(self, stage: int, pace: PassTimes) -> float:
        work = self._data_parallel[stage]
        if isinstance(work, ShardedWork):
            return work.exposed_seconds(pace.forward, pace.backward)
        first, *others = work
        return first.exposed_seconds(pace.forward, pace.backward, tuple(others))

    def _slowest_optimizer_seconds(self) -> float:
        slowest = max(self._stage_optimizer_seconds(stage) for stage in range(self._pp))
        return slowest + self.calibration.step_seconds

    def _stage_optimizer_seconds(self, stage: int) -> float:
        config = self.job.config
        itemsize, away, seconds = config.main_grads_dtype.itemsize, config.offloaded_fraction, 0.0
        for part in self._parameters[stage]:
            elements, shards = part.elements, part.shards
            if self.job.layout.data_parallel_sharding is DataParallelSharding.FULL:
                elements, shards = -(-elements // shards), 1  # no gradient but the shard's
            seconds += optimizer_seconds(elements, shards, itemsize, self._machine, on_host=away)
            seconds += host_optimizer_seconds(
                away * elements / shards, itemsize, self._machine,
                overlapped=config.overlap_cpu_optimizer_d2h_h2d,
            )  # fmt: skip
        return seconds


@lru_cache(maxsize=4096)
def rank_shape(job: Job) -> RankShape:
    """Local sizes of one rank of `job`, its attention backend resolved."""
    layout, config = job.layout, job.config
    return RankShape(
        model=_resolve_attention(job.model, job.gpu.compute_capability),
        seq_length=config.seq_length,
        micro_batch_size=config.micro_batch_size,
        precision=config.precision,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
        context_parallel_size=layout.context_parallel_size,
        cp_comm_type=layout.cp_comm_type,
        cp_all_to_all_size=layout.cp_all_to_all_size,
        transformer_engine=config.transformer_engine,
        tp_comm_overlap=layout.tp_comm_overlap,
        mean_packed_length=config.mean_packed_length,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        expert_tensor_parallel_size=layout.expert_tensor_degree if job.model.num_moe_experts else 1,
        moe_load_imbalance=config.moe_load_imbalance,
    )


def _resolve_attention(model: ModelSpec, compute_capability: float) -> ModelSpec:
    """What `auto` means: cuDNN's fused attention from Hopper on, flash-attn before (TE
    attention/dot_product_attention/utils.py); the local spec has only the unfused one, which alone
    caps scores. Before Hopper no kernel trains with sinks or with values narrower than keys:
    attention is unfused."""
    if model.attention_backend is not AttentionBackend.AUTO:
        return model
    capped = model.attn_logit_softcapping is not None
    if model.transformer_impl is TransformerImpl.LOCAL or capped:
        return replace(model, attention_backend=AttentionBackend.UNFUSED)
    fused = compute_capability >= 9.0
    older = AttentionBackend.FLASH
    sinks = model.softmax_type is not SoftmaxType.VANILLA
    if sinks or model.qk_channels != model.v_channels:
        older = AttentionBackend.UNFUSED
    backend = AttentionBackend.FUSED if fused else older
    return replace(model, attention_backend=backend)


def evaluate(job: Job, setting: Setting, calibration: Calibration) -> Evaluation:
    """`setting` on `job`; use an Evaluator for several settings of one job."""
    return Evaluator(job, calibration).evaluate(setting)
