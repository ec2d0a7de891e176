"""How many tokens a rank routes, sends, receives and computes in one MoE layer."""

from functools import lru_cache
from math import ceil, prod

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.operators import Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import RouterDType, TokenDispatcher
from advisor.models.spec import ModelSpec


class MoeTokens(Struct, frozen=True, kw_only=True):
    """Rows of the tensors of one MoE layer on one rank, routing balanced except the imbalance.

    local: tokens of the rank. routed: their copies for the experts they go to, topk each.
    received: copies that reach the busiest rank. computed: copies that its experts work on, those
    of its expert-tensor-parallel group together. gathered: tokens of all ranks of the expert group.
    dispatched: tokens of a rank that sends as many as the busiest one receives, each once.
    """

    local: int
    routed: int
    received: int
    computed: int
    gathered: int
    dispatched: int
    num_experts: int
    local_experts: int
    topk: int

    def of_expert(self, index: int) -> int:
        """Copies that local expert `index` computes."""
        before, after = (self.computed * end // self.local_experts for end in (index, index + 1))
        return after - before


@lru_cache(maxsize=4096)
def moe_tokens(shape: RankShape) -> MoeTokens:
    """Counts for `shape`.

    Dropless: topk copies a token. A capacity factor bounds an expert's copies; padded to capacity,
    every expert has exactly ceil(local x topk / experts x factor) of each rank (moe_utils.py
    get_capacity). The flex dispatcher sends a token once to each rank that has any of its experts.
    """
    model = shape.model
    experts, topk = model.num_moe_experts or 1, model.moe_router_topk
    ep, etp = shape.expert_model_parallel_size, shape.expert_tensor_parallel_size
    local = shape.norm_seq * shape.micro_batch_size
    routed, factor = local * topk, model.moe_expert_capacity_factor
    imbalance = shape.moe_load_imbalance if ep > 1 else 1.0
    if factor is not None and model.moe_pad_expert_input_to_capacity:
        routed, imbalance = ceil(routed / experts * factor) * experts, 1.0
    elif factor is not None:
        imbalance = min(imbalance, factor)
        routed = int(routed * min(1.0, factor))
    received = ceil(local * topk * imbalance) if imbalance != 1.0 else routed
    computed = received * etp
    if model.moe_token_dispatcher_type is TokenDispatcher.FLEX:
        ranks = _ranks_of_a_token(experts, experts // ep, topk, ep)
        received = ceil(local * ranks * imbalance) * etp
    return MoeTokens(
        local=local,
        routed=routed,
        received=received,
        computed=computed,
        gathered=local * ep * etp,
        dispatched=ceil(local * imbalance),
        num_experts=experts,
        local_experts=experts // ep,
        topk=topk,
    )


def _ranks_of_a_token(experts: int, local_experts: int, topk: int, ranks: int) -> float:
    """Expected number of ranks that `topk` different experts, drawn evenly, lie on."""
    elsewhere = prod(max(0, experts - local_experts - i) / (experts - i) for i in range(topk))
    return ranks * (1.0 - elsewhere)


def router_dtype(shape: RankShape) -> DType:
    """Type of logits and probabilities: moe_router_dtype, else that of the activations."""
    wanted = shape.model.moe_router_dtype
    if wanted is None:
        return shape.dtype
    return DType.FP32 if wanted is RouterDType.FP32 else DType.FP64


def runs_grouped(model: ModelSpec) -> bool:
    """Whether one grouped GEMM serves all experts of a rank (TEGroupedMLP, or the older GroupedMLP)
    rather than one linear layer after another (SequentialMLP)."""
    return model.moe_grouped_gemm


def rows(shape: RankShape, name: str, count: int, *width: int) -> Tensor:
    """[count, width] in the type of the activations."""
    return Tensor(name, (count, *width), shape.dtype)
