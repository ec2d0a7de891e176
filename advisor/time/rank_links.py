"""What joins the ranks of a group, NVLink or xGMI within its domain and the adapters of its nodes;
the groups that layers communicate in; and how many tokens cross which link to their experts.

DeepEP and HybridEP (the flex dispatcher) send a token once to each other node that holds any of its
experts, through the adapter of its rank; there it is handed on over NVLink to each rank that does.
Results come back the same way, added up before they leave a node. Sources: DeepEP
csrc/kernels/internode.cu, HybridEP docs/README_Hybrid-EP.md.
"""

from functools import lru_cache
from math import ceil, comb, log2

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.models.options import CpCommType, FlexBackend, TokenDispatcher
from advisor.models.spec import ModelSpec
from advisor.time.communication import Link, collective_seconds

_SMS = {FlexBackend.DEEPEP: 20, FlexBackend.HYBRIDEP: 16}
"""SMs that a dispatch takes: Megatron's defaults, moe_deepep_num_sms and moe_hybridep_num_sms."""


class Dispatcher(Struct, frozen=True, kw_only=True):
    """The flex dispatcher of one rank: seconds of a byte that is sent, and what it takes.

    seconds_per_byte: for each byte of a rank's own tokens, once for all copies. fixed_seconds: of
    one dispatch or combine. sms: streaming multiprocessors that a concurrent kernel lacks.
    """

    seconds_per_byte: float
    fixed_seconds: float
    sms: int

    def seconds(self, num_bytes: float) -> float:
        """Seconds of a dispatch or a combine of `num_bytes` of tokens of this rank."""
        return self.fixed_seconds + num_bytes * self.seconds_per_byte


def flex_dispatcher(
    layout: ParallelLayout,
    model: ModelSpec,
    gpu: Gpu,
    calibration: Calibration,
    sms: int | None = None,
) -> Dispatcher:
    """The flex dispatcher of `layout`, routing balanced; its ranks are EP x ETP, side by side.

    Network and NVLink work at the same time: the slower of both counts. Every SM of DeepEP moves so
    many bytes a second (it copies by loads and stores); HybridEP's are the copy engines of an SM
    and never the limit at Megatron's default. `sms`: those it has, Megatron's default if None.
    """
    backend, etp = model.moe_flex_dispatcher_backend, layout.expert_tensor_degree
    near = ranks_of_a_node(gpu, layout.expert_ranks, 1)
    inside, outside = exchange_rates(gpu, calibration, near - 1)
    sms = sms or _SMS[backend]
    if backend is FlexBackend.DEEPEP:
        inside = min(inside, sms * calibration.deepep_sm_bytes_per_second)
    on_network, on_nvlink = copies_of_a_token(
        Routing.of_model(model), layout.expert_model_parallel_size, max(1, near // etp)
    )
    return Dispatcher(
        seconds_per_byte=max(on_network / outside, etp * on_nvlink / inside)
        / calibration.dispatch_training_share,
        fixed_seconds=calibration.collective_seconds + calibration.dispatch_seconds,
        sms=sms,
    )


class Routing(Struct, frozen=True):
    """How many of how many experts a token takes, out of how many of how many groups of them."""

    experts: int
    topk: int
    groups: int = 1
    group_topk: int = 1

    @classmethod
    def of_model(cls, model: ModelSpec) -> "Routing":
        """That of a model, which may limit a token to some groups of experts."""
        experts, topk = model.num_moe_experts or 1, model.moe_router_topk
        if model.moe_router_group_topk is None:
            return cls(experts, topk)
        return cls(experts, topk, model.moe_router_num_groups or 1, model.moe_router_group_topk)


@lru_cache(maxsize=512)
def copies_of_a_token(routing: Routing, ranks: int, near: int) -> tuple[float, float]:
    """Copies of one token that its rank sends into the network, and that go over a GPU's NVLink,
    with `near` of the `ranks` ranks of the experts in each node; means over even routing.

    One copy a node but the own one. In a node the copy arrives at the GPU of its own number and
    goes on to each rank that needs it but that one; the GPUs of a node share that work.
    """
    nodes = -(-ranks // near)
    elsewhere = (nodes - 1) * reached(routing, nodes)
    onward = ranks * reached(routing, ranks) * (near - 1) / near
    return elsewhere, onward


def reached(routing: Routing, parts: int) -> float:
    """Probability that a token has an expert in one of `parts` equal parts of the experts.

    Where routing is limited to groups, a token takes some groups evenly, and its experts evenly of
    all that they hold: a part lies in one group, or holds several.
    """
    part, group = routing.experts // parts, routing.experts // routing.groups
    taken, held = routing.group_topk, max(1, part // group)
    missed = 0.0
    for hits in range(min(taken, held) + 1):
        ways = comb(held, hits) * comb(routing.groups - held, taken - hits)
        chosen = ways / comb(routing.groups, taken)
        experts, inside = taken * group, hits * min(part, group)
        missed += chosen * (comb(experts - inside, routing.topk) / comb(experts, routing.topk))
    return 1.0 - missed


_PCIE_NODE = 8  # GPUs of a server without NVLink


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
    rate = inside = _inside(gpu, calibration, near - 1)
    if nodes > 1:
        outside = _outside(gpu, calibration) * near
        rate = min(rate, outside) if near > 1 else outside
    hop, far = calibration.hop_seconds, calibration.internode_hop_seconds
    return Link(
        bytes_per_second=rate,
        latency_seconds=calibration.collective_seconds,
        ring_seconds=(ranks - nodes) * hop + (nodes * far if nodes > 1 else 0.0),
        tree_seconds=2 * ((near - 1) * hop + ceil(log2(nodes)) * far),
        ramp=calibration.ring_ramp,
        reducing_bytes_per_second=_reducing(gpu, calibration, near, nodes),
        busy=min(1.0, rate / inside),
    )


def neighbour_link(gpu: Gpu, calibration: Calibration, span: int) -> Link:
    """Link of a rank to one other within `span` consecutive GPUs, as in the ring of context
    parallelism and between stages: what leaves a node does so through the rank's own adapter."""
    if span <= node_size(gpu):
        rate, hop = _inside(gpu, calibration, 1), calibration.hop_seconds
    else:
        rate, hop = _outside(gpu, calibration), calibration.internode_hop_seconds
    return Link(bytes_per_second=rate, latency_seconds=calibration.collective_seconds + hop)


def all_to_all_link(gpu: Gpu, calibration: Calibration, ranks: int, apart: int) -> Link:
    """Link of an all-to-all over `ranks` ranks, each `apart` GPUs from the next.

    Of what a rank sends, the part for ranks of its own node stays on NVLink; the rest leaves
    through its own adapter: the slower of both, as a rate for the bytes of all other ranks. Every
    rank is taken to send as much to each other one, and messages to one after another begin.
    """
    near = ranks_of_a_node(gpu, ranks, apart)
    inside, outside = exchange_rates(gpu, calibration, near - 1)
    seconds = max((ranks - near) / outside, (near - 1) / inside)
    begun = (ranks - 1) * calibration.hop_seconds
    begun += calibration.internode_hop_seconds if near < ranks else 0.0
    return Link(
        bytes_per_second=(ranks - 1) / seconds if seconds else inside,
        latency_seconds=calibration.collective_seconds + begun,
    )


def exchange_rates(gpu: Gpu, calibration: Calibration, peers: int) -> tuple[float, float]:
    """Rates of one GPU that sends to all others at once, on NVLink to `peers` of its node and
    through its adapter."""
    inside = _inside(gpu, calibration, peers) * calibration.all_to_all_efficiency
    return inside, _outside(gpu, calibration)


def _outside(gpu: Gpu, calibration: Calibration) -> float:
    """Rate of a GPU's own adapter."""
    return gpu.internode_bytes_per_second * calibration.internode_efficiency


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
    through the network twice except for the share of the node itself."""
    if not gpu.has_multicast or near == 1:
        return 0.0
    rate = _inside(gpu, calibration, near - 1) * calibration.nvls_efficiency
    if nodes == 1:
        return rate
    return min(rate, _outside(gpu, calibration) * near * nodes / (2 * (nodes - 1)))


class Network(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Links and sizes of the groups that layers communicate in.

    dispatcher: of the tokens that the flex dispatcher sends.
    """

    tensor: Link
    context: Link
    tensor_ranks: int
    context_ranks: int
    context_all_to_all: Link | None = None
    context_all_to_all_ranks: int = 1
    expert_tensor: Link | None = None
    expert_all_to_all: Link | None = None
    expert_tensor_and_model: Link | None = None
    expert_ranks: int = 1
    expert_tensor_ranks: int = 1
    dispatcher: Dispatcher | None = None

    def seconds(self, collective: Collective) -> float:
        """Time of one collective."""
        if collective.kind is CollectiveKind.DISPATCH:
            return self.dispatcher.seconds(collective.num_bytes) if self.dispatcher else 0.0
        ranks, joined = self._group(collective)
        if ranks == 1 or joined is None:
            return 0.0
        return collective_seconds(collective.kind, collective.num_bytes, ranks, joined)

    def _group(self, collective: Collective) -> tuple[int, Link | None]:
        """Ranks that take part, and what joins them."""
        match collective.group:
            case Group.TENSOR:
                return self.tensor_ranks, self.tensor
            case Group.CONTEXT:
                if collective.kind is CollectiveKind.ALL_TO_ALL:
                    return self.context_all_to_all_ranks, self.context_all_to_all
                return self.context_ranks // self.context_all_to_all_ranks, self.context
            case Group.EXPERT_TENSOR:
                return self.expert_tensor_ranks, self.expert_tensor
            case Group.EXPERT:
                return self.expert_ranks, self.expert_all_to_all
        return self.expert_ranks * self.expert_tensor_ranks, self.expert_tensor_and_model


def network(
    layout: ParallelLayout, gpu: Gpu, calibration: Calibration, model: ModelSpec | None = None
) -> Network:
    """Links and sizes of the groups of `layout`; with those of the experts that `model` has."""
    tp, exchanging = layout.tensor_model_parallel_size, layout.cp_all_to_all_size
    dense = Network(
        tensor=link(gpu, calibration, tp, 1),
        context=context_link(gpu, calibration, layout),
        context_all_to_all=all_to_all_link(gpu, calibration, exchanging, tp),
        tensor_ranks=tp,
        context_ranks=layout.context_parallel_size,
        context_all_to_all_ranks=exchanging,
    )
    if model is None or model.num_moe_experts is None:
        return dense
    ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_degree
    flex = model.moe_token_dispatcher_type is TokenDispatcher.FLEX
    return replace(
        dense,
        expert_tensor=link(gpu, calibration, etp, 1),
        expert_all_to_all=all_to_all_link(gpu, calibration, ep, etp),
        expert_tensor_and_model=link(gpu, calibration, ep * etp, 1),
        expert_ranks=ep,
        expert_tensor_ranks=etp,
        dispatcher=flex_dispatcher(layout, model, gpu, calibration) if flex else None,
    )


def context_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the context-parallel ranks except for their all-to-alls.

    An all-gather is NCCL's; in a ring every rank sends to the next one, and those at the end of a
    node through their own adapters. Source: Transformer Engine's context parallelism by
    cp_comm_type (pytorch/attention).
    """
    tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
    if layout.cp_comm_type is CpCommType.ALL_GATHER:
        return link(gpu, calibration, cp, tp)
    return neighbour_link(gpu, calibration, tp * cp)


def data_parallel_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the ranks over which a model's states are cut: DP x CP of a replica, TP apart."""
    return link(gpu, calibration, layout.sharding_ranks, layout.tensor_model_parallel_size)
