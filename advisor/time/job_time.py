"""Time of one training step of a job: its slowest stage, the pipeline around it, the optimizer."""

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.base.dtypes import DType
from advisor.base.sharing import first_equal
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import HostProcessor
from advisor.job.job import CudaGraphImpl, Job, Optimizer
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import ModelChunk, Pipeline, Stages
from advisor.layers.operators import Collective, CollectiveKind, Group, Module
from advisor.layers.parameters import parameter_count
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory.muon_shares import muon_shares
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import RecomputePlan
from advisor.plan.schedule import num_warmup_passes
from advisor.time.communication import pipeline_transfer_seconds, waiting_share
from advisor.time.launches import Host
from advisor.time.machine import machine
from advisor.time.passes import PassTimes, chunk_times, end_times, layer_cast_seconds
from advisor.time.rank_links import Network, neighbour_link, network
from advisor.time.step_tail import (
    DataParallelWork,
    ParameterGroup,
    ShardedWork,
    host_accumulation_seconds,
    host_optimizer_seconds,
    muon_seconds,
    optimizer_seconds,
    parameter_groups,
)

_LEAST_BUCKET, _BUCKET_OF_A_RANK = 40_000_000, 1_000_000
_SHARDED_GRADIENTS = frozenset({DataParallelSharding.GRADIENTS, DataParallelSharding.FULL})

_READ_READ_WRITTEN = 3
"""Of an addition in place: both tensors are read, one is written."""
_NCCL_SMS = 32
"""Multiprocessors of NCCL's all-to-all: its most channels for point-to-point messages."""


def _host(
    job: Job, calibration: Calibration, graphed: frozenset[Module], beside: float, passes: int
) -> Host:
    """The processor next to the job's GPU; the first of all `passes` has no other microbatch."""
    grace = job.gpu.host_processor is HostProcessor.GRACE
    slower = calibration.grace_slowdown if grace else 1.0
    wrapped = job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    call = calibration.host_wrapped_call_seconds if wrapped else calibration.host_call_seconds
    return Host(
        call_seconds=slower * call,
        module_seconds=slower * calibration.host_module_seconds,
        quantize_seconds=slower * calibration.host_quantize_seconds,
        answer_seconds=slower * calibration.host_answer_seconds,
        graphed=graphed,
        whole=job.config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION,
        beside=beside * (passes - 1) / passes,
        compiled=job.config.torch_compile and job.model.transformer_impl.is_eager,
    )


def hidden_beside(job: Job, calibration: Calibration, rates: Network) -> float:
    """Part of the experts' exchange that kernels of another microbatch hide, on the multiprocessors
    that it leaves them; 0 where none runs beside it.

    Source: megatron-core 0.16.1 pipeline_parallel/combined_1f1b.py.
    """
    if not job.layout.overlap_moe_expert_parallel_comm:
        return 0.0
    taken = (rates.dispatcher.sms if rates.dispatcher else _NCCL_SMS) / job.gpu.sm_count
    return calibration.exchange_hidden_fraction * (1 - taken)


class StagePart(Struct, frozen=True):
    """Seconds of one stage, of which those of a step are made (see JobTime.combined).

    microbatch: of one, through all its chunks. work: of all, with what nothing hides of the
    experts' exchange. reduced: gradients that its passes do not hide. optimizer: of its step.
    """

    microbatch: float
    work: float
    reduced: float
    optimizer: float


class SlowestStage(Struct, frozen=True, kw_only=True):
    """The stage that sets the pace of a step. pace: of one microbatch through all its chunks; work:
    of all of them; exchange_seconds: of the experts' exchange in a step, what nothing hides;
    bubble: seconds in which the others fill and drain the pipeline around it."""

    number: int
    pace: PassTimes
    work: PassTimes
    exchange_seconds: float
    bubble: float


class StepTail(Struct, frozen=True, kw_only=True):
    """Seconds of a step behind its pipeline: waiting for the slowest GPU, reducing the gradients
    that no pass hides, adding them up on the host, and the optimizer's step."""

    waiting: float
    reduced: float
    accumulated: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum of all."""
        return self.waiting + self.reduced + self.accumulated + self.optimizer


Directions = tuple[PassTimes, PassTimes]
"""One microbatch through a chunk: forward, and backward with its replay."""


class JobTime:
    """Seconds of a step under any recompute; what does not depend on it is computed once.

    Plans are those of each group of layers of `pipeline`; `graphed` submodules are in CUDA graphs;
    `reductions` of the microbatches reduce gradients of sharded parameters.
    machine, network: rates, for reports.
    """

    def __init__(
        self,
        job: Job,
        shape: RankShape,
        stages: Stages,
        pipeline: Pipeline,
        calibration: Calibration,
        graphed: frozenset[Module],
        reductions: int,
    ) -> None:
        self._job, self._shape, self._pipeline = job, shape, pipeline
        self._stages, self._calibration = stages, calibration
        layout = job.layout
        self._pp = layout.pipeline_model_parallel_size
        self._vpp = layout.virtual_pipeline_model_parallel_size
        self._microbatches, self._reductions = job.num_microbatches, reductions
        eager, compiled = job.model.transformer_impl.is_eager, job.config.torch_compile
        precision = job.config.precision
        self.network = first_equal(network(layout, job.gpu, calibration, job.model))
        self._beside = hidden_beside(job, calibration, self.network)
        passes = self._microbatches * self._vpp
        host = _host(job, calibration, graphed, self._beside, passes)
        self.machine = machine(
            job.gpu, calibration, precision, eager=eager, compiled=compiled, host=host
        )
        each = pipeline.of_each_stage
        self._parameters = each(
            lambda stage: parameter_groups(shape, stages[stage], layout, job.gpu, calibration)
        )
        self._data_parallel = each(self._data_parallel_work)
        self._ends = each(lambda stage: self._end_times(stages[stage]))
        self._optimizers = self._each_optimizer_seconds()
        self.optimizer_seconds = max(self._optimizers) + calibration.step_seconds
        self._waiting = waiting_share(job.num_gpus, calibration.speed_spread)

    def step(self, plans: list[RecomputePlan]) -> TimeBreakdown:
        """Seconds of a step: the slowest stage sets the pace, the others fill and drain the
        pipeline around it.

        Source: arXiv 2104.04473 (Narayanan et al. 2021), section 2: a bubble of (p - 1) / v stages
        of one microbatch, here of stages of unequal length. Every rank waits for the slowest one
        when gradients are reduced. Left out: the data loader, checkpoints, evaluation, and logging.
        """
        slowest = self.slowest(plans)
        work, tail = slowest.work, self._tail(slowest)
        exposed = work.exposed + slowest.exchange_seconds
        return TimeBreakdown(
            forward=work.forward,
            backward=work.backward,
            recompute=work.recompute,
            exposed_communication=exposed + tail.waiting + tail.reduced,
            pipeline_bubble=slowest.bubble,
            optimizer=tail.optimizer,
            offload=work.offload + tail.accumulated,
            host=work.host,
        )

    def slowest(self, plans: list[RecomputePlan]) -> SlowestStage:
        """The stage that sets the pace, the first of equals."""
        stages = self.stages(plans)
        totals = [stage.total for stage in stages]
        number = totals.index(max(totals))
        return SlowestStage(
            number=number,
            pace=stages[number],
            work=stages[number].times(self._microbatches),
            exchange_seconds=self._exchange_seconds(number, stages[number]),
            bubble=(sum(totals) - totals[number]) / self._vpp,
        )

    def tail(self, plans: list[RecomputePlan]) -> StepTail:
        """What of `step` comes behind the pipeline."""
        return self._tail(self.slowest(plans))

    def _tail(self, slowest: SlowestStage) -> StepTail:
        work, stage, pace = slowest.work, slowest.number, slowest.pace
        passes = work.total - work.exchange + slowest.exchange_seconds + slowest.bubble
        return StepTail(
            waiting=passes * self._waiting,
            reduced=self._data_parallel_seconds(stage, pace),
            accumulated=self._accumulation_seconds(stage, pace),
            optimizer=self.optimizer_seconds,
        )

    def directions(self, plans: list[RecomputePlan]) -> list[list[Directions]]:
        """Of every stage, one microbatch through each of its chunks, with what it sends to the
        next; of the experts' exchange what the slowest stage does not hide. Where nothing hides any
        of it, the chunks of a stage sum to `stages`."""
        slowest = self.slowest(plans)
        whole = slowest.work.exchange
        shown = slowest.exchange_seconds / whole if whole else 1.0
        layers = dict(zip(self._pipeline.groups, plans, strict=True))

        def of_stage(stage: int) -> list[Directions]:
            chunks = self._stages[stage]
            return [self._directions(chunk, layers[chunk.layers], shown) for chunk in chunks]

        return self._pipeline.of_each_stage(of_stage)

    def _directions(self, chunk: ModelChunk, plan: RecomputePlan, shown: float) -> Directions:
        """`shown`: the part of the experts' exchange that is no other pass's time."""
        from advisor.time.directions import chunk_forward, ends_forward

        rates = self.machine, self.network
        ends = chunk.embedding, chunk.head
        sent = self._pipeline_transfer().times(0.5 / self._vpp)
        there = chunk_forward(self._shape, *rates, plan)
        there += ends_forward(self._shape, *rates, *ends) + sent
        both = chunk_times(self._shape, *rates, plan) + end_times(self._shape, *rates, *ends)
        back = both + sent.times(2) + there.times(-1)
        return (
            replace(there, exchange=there.exchange * shown),
            replace(back, exchange=back.exchange * shown),
        )

    def parts(self, plans: list[RecomputePlan]) -> list[StagePart]:
        """What each stage has of a step: none of it depends on what the others hold or replay."""
        return [
            StagePart(
                pace.total,
                self._microbatches * (pace.total - pace.exchange)
                + self._exchange_seconds(stage, pace),
                self._data_parallel_seconds(stage, pace) + self._accumulation_seconds(stage, pace),
                self._optimizers[stage],
            )
            for stage, pace in enumerate(self.stages(plans))
        ]

    def combined(self, slowest: StagePart, microbatch: float, optimizer: float) -> float:
        """Seconds of a step, as `step` has them, whose `slowest` stage is given, and of all stages
        the sum of their seconds of a microbatch and the longest optimizer step."""
        bubble = (microbatch - slowest.microbatch) / self._vpp
        passes = (slowest.work + bubble) * (1.0 + self._waiting)
        return passes + slowest.reduced + optimizer + self._calibration.step_seconds

    def most_microbatch_seconds(self, seconds: float) -> float:
        """Of a step of at most `seconds`, what no stage takes longer for one microbatch."""
        return seconds / (self._microbatches * (1.0 - self._beside))

    def at_least(self, none: list[RecomputePlan], *, host: bool = True) -> float:
        """Seconds that no setting of the job undercuts, from the plans of `none`: replays and
        transfers only add to what a stage does, more than the exchange that replays hide, and
        the gradients' reduction is hidden behind passes that they leave as they are; but which
        stage is the slowest may change. host: False counts no waiting for the processor."""
        stages = self.stages(none)
        if not host:
            stages = [replace(stage, host=0.0) for stage in stages]
        totals = [stage.total for stage in stages]
        slowest = max(totals)
        bubble = (sum(totals) - slowest) / self._vpp
        each = self._pipeline.of_each_stage
        reduced = min(each(lambda stage: self._data_parallel_seconds(stage, stages[stage])))
        hidden = max(pace.exchange * self._hidden_share(k) for k, pace in enumerate(stages))
        passes = self._microbatches * (slowest - hidden)
        work = (passes + bubble) * (1.0 + self._waiting)
        return work + reduced + self.optimizer_seconds

    def most_replay(self, none: list[RecomputePlan], stage: int, seconds: float) -> float:
        """Seconds that replays of one microbatch may take on a stage, at most, in a step of so many
        seconds; from the plans of `none`. What the gradients' reduction takes is left out."""
        stages = self.stages(none)
        totals = [one.total - one.host for one in stages]
        passes = (seconds - self.optimizer_seconds) / (1.0 + self._waiting)
        bubble = (sum(totals) - totals[stage]) / self._vpp
        hidden = stages[stage].exchange * self._hidden_share(stage)
        return (passes - bubble) / self._microbatches - totals[stage] + hidden

    def stages(self, plans: list[RecomputePlan]) -> list[PassTimes]:
        """Seconds of one microbatch through all chunks of every stage, with what it sends to the
        next; chunks of a stage run one after another."""
        passes = [chunk_times(self._shape, self.machine, self.network, plan) for plan in plans]

        def stage_times(stage: int) -> PassTimes:
            total = self._ends[stage]
            for group, count in self._pipeline.stages[stage].groups:
                total += passes[group].times(count)
            return total

        return self._pipeline.of_each_stage(stage_times)

    def _exchange_seconds(self, stage: int, pace: PassTimes) -> float:
        """Seconds of the experts' exchange in a step that nothing hides: all of it, unless as long
        kernels of another microbatch run beside it."""
        if not (pace.exchange and self._beside):
            return self._microbatches * pace.exchange
        hidden = self._hidden_share(stage) * min(1.0, pace.kernels / pace.exchange)
        return self._microbatches * pace.exchange * (1 - hidden)

    def _hidden_share(self, stage: int) -> float:
        """Of the experts' exchange, what kernels of another microbatch can hide: what fills the
        pipeline has no other microbatch."""
        passes = self._microbatches * self._vpp
        alone = 1 + num_warmup_passes(self._pp, self._vpp, self._microbatches, stage)
        return self._beside * max(0, passes - alone) / passes

    def _accumulation_seconds(self, stage: int, pace: PassTimes) -> float:
        """Gradients summed on the host, where DeepSpeed's optimizer is: beside the backward in
        stage 3, on the stream of the kernels in the others."""
        sharding = self._job.layout.data_parallel_sharding
        if sharding is None or not self._job.config.optimizer_cpu_offload:
            return 0.0
        shard = sum(part.elements / part.ranks for part in self._parameters[stage])
        copies = host_accumulation_seconds(shard, self._microbatches, self.machine)
        if sharding is DataParallelSharding.FULL:
            return max(0.0, copies - self._microbatches * pace.backward)
        return copies

    def _end_times(self, chunks: tuple[ModelChunk, ...]) -> PassTimes:
        """One microbatch through the ends of the model that a stage holds, and its transfers."""
        rates = self.machine, self.network
        first = any(chunk.embedding for chunk in chunks)
        last = any(chunk.head for chunk in chunks)
        return self._pipeline_transfer() + end_times(self._shape, *rates, first, last)

    def _pipeline_transfer(self) -> PassTimes:
        if self._pp == 1:
            return PassTimes()
        joined = neighbour_link(self._job.gpu, self._calibration, self._job.num_gpus)
        hidden = self._shape.hidden(LAYER_INPUT).num_bytes
        gathered = 0.0
        if self._job.layout.scatters_stage_outputs:
            kind = CollectiveKind.ALL_GATHER
            gathered = self.network.seconds(Collective(kind, Group.TENSOR, hidden))
            hidden = -(-hidden // self._shape.tp)
        fraction = self._calibration.hidden_fraction
        sent = pipeline_transfer_seconds(hidden, self._vpp, joined, fraction)
        return PassTimes(exposed=sent + 2 * self._vpp * gathered)

    def _data_parallel_work(self, stage: int) -> tuple[DataParallelWork, ...] | ShardedWork:
        layout, parts = self._job.layout, self._parameters[stage]
        itemsize = self._job.config.main_grads_dtype.itemsize
        sharding = layout.data_parallel_sharding
        if sharding in _SHARDED_GRADIENTS:
            shard = sum(part.elements / part.ranks for part in parts) * DType.BF16.itemsize
            whole = sum(part.elements for part in parts) * DType.BF16.itemsize
            away = shard / self.machine.host_bytes_per_second
            return ShardedWork(
                groups=tuple((part.elements, part.ranks, part.joined) for part in parts),
                gradient_itemsize=itemsize,
                microbatches=self._microbatches,
                reductions=self._reductions,
                gathers_again=sharding is DataParallelSharding.FULL,
                hidden_fraction=self._calibration.hidden_fraction,
                collectives=sum(len(chunk.layers) for chunk in self._stages[stage]),
                from_host=away if self._job.config.param_cpu_offload else 0.0,
                added=_READ_READ_WRITTEN * whole / self.machine.memory_bytes_per_second,
            )
        sharded = layout.use_distributed_optimizer
        dealt = self._job.config.optimizer is Optimizer.DIST_MUON
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
                gathers_after=dealt,
                buckets=self._buckets(part),
            )
            for part in parts
        )

    def _buckets(self, part: ParameterGroup) -> int:
        """Collectives of one pass over a gradient buffer: with overlap one a bucket, in the size
        that Megatron gives it by default (megatron-core 0.16.1 distributed_data_parallel.py)."""
        if not self._job.layout.overlap_grad_reduce:
            return 1
        return -(-part.elements // max(_LEAST_BUCKET, _BUCKET_OF_A_RANK * part.ranks))

    def _data_parallel_seconds(self, stage: int, pace: PassTimes) -> float:
        work, passes = self._data_parallel[stage], pace.forward + pace.backward
        late = 1 + (pace.host + pace.exposed) / passes  # it goes on while no kernel runs
        forward, backward = pace.forward * late, pace.backward * late
        if isinstance(work, ShardedWork):
            return work.exposed_seconds(forward, backward)
        first, *others = work
        return first.exposed_seconds(forward, backward, tuple(others))

    def _each_optimizer_seconds(self) -> list[float]:
        """Of the stages, with the casts of their weights."""
        muon = self._job.config.optimizer.is_muon
        of_stage = self._stage_muon_seconds if muon else self._stage_optimizer_seconds
        each = self._pipeline.of_each_stage
        return each(lambda stage: of_stage(stage) + self._cast_seconds(stage))

    @property
    def least_optimizer_seconds(self) -> float:
        """Seconds of the step where the states of all parameters are spread evenly over all GPUs:
        no layout spreads them further. 0 for Muon, whose step depends on the matrices' shapes."""
        job = self._job
        if job.config.optimizer.is_muon:
            return 0.0
        config = job.config
        itemsize, away = config.main_grads_dtype.itemsize, config.offloaded_fraction
        shard = parameter_count(job.model).total // job.num_gpus
        return optimizer_seconds(
            shard, 1, itemsize, self.machine, on_host=away
        ) + host_optimizer_seconds(
            away * shard,
            itemsize,
            self.machine,
            overlapped=config.overlap_cpu_optimizer_d2h_h2d,
        )

    def _cast_seconds(self, stage: int) -> float:
        """Weights brought into 8 or 4 bits, in a step's first microbatch (megatron-core 0.16.1
        extensions/transformer_engine.py, is_first_microbatch), where they are not kept so."""
        if self.machine.quantized is None or self._job.config.fp8_param_gather:
            return 0.0
        return sum(
            layer_cast_seconds(self._shape, self.machine, kind)
            for chunk in self._stages[stage]
            for kind in chunk.layers
        )

    def _stage_optimizer_seconds(self, stage: int) -> float:
        config = self._job.config
        itemsize, away, seconds = config.main_grads_dtype.itemsize, config.offloaded_fraction, 0.0
        for part in self._parameters[stage]:
            elements, shards = part.elements, part.shards
            if self._job.layout.data_parallel_sharding in _SHARDED_GRADIENTS:
                elements, shards = -(-elements // shards), 1  # no gradient but the shard's
            seconds += optimizer_seconds(elements, shards, itemsize, self.machine, on_host=away)
            seconds += host_optimizer_seconds(
                away * elements / shards,
                itemsize,
                self.machine,
                overlapped=config.overlap_cpu_optimizer_d2h_h2d,
            )
        return seconds

    def _stage_muon_seconds(self, stage: int) -> float:
        """Of the rank that works longest."""
        job, chunks = self._job, self._stages[stage]
        dealt = job.config.optimizer is Optimizer.DIST_MUON
        elements = sum(part.elements for part in self._parameters[stage])
        itemsize = job.config.main_grads_dtype.itemsize
        return max(
            muon_seconds(share, elements, itemsize, self.machine)
            for share in set(muon_shares(self._shape, chunks, job.layout, dealt=dealt))
        )
