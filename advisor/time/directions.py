"""What of a chunk's time its forward takes; the backward takes the rest.

advisor.time.passes adds up both passes of a layer. A picture of a step needs them one by one.
"""

from functools import lru_cache

from msgspec.structs import replace

from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import (
    LAYER_INPUT,
    embedding_operators,
    head_operators,
    transformer_layer,
)
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import (
    LayerReplay,
    RecomputePlan,
    Segment,
    offloaded_bytes,
    tallied,
)
from advisor.time.launches import EXCHANGES, idle_seconds
from advisor.time.machine import Machine
from advisor.time.passes import (
    PassTimes,
    layer_passes,
    layer_times,
    layer_work,
    waiting_seconds,
)
from advisor.time.rank_links import Network
from advisor.time.roofline import forward_seconds


@lru_cache(maxsize=4096)
def chunk_forward(
    shape: RankShape, machine: Machine, network: Network, plan: RecomputePlan
) -> PassTimes:
    """Of passes.chunk_times, what the forward takes: its kernels, the communication and the copies
    to the host that they do not hide, and the waiting for the processor."""
    total = PassTimes()
    for segment in tallied(plan):
        inside = PassTimes()
        for kind, count in segment.kinds():
            layer = layer_times(shape, machine, network, kind)
            there = _layer_forward(shape, machine, network, kind, layer)
            away = _copied(shape, machine, kind, segment, layer)
            waits = _waiting(shape, machine, network, kind, segment.replay)
            inside += replace(there, offload=away, host=waits).times(count)
        sent = _input_copied(shape, machine, segment, inside.forward / segment.copies)
        total += inside + PassTimes(offload=segment.copies * sent)
    return total


@lru_cache(maxsize=4096)
def ends_forward(
    shape: RankShape, machine: Machine, network: Network, first: bool, last: bool
) -> PassTimes:
    """Of passes.end_times, what the forward takes."""
    operators: tuple[Operator, ...] = embedding_operators(shape) if first else ()
    operators += head_operators(shape) if last else ()
    found = [forward_seconds(operator, machine, network) for operator in operators]
    return PassTimes(
        forward=sum(one.compute for one in found), exposed=sum(one.exposed for one in found)
    )


def _layer_forward(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, layer: PassTimes
) -> PassTimes:
    """Kernels and communication; of the tokens' exchange, what both passes expose of it in equal
    proportion."""
    passes = layer_passes(shape, machine, network, kind)
    exposed = exchange = both = 0.0
    for operator in transformer_layer(shape, kind):
        there, back = passes[operator.name]
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
    both = waiting_seconds(shape, machine, network, kind, replay)
    if not both or machine.host is None:
        return 0.0
    work = layer_work(shape, machine, network, kind, machine.host)
    there, back = (idle_seconds(one, machine.host) for one in (work.there, work.back))
    if there + back:
        return both * there / (there + back)
    return both / 2


def _copied(
    shape: RankShape, machine: Machine, kind: LayerKind, segment: Segment, layer: PassTimes
) -> float:
    """Seconds of copies to the host that the layer's forward does not hide."""
    if not segment.moves_to_host:
        return 0.0
    operators = transformer_layer(shape, kind)
    num_bytes = offloaded_bytes(operators, segment.runs, segment.offloaded)
    return max(0.0, num_bytes / machine.host_bytes_per_second - layer.forward)


def _input_copied(shape: RankShape, machine: Machine, segment: Segment, hidden: float) -> float:
    """Seconds of copying a checkpoint's input to the host, which `hidden` seconds of kernels hide
    where a stream of its own does it."""
    if not segment.input.offloaded:
        return 0.0
    cut = shape.tp if segment.shards_input else 1
    copy = -(-shape.hidden(LAYER_INPUT).num_bytes // cut) / machine.host_bytes_per_second
    return max(0.0, copy - hidden) if segment.input.overlapped else copy
