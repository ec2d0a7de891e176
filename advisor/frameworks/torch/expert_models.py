"""Models with experts as eager torch runs them, and which of them have no layers here."""

from typing import Final

from msgspec.structs import replace

from advisor.models.options import LoadBalancing, TokenDispatcher, TransformerImpl
from advisor.models.spec import ModelSpec

NEITHER: Final = (
    *("add_bias_linear", "add_qkv_bias", "moe_expert_capacity_factor", "moe_shared_expert_gate"),
    "hidden_dropout",
)
ONLY_TORCHTITAN: Final = (
    *("moe_router_group_topk", "moe_router_pre_softmax", "moe_apply_probs_on_input"),
)
"""Options of experts that neither has here, and those that Mixtral, Qwen3-MoE, MiniMax-M2 and
ERNIE 4.5 of transformers have not: they have the defaults of ModelSpec."""


def eager_experts(model: ModelSpec, impl: TransformerImpl) -> ModelSpec:
    """`model` with one grouped GEMM over all experts, and nothing that is Megatron's alone: a
    router in fp32 is transformers' as well."""
    transformers = impl is TransformerImpl.TRANSFORMERS
    return replace(
        model,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
        moe_router_dtype=model.moe_router_dtype if transformers else None,
        moe_aux_loss_coeff=0.0,
        moe_z_loss_coeff=None,
        moe_router_load_balancing_type=LoadBalancing.NONE,
        moe_shared_expert_overlap=False,
        moe_router_fusion=False,
        moe_permute_fusion=False,
        moe_use_legacy_grouped_gemm=False,
    )
