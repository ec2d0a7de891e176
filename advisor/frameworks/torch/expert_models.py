"""Models with experts as eager torch runs them, and which of them have no layers here."""

from typing import Any, Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.options import (
    Activation,
    LoadBalancing,
    ScoreFunction,
    TokenDispatcher,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec

_GATED: Final = (Activation.SWIGLU, Activation.GEGLU)
_NEITHER: Final[tuple[tuple[str, Any], ...]] = (
    ("add_bias_linear", False),
    ("add_qkv_bias", False),
    ("moe_expert_capacity_factor", None),
    ("moe_shared_expert_gate", False),
    ("hidden_dropout", 0.0),
)
_ONLY_TORCHTITAN: Final[tuple[tuple[str, Any], ...]] = (
    ("moe_shared_expert_intermediate_size", None),
    ("moe_router_group_topk", None),
    ("moe_router_score_function", ScoreFunction.SOFTMAX),
    ("moe_router_pre_softmax", False),
    ("moe_apply_probs_on_input", False),
    ("moe_router_enable_expert_bias", False),
)
"""Options of experts that neither has here, and those that Mixtral and Qwen3-MoE of transformers
have not, with their values there."""


def eager_experts(model: ModelSpec, impl: TransformerImpl, given: frozenset[str]) -> ModelSpec:
    """`model` with one grouped GEMM over all experts, and nothing that is Megatron's alone;
    UserError where it has no layers here."""
    torchtitan = impl is TransformerImpl.TORCH
    for field, value in _NEITHER if torchtitan else (*_NEITHER, *_ONLY_TORCHTITAN):
        if getattr(model, field) != value:
            where = "torchtitan's" if torchtitan else "transformers'"
            raise UserError(
                f"model.{field}",
                getattr(model, field),
                f"is not modelled with {where} MoE layers",
                "use --framework megatron_lm",
            )
    if model.activation not in _GATED:
        raise UserError(
            "model.activation", model.activation, "must be gated in MoE layers", "swiglu or geglu"
        )
    if "moe_grouped_gemm" in given and not model.moe_grouped_gemm:
        raise UserError(
            "model.moe_grouped_gemm",
            False,
            "means a loop over experts, which is not modelled; the default is torch's grouped_mm",
            "leave it out",
        )
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
