"""One setting on one job: memory of every stage, and the time of a step."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.answer import Evaluation, MemoryBreakdown, StageMemory, TimeBreakdown
from advisor.cost.calibration import Calibration
from advisor.cost.flops import model_flops, replayed_flops
from advisor.cost.machine import Machine, data_parallel_link, group_span, link, machine
from advisor.cost.roofline import Network
from advisor.cost.step_time import (
    DataParallelWork,
    PassTimes,
    chunk_times,
    end_times,
    optimizer_seconds,
    pipeline_transfer_seconds,
)
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import NONE, RecomputeSetting
from advisor.job import Job
from advisor.layers.operators import Group
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.activations import ActivationPeak, activation_peak
from advisor.memory.allocator import Reserved, reserved_memory
from advisor.memory.chunk import ChunkFootprint, chunk_footprint
from advisor.memory.resident import NamedBytes, stage_buffers
from advisor.memory.static import StaticMemory, stage_elements, static_memory
from advisor.models.spec import AttentionBackend, ModelSpec, TransformerImpl
from advisor.recompute import RecomputePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDetail:
    """Everything behind one StageMemory, for reports that explain it."""

    static: StaticMemory
    buffers: tuple[NamedBytes, ...]
    resident: int
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
        layout, config = job.layout, job.config
        self._pp = layout.pipeline_model_parallel_size
        self._vpp = layout.virtual_pipeline_model_parallel_size
        self._microbatches = job.num_microbatches
        self._layers = layout.layers_per_chunk(job.model.num_layers)
        self._machine = machine(job.gpu, calibration, config.precision)
        self._network = _network(job, calibration)
        self.budget_bytes = config.memory_budget_bytes or job.gpu.memory_bytes
        self._mask = 0
        if config.create_attention_mask:
            self._mask = config.micro_batch_size * self.shape.local_seq * config.seq_length
        self._fixed = [self._stage_fixed(stage) for stage in range(self._pp)]
        self._data_parallel = [self._data_parallel_work(stage) for stage in range(self._pp)]
        self._first_end = end_times(self.shape, self._machine, self._network, True, False)
        self._last_end = end_times(self.shape, self._machine, self._network, False, True)
        self._transfer = self._pipeline_transfer()
        self._optimizer_seconds = self._slowest_optimizer_seconds()
        self._model_flops = model_flops(
            job.model,
            config.seq_length,
            config.global_batch_size,
            job.model.padded_vocab_size(layout.tensor_model_parallel_size),
        )
        self._none_seconds = self._time(self.plan(NONE)).total

    def evaluate(self, setting: RecomputeSetting) -> Evaluation:
        """Memory and time of `setting`, which must be legal for the job."""
        plan = self.plan(setting)
        details = self._stage_details(plan)
        time = self._time(plan)
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
            saved_bytes_per_layer=self._footprint(plan, False, False).kept // plan.num_layers,
            model_flops_per_step=float(self._model_flops),
            hardware_flops_per_step=float(self._model_flops + self._replayed_flops(plan)),
            recompute_overhead=time.total / self._none_seconds - 1,
        )

    def plan(self, setting: RecomputeSetting) -> RecomputePlan:
        """The plan of every model chunk under `setting`."""
        return chunk_plan(
            setting, self.shape.model, self._layers, self.job.layout.sequence_parallel
        )

    def stage_detail(self, setting: RecomputeSetting, stage: int) -> StageDetail:
        """Memory of one stage in all its terms."""
        return self._stage_details(self.plan(setting))[stage]

    def _stage_details(self, plan: RecomputePlan) -> list[StageDetail]:
        """Memory of all stages; the chunks between the pipeline's ends are alike."""
        middle = self._footprint(plan, False, False)
        details = []
        for stage in range(self._pp):
            chunks = [middle] * self._vpp
            first, last = stage == 0, stage == self._pp - 1
            if first:
                chunks[0] = self._footprint(plan, True, last and self._vpp == 1)
            if last and not (first and self._vpp == 1):
                chunks[-1] = self._footprint(plan, False, True)
            details.append(self._stage_detail(stage, tuple(chunks)))
        return details

    def _footprint(self, plan: RecomputePlan, first: bool, last: bool) -> ChunkFootprint:
        mask = self._mask if first or last else 0
        return chunk_footprint(self.shape, plan, first, last, mask)

    def _stage_detail(self, stage: int, chunks: tuple[ChunkFootprint, ...]) -> StageDetail:
        peak = activation_peak(self.shape, chunks, self._pp, stage, self._microbatches)
        static, buffers, resident = self._fixed[stage]
        reserved = reserved_memory(
            static.total + resident + peak.total,
            peak.total,
            self.job.layout,
            expandable_segments=self.job.config.expandable_segments,
            eight_bit=self.job.config.precision.is_fp8,
        )
        return StageDetail(
            static=static,
            buffers=buffers,
            resident=resident,
            activations=peak,
            reserved=reserved,
        )

    def ends(self, stage: int) -> list[tuple[bool, bool]]:
        """Per chunk of `stage`: whether it holds the embedding, and the head."""
        last_stage, last_chunk = self._pp - 1, self._vpp - 1
        return [
            (stage == 0 and chunk == 0, stage == last_stage and chunk == last_chunk)
            for chunk in range(self._vpp)
        ]

    def _stage_elements(self, stage: int) -> int:
        layers = self._layers * self._vpp
        return stage_elements(self.shape, layers, stage == 0, stage == self._pp - 1)

    def _stage_fixed(self, stage: int) -> tuple[StaticMemory, tuple[NamedBytes, ...], int]:
        """Static memory and resident buffers of a stage, and the buffers' bytes."""
        layout, config = self.job.layout, self.job.config
        static = static_memory(
            self._stage_elements(stage), layout.optimizer_shards, config.main_grads_dtype
        )
        capability = self.job.gpu.compute_capability
        buffers = stage_buffers(self.shape, self._vpp, stage == self._pp - 1, capability)
        return static, buffers, sum(term.num_bytes for term in buffers)

    def _stage_memory(self, stage: int, detail: StageDetail) -> StageMemory:
        overhead = detail.reserved.total - detail.reserved.allocated
        return StageMemory(
            stage=stage,
            peak_allocated_bytes=detail.reserved.allocated,
            peak_reserved_bytes=detail.reserved.total,
            memory_bytes=MemoryBreakdown(
                weights=detail.static.weights,
                gradients=detail.static.gradients,
                optimizer=detail.static.optimizer,
                activations=detail.activations.kept,
                transient=detail.activations.transient,
                overhead=detail.resident + overhead,
            ),
            in_flight_microbatches=sum(detail.activations.in_flight) / self._vpp,
            peak_phase=detail.activations.phase,
        )

    def _replayed_flops(self, plan: RecomputePlan) -> int:
        """FLOPs of all replays of one step on all ranks."""
        one_rank = _replayed_flops(self.shape, plan)
        return one_rank * self._vpp * self._microbatches * self.job.num_gpus

    def _time(self, plan: RecomputePlan) -> TimeBreakdown:
        """The slowest stage sets the pace; the others fill and drain the pipeline around it."""
        stages = self._stages_times(plan)
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
        )

    def slowest_stage(self, setting: RecomputeSetting) -> int:
        """The stage that sets the pace."""
        stages = self._stages_times(self.plan(setting))
        return max(range(self._pp), key=lambda stage: stages[stage].total)

    def _stages_times(self, plan: RecomputePlan) -> list[PassTimes]:
        """One microbatch through all chunks of every stage, transfers included."""
        chunk = chunk_times(self.shape, self._machine, self._network, plan, False, False)
        middle = chunk.times(self._vpp) + self._transfer
        stages = [middle] * self._pp
        stages[0] += self._first_end
        stages[-1] += self._last_end
        return stages

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

    def _data_parallel_work(self, stage: int) -> DataParallelWork:
        layout = self.job.layout
        ranks = layout.data_parallel_size * layout.context_parallel_size
        return DataParallelWork(
            elements=self._stage_elements(stage),
            gradient_itemsize=self.job.config.main_grads_dtype.itemsize,
            ranks=ranks,
            sharded=layout.use_distributed_optimizer,
            overlap_grad_reduce=layout.overlap_grad_reduce,
            overlap_param_gather=layout.overlap_param_gather,
            joined=data_parallel_link(self.job.gpu, self.calibration, layout),
        )

    def _data_parallel_seconds(self, stage: int, pace: PassTimes) -> float:
        return self._data_parallel[stage].exposed_seconds(pace.forward, pace.backward)

    def _slowest_optimizer_seconds(self) -> float:
        elements = max(self._stage_elements(stage) for stage in range(self._pp))
        itemsize = self.job.config.main_grads_dtype.itemsize
        shards = self.job.layout.optimizer_shards
        seconds = optimizer_seconds(elements, shards, itemsize, self._machine)
        return seconds + self.calibration.step_seconds


@lru_cache(maxsize=8192)
def _replayed_flops(shape: RankShape, plan: RecomputePlan) -> int:
    """Replayed FLOPs of one microbatch of one chunk on one rank."""
    return replayed_flops(transformer_layer(shape), plan)


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
        tp_comm_overlap=layout.tp_comm_overlap,
    )


def _resolve_attention(model: ModelSpec, compute_capability: float) -> ModelSpec:
    """What `auto` means: cuDNN's fused attention from Hopper on, flash-attn before (TE
    attention/dot_product_attention/utils.py); the local spec has only the unfused one."""
    if model.attention_backend is not AttentionBackend.AUTO:
        return model
    if model.transformer_impl is TransformerImpl.LOCAL:
        return replace(model, attention_backend=AttentionBackend.UNFUSED)
    fused = compute_capability >= 9.0
    backend = AttentionBackend.FUSED if fused else AttentionBackend.FLASH
    return replace(model, attention_backend=backend)


def _network(job: Job, calibration: Calibration) -> Network:
    layout = job.layout
    return Network(
        tensor=link(job.gpu, calibration, group_span(layout, Group.TENSOR)),
        context=link(job.gpu, calibration, group_span(layout, Group.CONTEXT)),
        tensor_ranks=layout.tensor_model_parallel_size,
        context_ranks=layout.context_parallel_size,
    )


def evaluate(job: Job, setting: RecomputeSetting, calibration: Calibration) -> Evaluation:
    """`setting` on `job`; use an Evaluator for several settings of one job."""
    return Evaluator(job, calibration).evaluate(setting)
