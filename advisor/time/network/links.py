"""What joins the ranks of one group: NVLink or xGMI within its domain, and the adapters of its
nodes."""

from math import ceil, log2

from msgspec import Struct

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu

_PCIE_NODE = 8  # GPUs of a server without NVLink


class Link(Struct, frozen=True, kw_only=True):
    """What joins the ranks of one group, as reached; bytes per second of one GPU, one direction.

    latency_seconds: fixed cost of one collective. ring_seconds, tree_seconds: what the first byte
    takes once round a ring of the group, and up and down a tree of its ranks. ramp: how the chunks
    that fill the ring add to it, see `collective_seconds`. reducing_bytes_per_second: of an
    all-reduce's tensor where the switches add (NVLink SHARP), 0 where they cannot.
    """

    bytes_per_second: float
    latency_seconds: float
    ring_seconds: float = 0.0
    tree_seconds: float = 0.0
    ramp: float = 0.0
    reducing_bytes_per_second: float = 0.0


def node_size(gpu: Gpu) -> int:
    """GPUs that reach each other without the network: the NVLink domain, or a PCIe server."""
    return gpu.nvlink_domain_size if gpu.is_joined else _PCIE_NODE


def ranks_of_a_node(gpu: Gpu, ranks: int, apart: int) -> int:
    """Ranks of a group within one node, where each is `apart` GPUs from the next."""
    return max(1, min(ranks, node_size(gpu) // apart))


def link(gpu: Gpu, calibration: Calibration, ranks: int, apart: int) -> Link:
    """Link of the collectives of `ranks` ranks, each `apart` GPUs from the next.

    Within a node NCCL's rings run over NVLink. Where each pair has a link of its own, as in xGMI, a
    group uses those between its ranks. A group that spans nodes enters each of them through the
    adapters of all its ranks there, as many rings side by side: NCCL gives every ring an adapter of
    its own (graph/search.cc). It never beats the NVLink that its bytes cross next.
    """
    near = ranks_of_a_node(gpu, ranks, apart)
    nodes = ceil(ranks / near)
    rate = _inside(gpu, calibration, near - 1)
    if nodes > 1:
        outside = gpu.internode_bytes_per_second * calibration.internode_efficiency * near
        rate = min(rate, outside) if near > 1 else outside
    hop, far = calibration.hop_seconds, calibration.internode_hop_seconds
    return Link(
        bytes_per_second=rate,
        latency_seconds=calibration.collective_seconds,
        ring_seconds=(ranks - nodes) * hop + (nodes * far if nodes > 1 else 0.0),
        tree_seconds=2 * ((near - 1) * hop + ceil(log2(nodes)) * far),
        ramp=calibration.ring_ramp,
        reducing_bytes_per_second=_reducing(gpu, calibration, near, nodes),
    )


def neighbour_link(gpu: Gpu, calibration: Calibration, span: int) -> Link:
    """Link of a rank to one other within `span` consecutive GPUs, as in the ring of context
    parallelism and between stages: what leaves a node does so through the rank's own adapter."""
    inside = span <= node_size(gpu)
    outside = gpu.internode_bytes_per_second * calibration.internode_efficiency
    hop = calibration.hop_seconds if inside else calibration.internode_hop_seconds
    return Link(
        bytes_per_second=_inside(gpu, calibration, 1) if inside else outside,
        latency_seconds=calibration.collective_seconds + hop,
    )


def all_to_all_link(gpu: Gpu, calibration: Calibration, ranks: int, apart: int) -> Link:
    """Link of an all-to-all over `ranks` ranks, each `apart` GPUs from the next.

    Of what a rank sends, the part for ranks of its own node stays on NVLink, beside what leaves it
    through its own adapter: the slower of both, as a rate for the bytes of all other ranks. Every
    rank is taken to send as much to each other one, and messages to one after another begin.
    """
    near = ranks_of_a_node(gpu, ranks, apart)
    inside, outside = exchange_rates(gpu, calibration, near - 1)
    seconds = max((ranks - near) / outside, (near - 1) / inside)
    begun = (ranks - 1) * calibration.hop_seconds
    if near < ranks:
        begun += calibration.internode_hop_seconds
    return Link(
        bytes_per_second=(ranks - 1) / seconds if seconds else inside,
        latency_seconds=calibration.collective_seconds + begun,
    )


def exchange_rates(gpu: Gpu, calibration: Calibration, peers: int) -> tuple[float, float]:
    """Rates of one GPU that sends to all others at once, on NVLink to `peers` of its node and
    through its adapter."""
    inside = _inside(gpu, calibration, peers) * calibration.all_to_all_efficiency
    return inside, gpu.internode_bytes_per_second * calibration.internode_efficiency


def _inside(gpu: Gpu, calibration: Calibration, peers: int) -> float:
    """Rate within a node to `peers` other GPUs, of which links from pair to pair give each its
    share; a server without NVLink is joined by its GPUs' host links."""
    rate = gpu.nvlink_bytes_per_second if gpu.is_joined else gpu.host_link_bytes_per_second
    if gpu.pair_bytes_per_second and peers:
        rate = min(rate, peers * gpu.pair_bytes_per_second)
    return rate * calibration.nvlink_efficiency


def _reducing(gpu: Gpu, calibration: Calibration, near: int, nodes: int) -> float:
    """Rate of an all-reduce's tensor with NVLink SHARP: the switches add and send on, and every
    GPU sends and receives the tensor about once. Between nodes its parts, one an adapter, go
    through the network twice but for the share of the node itself."""
    if not gpu.has_multicast or near == 1:
        return 0.0
    rate = _inside(gpu, calibration, near - 1) * calibration.nvls_efficiency
    if nodes == 1:
        return rate
    outside = gpu.internode_bytes_per_second * calibration.internode_efficiency * near
    return min(rate, outside * nodes / (2 * (nodes - 1)))
