"""Seconds of one microbatch through each pipeline stage, and what of the experts' exchange other
microbatches leave to see.

advisor.time.passes adds up both passes of a layer. A picture of a step needs them one by one: here
is what of a chunk's time its forward takes.
"""

from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.pipeline_split import ModelChunk, Pipeline, Stages
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import LayerReplay, RecomputePlan, tallied
from advisor.plan.schedule import num_warmup_passes
from advisor.time import passes
from advisor.time.communication import pipeline_transfer_seconds
from advisor.time.launches import EXCHANGES, idle_seconds
from advisor.time.machine import Machine
from advisor.time.passes import PassTimes, chunk_times, end_operators, end_times
from advisor.time.rank_links import Network, neighbour_link
from advisor.time.roofline import forward_seconds


class ExchangeOverlap(Struct, frozen=True):
    """What hides the experts' exchange of a job: `most` is the part that the kernels of another
    microbatch do, where there is one."""

    most: float
    pp: int
    vpp: int
    microbatches: int

    def shown_seconds(self, stage: int, pace: PassTimes) -> float:
        """Seconds of the exchange in a step that nothing hides, of a stage that takes `pace` for a
        microbatch: all of it, unless as long kernels of another microbatch run at the time."""
        if not (pace.exchange and self.most):
            return self.microbatches * pace.exchange
        hidden = self.hidden_share(stage) * min(1.0, pace.kernels / pace.exchange)
        return self.microbatches * pace.exchange * (1 - hidden)

    def hidden_share(self, stage: int) -> float:
        """Of the exchange, what kernels of another microbatch can hide: what fills the pipeline has
        no other microbatch."""
        every = self.microbatches * self.vpp
        alone = 1 + num_warmup_passes(self.pp, self.vpp, self.microbatches, stage)
        return self.most * max(0, every - alone) / every


class Rates(NamedTuple):
    """How fast a rank computes, copies to its host, and communicates."""

    machine: Machine
    network: Network


Directions = tuple[PassTimes, PassTimes]
"""One microbatch through a chunk: forward, and backward with its replay."""


class StageTimes:
    """One microbatch through the stages of a job, under plans of each group of layers of its
    `pipeline`."""

    def __init__(
        self,
        job: Job,
        shape: RankShape,
        stages: Stages,
        pipeline: Pipeline,
        calibration: Calibration,
        rates: Rates,
    ) -> None:
        self._shape, self._stages, self._pipeline, self._rates = shape, stages, pipeline, rates
        self._transfer = _pipeline_transfer(job, shape, calibration, rates.network)
        self._sent = self._transfer.times(0.5 / job.layout.virtual_pipeline_model_parallel_size)
        self._ends = pipeline.of_each_stage(self._end_times)

    def of_each_stage(self, plans: list[RecomputePlan]) -> list[PassTimes]:
        """Seconds of one microbatch through all chunks of every stage, with what it sends to the
        next; chunks of a stage run one after another."""
        times = [chunk_times(self._shape, *self._rates, plan) for plan in plans]

        def stage_times(stage: int) -> PassTimes:
            total = self._ends[stage]
            for group, count in self._pipeline.stages[stage].groups:
                total += times[group].times(count)
            return total

        return self._pipeline.of_each_stage(stage_times)

    def directions(self, plans: list[RecomputePlan], shown: float) -> list[list[Directions]]:
        """Of every stage, one microbatch through each of its chunks, with what it sends to the
        next; of the experts' exchange the part `shown`, which no other pass hides. Where nothing
        hides any of it, the chunks of a stage sum to `of_each_stage`."""
        layers = dict(zip(self._pipeline.groups, plans, strict=True))

        def of_stage(stage: int) -> list[Directions]:
            chunks = self._stages[stage]
            return [self._directions(chunk, layers[chunk.layers], shown) for chunk in chunks]

        return self._pipeline.of_each_stage(of_stage)

    def _directions(self, chunk: ModelChunk, plan: RecomputePlan, shown: float) -> Directions:
        ends = chunk.embedding, chunk.head
        there = chunk_forward(self._shape, *self._rates, plan)
        there += ends_forward(self._shape, *self._rates, *ends) + self._sent
        both = chunk_times(self._shape, *self._rates, plan)
        both += end_times(self._shape, *self._rates, *ends)
        back = both + self._sent.times(2) + there.times(-1)
        there, back = (replace(one, exchange=one.exchange * shown) for one in (there, back))
        return there, back

    def _end_times(self, stage: int) -> PassTimes:
        """One microbatch through the ends of the model that a stage holds, and its transfers."""
        first = any(chunk.embedding for chunk in self._stages[stage])
        last = any(chunk.head for chunk in self._stages[stage])
        return self._transfer + end_times(self._shape, *self._rates, first, last)


def _pipeline_transfer(
    job: Job, shape: RankShape, calibration: Calibration, network: Network
) -> PassTimes:
    """What a stage sends to the next and gets from it, of one microbatch."""
    layout = job.layout
    if layout.pipeline_model_parallel_size == 1:
        return PassTimes()
    vpp = layout.virtual_pipeline_model_parallel_size
    joined = neighbour_link(job.gpu, calibration, job.num_gpus)
    hidden, gathered = shape.hidden(LAYER_INPUT).num_bytes, 0.0
    if layout.scatters_stage_outputs:
        kind = CollectiveKind.ALL_GATHER
        gathered = network.seconds(Collective(kind, Group.TENSOR, hidden))
        hidden = -(-hidden // shape.tp)
    sent = pipeline_transfer_seconds(hidden, vpp, joined, calibration.hidden_fraction)
    return PassTimes(exposed=sent + 2 * vpp * gathered)


@lru_cache(maxsize=4096)
def chunk_forward(
    shape: RankShape, machine: Machine, network: Network, plan: RecomputePlan
) -> PassTimes:
    """Of passes.chunk_times, what the forward takes: its kernels, the communication and the copies
    to the host that they do not hide, and the waiting for the processor."""
    total, beside = PassTimes(), plan.layers_to_a_copy
    for segment in tallied(plan):
        inside = PassTimes()
        for kind, count in segment.kinds():
            layer = passes.layer_times(shape, machine, network, kind)
            there = _layer_forward(shape, machine, network, kind, layer)
            away = passes.moved_bytes(shape, kind, segment) / machine.host_bytes_per_second
            waits = _waiting(shape, machine, network, kind, segment.replay)
            late = max(0.0, away - beside * layer.forward)
            inside += replace(there, offload=late, host=waits).times(count)
        hidden = inside.forward / segment.copies if segment.input.overlapped else 0.0
        copy = passes.input_bytes(shape, segment) / machine.host_bytes_per_second
        total += inside + PassTimes(offload=segment.copies * max(0.0, copy - hidden))
    return total


@lru_cache(maxsize=4096)
def ends_forward(
    shape: RankShape, machine: Machine, network: Network, first: bool, last: bool
) -> PassTimes:
    """Of passes.end_times, what the forward takes."""
    ends = end_operators(shape, first, last)
    found = [forward_seconds(operator, machine, network) for operator in ends]
    exposed = sum(one.exposed for one in found)
    return PassTimes(forward=sum(one.compute for one in found), exposed=exposed)


def _layer_forward(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, layer: PassTimes
) -> PassTimes:
    """Kernels and communication; of the tokens' exchange, what both passes expose of it in equal
    proportion."""
    found = passes.layer_passes(shape, machine, network, kind)
    exposed = exchange = both = 0.0
    for operator in transformer_layer(shape, kind):
        there, back = found[operator.name]
        if operator.module in EXCHANGES:
            exchange += there.exposed
            both += there.exposed + back.exposed
        else:
            exposed += there.exposed
    shown = exchange * layer.exchange / both if both else 0.0
    return PassTimes(forward=layer.forward, exposed=exposed, exchange=shown)


def _waiting(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, replay: LayerReplay
) -> float:
    """Of passes.waiting_seconds, what falls into the forward: as much of it as the forward waits
    more than the backward where each stands alone."""
    both = passes.waiting_seconds(shape, machine, network, kind, replay)
    if not both or machine.host is None:
        return 0.0
    work = passes.layer_work(shape, machine, network, kind, machine.host)
    there, back = (idle_seconds(one, machine.host) for one in (work.there, work.back))
    return both * there / (there + back) if there + back else both / 2
