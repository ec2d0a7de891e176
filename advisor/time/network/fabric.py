"""The groups of ranks that layers communicate in, with what joins them.

Ranks are numbered TP, CP, DP, PP, and experts' ETP, EP (megatron-core 0.16.1 parallel_state.py), on
nodes that are filled one after another.
"""

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import Collective, CollectiveKind, Group
from advisor.models.options import CpCommType, TokenDispatcher
from advisor.models.spec import ModelSpec
from advisor.time.network.exchange import Dispatcher, flex_dispatcher
from advisor.time.network.links import Link, all_to_all_link, link, neighbour_link
from advisor.time.network.passing import collective_seconds


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
    """Link of the context-parallel ranks but for their all-to-alls.

    An all-gather is NCCL's; in a ring every rank sends to the next one, and those at the end of a
    node through their own adapters. Source: Transformer Engine's context parallelism by
    cp_comm_type (pytorch/attention).
    """
    tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
    if layout.cp_comm_type is CpCommType.ALL_GATHER:
        return link(gpu, calibration, cp, tp)
    return neighbour_link(gpu, calibration, tp * cp)


def expert_data_parallel_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the ranks that share routed experts, EP x ETP apart."""
    apart = layout.expert_model_parallel_size * layout.expert_tensor_degree
    return link(gpu, calibration, layout.expert_data_parallel_size, apart)


def data_parallel_link(gpu: Gpu, calibration: Calibration, layout: ParallelLayout) -> Link:
    """Link of the ranks that share a model shard: DP x CP of them, TP apart."""
    ranks = layout.context_parallel_size * layout.data_parallel_size
    return link(gpu, calibration, ranks, layout.tensor_model_parallel_size)
