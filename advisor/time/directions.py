"""What of a chunk's time its forward takes; the backward takes the rest.

advisor.time.passes adds up both passes of a layer. A picture of a step needs them one by one.
"""

from functools import lru_cache

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import LayerReplay, RecomputePlan, tallied
from advisor.time.launches import EXCHANGES, idle_seconds
from advisor.time.machine import Machine
from advisor.time.passes import (
    PassTimes,
    end_operators,
    input_bytes,
    layer_passes,
    layer_times,
    layer_work,
    moved_bytes,
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
    total, beside = PassTimes(), plan.layers_to_a_copy
    for segment in tallied(plan):
        inside = PassTimes()
        for kind, count in segment.kinds():
            layer = layer_times(shape, machine, network, kind)
            there = _layer_forward(shape, machine, network, kind, layer)
            away = moved_bytes(shape, kind, segment) / machine.host_bytes_per_second
            waits = _waiting(shape, machine, network, kind, segment.replay)
            late = max(0.0, away - beside * layer.forward)
            inside += replace(there, offload=late, host=waits).times(count)
        hidden = inside.forward / segment.copies if segment.input.overlapped else 0.0
        copy = input_bytes(shape, segment) / machine.host_bytes_per_second
        total += inside + PassTimes(offload=segment.copies * max(0.0, copy - hidden))
    return total


@lru_cache(maxsize=4096)
def ends_forward(
    shape: RankShape, machine: Machine, network: Network, first: bool, last: bool
) -> PassTimes:
    """Of passes.end_times, what the forward takes."""
    operators = end_operators(shape, first, last)
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
    return both * there / (there + back) if there + back else both / 2
