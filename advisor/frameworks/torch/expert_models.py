"""Models with experts as eager torch runs them, and which of them have no layers here."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.models.options import LoadBalancing, ScoreFunction, TokenDispatcher
from advisor.models.spec import ModelSpec

NEITHER: Final[tuple[tuple[str, Any], ...]] = (
    ("add_bias_linear", False),
    ("add_qkv_bias", False),
    ("moe_expert_capacity_factor", None),
    ("moe_shared_expert_gate", False),
    ("hidden_dropout", 0.0),
)
ONLY_TORCHTITAN: Final[tuple[tuple[str, Any], ...]] = (
    ("moe_shared_expert_intermediate_size", None),
    ("moe_router_group_topk", None),
    ("moe_router_score_function", ScoreFunction.SOFTMAX),
    ("moe_router_pre_softmax", False),
    ("moe_apply_probs_on_input", False),
    ("moe_router_enable_expert_bias", False),
)
"""Options of experts that neither has here, and those that Mixtral and Qwen3-MoE of transformers
have not, with their values there."""


def eager_experts(model: ModelSpec) -> ModelSpec:
    """`model` with one grouped GEMM over all experts, and nothing that is Megatron's alone."""
    return replace(
        model,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
        moe_router_dtype=None,
        moe_aux_loss_coeff=0.0,
        moe_z_loss_coeff=None,
        moe_router_load_balancing_type=LoadBalancing.NONE,
        moe_shared_expert_overlap=False,
        moe_router_fusion=False,
        moe_permute_fusion=False,
        moe_use_legacy_grouped_gemm=False,
    )
