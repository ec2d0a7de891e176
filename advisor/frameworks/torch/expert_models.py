"""Models with experts as eager torch runs them."""

from msgspec.structs import replace

from advisor.models.options import LoadBalancing, TokenDispatcher, TransformerImpl
from advisor.models.spec import ModelSpec


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
