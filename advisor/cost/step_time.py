"""Time of one optimizer step: layers, pipeline, data parallelism, optimizer."""

from dataclasses import dataclass
from functools import lru_cache

from advisor.cost.machine import Link, Machine
from advisor.cost.roofline import (
    Network,
    Seconds,
    backward_seconds,
    collective_seconds,
    forward_seconds,
)
from advisor.layers.ends import embedding_operators, head_operators
from advisor.layers.operators import CollectiveKind, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.recompute import RecomputePlan, ReplayRun

_OPTIMIZER_BYTES_PER_ELEMENT = 4 + 8 + 16 + 12 + 6
"""fp32 shard: norm reads the gradient; clipping reads and writes it; Adam reads gradient, main
parameter and two moments and writes three; a copy brings the parameter to 16 bit."""
_GRADIENT_PASSES = 3  # zeroing the buffer; scaling it before the reduction reads and writes it


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one microbatch through some operators: kernels forward, backward and replayed
    (replayed communication included), and communication that nothing hides."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    exposed: float = 0.0

    def __add__(self, other: "PassTimes") -> "PassTimes":
        return PassTimes(
            self.forward + other.forward,
            self.backward + other.backward,
            self.recompute + other.recompute,
            self.exposed + other.exposed,
        )

    def times(self, factor: float) -> "PassTimes":
        """The same work `factor` times."""
        return PassTimes(
            self.forward * factor,
            self.backward * factor,
            self.recompute * factor,
            self.exposed * factor,
        )

    @property
    def total(self) -> float:
        """Sum of the four."""
        return self.forward + self.backward + self.recompute + self.exposed


def _operators_times(
    operators: tuple[Operator, ...], machine: Machine, network: Network
) -> PassTimes:
    forward = backward = Seconds(0.0, 0.0)
    for operator in operators:
        forward += forward_seconds(operator, machine, network)
        backward += backward_seconds(operator, machine, network)
    return PassTimes(forward.compute, backward.compute, 0.0, forward.exposed + backward.exposed)


@lru_cache(maxsize=8192)
def layer_times(shape: RankShape, machine: Machine, network: Network) -> PassTimes:
    """One transformer layer, nothing replayed."""
    return _operators_times(transformer_layer(shape), machine, network)


@lru_cache(maxsize=8192)
def end_times(
    shape: RankShape, machine: Machine, network: Network, first: bool, last: bool
) -> PassTimes:
    """Embedding and head, where a chunk holds them."""
    times = PassTimes()
    if first:
        times += _operators_times(embedding_operators(shape), machine, network)
    if last:
        times += _operators_times(head_operators(shape), machine, network)
    return times


@lru_cache(maxsize=8192)
def replay_seconds(
    shape: RankShape, machine: Machine, network: Network, runs: tuple[ReplayRun, ...], whole: bool
) -> float:
    """Seconds that the backward of one layer spends on running forwards again."""
    modules = frozenset().union(*(run.modules for run in runs))
    replayed = (o for o in transformer_layer(shape) if whole or o.module in modules)
    times = [forward_seconds(operator, machine, network) for operator in replayed]
    return sum(time.compute + time.exposed for time in times)


def _gather_seconds(shape: RankShape, network: Network) -> float:
    """All-gather of a checkpoint's input that TP ranks hold in parts
    (distribute_saved_activations)."""
    num_bytes = shape.hidden(LAYER_INPUT).num_bytes
    kind = CollectiveKind.ALL_GATHER
    return collective_seconds(kind, num_bytes, network.tensor_ranks, network.tensor)


@lru_cache(maxsize=16384)
def chunk_times(
    shape: RankShape,
    machine: Machine,
    network: Network,
    plan: RecomputePlan,
    first: bool,
    last: bool,
) -> PassTimes:
    """One microbatch through one model chunk under `plan`."""
    layer = layer_times(shape, machine, network)
    replays = sum(
        segment.total_layers * replay_seconds(shape, machine, network, segment.runs, segment.whole)
        for segment in plan.segments
    )
    gathered = sum(segment.copies for segment in plan.segments if segment.shards_input)
    replays += gathered * _gather_seconds(shape, network)
    ends = end_times(shape, machine, network, first, last)
    return layer.times(plan.num_layers) + ends + PassTimes(recompute=replays)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelWork:
    """Gradient reduction and parameter gathering of one rank, with what may hide them."""

    elements: int
    gradient_itemsize: int
    ranks: int
    sharded: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    joined: Link

    def exposed_seconds(self, forward: float, backward: float) -> float:
        """What is left of both beside one microbatch's `forward` and `backward` on this stage.

        Megatron reduces buckets while the last microbatch goes back, and gathers parameters while
        the first one goes forward.
        """
        gradients = self.elements * self.gradient_itemsize
        kind = CollectiveKind.REDUCE_SCATTER if self.sharded else CollectiveKind.ALL_REDUCE
        reduce = collective_seconds(kind, gradients, self.ranks, self.joined)
        if self.overlap_grad_reduce:
            reduce = max(0.0, reduce - backward)
        if not self.sharded:
            return reduce
        weights = self.elements * 2
        gather = collective_seconds(CollectiveKind.ALL_GATHER, weights, self.ranks, self.joined)
        return reduce + (max(0.0, gather - forward) if self.overlap_param_gather else gather)


def optimizer_seconds(
    elements: int, shards: int, gradient_itemsize: int, machine: Machine
) -> float:
    """Adam over this rank's shard, and two passes over its gradient buffer; bandwidth bound."""
    traffic = -(-elements // shards) * _OPTIMIZER_BYTES_PER_ELEMENT
    traffic += elements * gradient_itemsize * _GRADIENT_PASSES
    return traffic / machine.memory_bytes_per_second


def pipeline_transfer_seconds(
    hidden_bytes: int, vpp: int, joined: Link, hidden_fraction: float
) -> float:
    """Exposed point-to-point time of one microbatch on one stage: through every chunk an activation
    forward and its gradient back. 1F1B waits for them; the interleaved schedule runs them beside
    the kernels, which hides `hidden_fraction` as of any other communication."""
    each = 2 * (hidden_bytes / joined.bytes_per_second + joined.latency_seconds)
    return each if vpp == 1 else vpp * each * (1 - hidden_fraction)
