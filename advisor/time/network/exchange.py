"""Dispatch of tokens to their experts by what crosses which link.

DeepEP and HybridEP (the flex dispatcher) send a token once to each other node that holds any of its
experts, through the adapter of its rank; there it is handed on over NVLink to each rank that does.
Results come back the same way, added up before they leave a node. Sources: DeepEP
csrc/kernels/internode.cu, HybridEP docs/README_Hybrid-EP.md.
"""

from functools import lru_cache
from math import comb

from msgspec import Struct

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.models.options import FlexBackend
from advisor.models.spec import ModelSpec
from advisor.time.network.links import exchange_rates, ranks_of_a_node

_SMS = {FlexBackend.DEEPEP: 20, FlexBackend.HYBRIDEP: 16}
"""SMs that a dispatch takes: Megatron's defaults, moe_deepep_num_sms and moe_hybridep_num_sms."""


class Dispatcher(Struct, frozen=True, kw_only=True):
    """The flex dispatcher of one rank: seconds of a byte that is sent, and what it takes.

    seconds_per_byte: for each byte of a rank's own tokens, once for all copies. fixed_seconds: of
    one dispatch or combine. sms: streaming multiprocessors that a kernel beside it lacks.
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
    ranks = layout.expert_model_parallel_size * etp
    near = ranks_of_a_node(gpu, ranks, 1)
    inside, outside = exchange_rates(gpu, calibration, near - 1)
    sms = sms or _SMS[backend]
    if backend is FlexBackend.DEEPEP:
        inside = min(inside, sms * calibration.deepep_sm_bytes_per_second)
    on_network, on_nvlink = copies_of_a_token(
        Routing.of(model), layout.expert_model_parallel_size, max(1, near // etp)
    )
    return Dispatcher(
        seconds_per_byte=max(on_network / outside, etp * on_nvlink / inside),
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
    def of(cls, model: ModelSpec) -> "Routing":
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
        missed += chosen * _missed(taken * group, hits * min(part, group), routing.topk)
    return 1.0 - missed


def _missed(experts: int, part: int, topk: int) -> float:
    """Probability that none of `topk` different experts out of `experts` is in a `part` of them."""
    return comb(experts - part, topk) / comb(experts, topk)
