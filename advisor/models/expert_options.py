"""Mixture of experts in Megatron's words: choices of its options, and what they exclude.

Source: megatron-core 0.16.1 transformer/transformer_config.py.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.models.spec import ModelSpec


class TokenDispatcher(StrEnum):
    """`--moe-token-dispatcher-type`: how tokens reach the ranks of their experts."""

    ALLGATHER = "allgather"
    ALLTOALL = "alltoall"
    FLEX = "flex"


class RouterDType(StrEnum):
    """`--moe-router-dtype`: type of logits and probabilities."""

    FP32 = "fp32"
    FP64 = "fp64"


class ScoreFunction(StrEnum):
    """`--moe-router-score-function`: what turns logits into probabilities."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class LoadBalancing(StrEnum):
    """`--moe-router-load-balancing-type`; Megatron's lists of several are not modelled."""

    AUX_LOSS = "aux_loss"
    SEQ_AUX_LOSS = "seq_aux_loss"
    GLOBAL_AUX_LOSS = "global_aux_loss"
    SINKHORN = "sinkhorn"
    NONE = "none"


class DropPolicy(StrEnum):
    """`--moe-token-drop-policy`: which tokens an expert over its capacity loses."""

    PROBS = "probs"
    POSITION = "position"


def check_experts(model: "ModelSpec") -> None:
    """Raise UserError on what TransformerConfig refuses about mixture of experts."""
    if model.num_moe_experts is None:
        if model.moe_ffn_hidden_size is not None:
            raise _refuse(model, "moe_ffn_hidden_size", "needs num_moe_experts", "leave it unset")
        return
    for field in ("num_moe_experts", "moe_router_topk", *_SIZES):
        value = getattr(model, field)
        if value is not None and not 1 <= value <= _LARGEST:
            raise _refuse(model, field, f"must be in 1 .. {_LARGEST}")
    if model.moe_router_topk > model.num_moe_experts:
        relation = f"must not exceed num_moe_experts = {model.num_moe_experts}"
        raise _refuse(model, "moe_router_topk", relation)
    _check_router(model)
    _check_capacity(model)
    overlaps = model.moe_shared_expert_overlap and model.moe_shared_expert_intermediate_size
    if overlaps and model.moe_token_dispatcher_type is TokenDispatcher.ALLGATHER:  # flex from 0.17
        raise _refuse(model, "moe_shared_expert_overlap", "needs the alltoall or flex dispatcher")
    if model.moe_apply_probs_on_input and model.moe_router_topk != 1:
        raise _refuse(model, "moe_apply_probs_on_input", "needs moe_router_topk = 1")


def _check_router(model: "ModelSpec") -> None:
    softmax = model.moe_router_score_function is ScoreFunction.SOFTMAX
    sinkhorn = model.moe_router_load_balancing_type is LoadBalancing.SINKHORN
    if model.moe_router_enable_expert_bias and softmax:
        raise _refuse(
            model, "moe_router_enable_expert_bias", "needs moe_router_score_function = sigmoid"
        )
    alone = model.moe_router_topk == 1 and softmax
    if alone and not model.moe_router_pre_softmax and not sinkhorn:
        raise _refuse(
            model,
            "moe_router_topk",
            "leaves a softmax over one expert",
            "set moe_router_pre_softmax",
        )
    if sinkhorn and model.moe_aux_loss_coeff:
        raise _refuse(model, "moe_aux_loss_coeff", "must be 0 under sinkhorn routing")
    groups, wanted = model.moe_router_num_groups, model.moe_router_group_topk
    if wanted is None:
        return
    if groups is None or not 1 <= wanted <= groups or (model.num_moe_experts or 0) % groups:
        raise _refuse(
            model,
            "moe_router_group_topk",
            f"must not exceed moe_router_num_groups = {groups}, which divides num_moe_experts",
        )


def _check_capacity(model: "ModelSpec") -> None:
    factor = model.moe_expert_capacity_factor
    if factor is None:
        if model.moe_pad_expert_input_to_capacity:
            raise _refuse(
                model, "moe_pad_expert_input_to_capacity", "needs moe_expert_capacity_factor"
            )
        return
    if factor <= 0:
        raise _refuse(model, "moe_expert_capacity_factor", "must be positive", "leave it unset")
    if model.moe_router_load_balancing_type is LoadBalancing.SINKHORN:
        raise _refuse(model, "moe_expert_capacity_factor", "excludes sinkhorn routing")


def _refuse(model: "ModelSpec", field: str, relation: str, nearest: str = "") -> UserError:
    return UserError(f"model.{field}", getattr(model, field), relation, nearest)


_SIZES = ("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
_LARGEST = 10**8
