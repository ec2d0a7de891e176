"""Rules of TransformerConfig on mixture-of-experts models."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict

_AUXILIARY: Final = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
_WITHOUT_PADDING: Final = ("allgather", "alltoall_seq")


def expert_parallel_needs_experts(raw: RawSettings, revision: Revision) -> Problem | None:
    """expert_model_parallel_size > 1 needs num_moe_experts."""
    if raw.expert_model_parallel_size == 1 or raw.num_moe_experts is not None:
        return None
    return Problem(
        f"expert_model_parallel_size = {raw.expert_model_parallel_size} in a dense model",
        "use expert_model_parallel_size 1",
        "ValueError: num_moe_experts must be non None to use expert-parallel.",
    )


def experts_are_positive(raw: RawSettings, revision: Revision) -> Problem | None:
    """num_moe_experts must be at least 1."""
    if raw.num_moe_experts is None or raw.num_moe_experts > 0:
        return None
    return Problem(
        f"num_moe_experts = {raw.num_moe_experts}",
        "leave it unset in a dense model",
        "ValueError: num_moe_experts must be non-negative.",
    )


def expert_size_needs_experts(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_ffn_hidden_size needs num_moe_experts (up to 0.17)."""
    given = raw.moe_ffn_hidden_size is not None and raw.num_moe_experts is None
    if not given or revision.at_least(0, 18):
        return None
    return Problem(
        f"moe_ffn_hidden_size = {raw.moe_ffn_hidden_size} in a dense model",
        "drop moe_ffn_hidden_size",
        "AssertionError: moe_ffn_hidden_size must be None when num_experts is not set.",
    )


def flex_dispatcher_padding(raw: RawSettings, revision: Revision) -> Problem | None:
    """The flex dispatcher on DeepEP excludes moe_pad_expert_input_to_capacity."""
    deepep = raw.moe_flex_dispatcher_backend == "deepep" or not revision.at_least(0, 16)
    flex = raw.moe_token_dispatcher_type == "flex" and deepep
    if not flex or not raw.moe_pad_expert_input_to_capacity:
        return None
    new = "ValueError: Flex token dispatcher with deepep backend does not support"
    old = "ValueError: Flex token dispatcher does not support moe_pad_expert_input_to_capacity"
    return Problem(
        "moe_token_dispatcher_type = flex on DeepEP with moe_pad_expert_input_to_capacity",
        "use alltoall, or drop moe_pad_expert_input_to_capacity",
        new if revision.at_least(0, 16) else old,
    )


def shared_expert_size(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_shared_expert_intermediate_size must be positive."""
    size = raw.moe_shared_expert_intermediate_size
    if size is None or size > 0:
        return None
    return Problem(
        f"moe_shared_expert_intermediate_size = {size}",
        "give shared experts times the ffn size of each, or leave it unset",
        "ValueError: moe_shared_expert_intermediate_size must be num_shared_experts",
    )


def shared_expert_overlap_dispatcher(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_shared_expert_overlap needs the alltoall dispatcher (from 0.18 on flex will do)."""
    flex = revision.at_least(0, 18)
    able = ("alltoall", "flex") if flex else ("alltoall",)
    size, overlap = raw.moe_shared_expert_intermediate_size, raw.moe_shared_expert_overlap
    if size is None or not overlap or raw.moe_token_dispatcher_type in able:
        return None
    return Problem(
        f"moe_shared_expert_overlap with moe_token_dispatcher_type = "
        f"{raw.moe_token_dispatcher_type}",
        "use moe_token_dispatcher_type alltoall, or drop moe_shared_expert_overlap",
        f"ValueError: moe_shared_expert_overlap only works with {' or '.join(able)} token",
    )


def capacity_needs_auxiliary_loss(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_expert_capacity_factor goes with an auxiliary loss or no load balancing only."""
    if raw.moe_expert_capacity_factor is None:
        return None
    if raw.moe_router_load_balancing_type in _AUXILIARY:
        return None
    return Problem(
        "moe_expert_capacity_factor with moe_router_load_balancing_type = "
        f"{raw.moe_router_load_balancing_type}",
        "use aux_loss, seq_aux_loss or none",
        "ValueError: moe_expert_capacity_factor only works with aux_loss",
    )


def padding_needs_capacity(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor."""
    factor = raw.moe_expert_capacity_factor
    if not raw.moe_pad_expert_input_to_capacity or (factor is not None and factor >= 0):
        return None
    return Problem(
        "moe_pad_expert_input_to_capacity without moe_expert_capacity_factor",
        "set moe_expert_capacity_factor, or drop the padding",
        "ValueError: moe_expert_capacity_factor must be set to use moe_pad_expert_input",
    )


def expert_bias_under_etp(raw: RawSettings, revision: Revision) -> Problem | None:
    """Biases in experts need expert_tensor_parallel_size 1 (from 0.15 on)."""
    etp = raw.expert_tensor_parallel_size or raw.tensor_model_parallel_size
    biased = raw.num_moe_experts is not None and raw.add_bias_linear is True
    if not biased or etp == 1 or not revision.at_least(0, 15):
        return None
    return Problem(
        f"add_bias_linear in a MoE model with expert_tensor_parallel_size = {etp}",
        "set add_bias_linear off (--disable-bias-linear), or use expert_tensor_parallel_size 1",
        "AssertionError: Bias in Moe is only supported when ETP==1",
    )


def router_bias_needs_sigmoid(raw: RawSettings, revision: Revision) -> Problem | None:
    """moe_router_enable_expert_bias needs the sigmoid score function."""
    if not raw.moe_router_enable_expert_bias or raw.moe_router_score_function == "sigmoid":
        return None
    return Problem(
        f"moe_router_enable_expert_bias with moe_router_score_function = "
        f"{raw.moe_router_score_function}",
        "use moe_router_score_function sigmoid",
        "ValueError: Expert bias for aux-loss-free routing only supports sigmoid",
    )


def router_padding(raw: RawSettings, revision: Revision) -> Problem | None:
    """Padding of the router's output needs fp8 or fp4 and a dispatcher that can do it."""
    newer = revision.at_least(0, 16)
    wanted = raw.moe_router_padding_for_fp8 or (newer and raw.moe_router_padding_for_quantization)
    if not wanted:
        return None
    if not raw.fp8 and not (newer and raw.fp4):
        return Problem(
            "the router pads for quantization, and neither fp8 nor fp4 is set",
            "drop moe_router_padding_for_fp8 (or _for_quantization)",
            f"ValueError: {'fp8/fp4' if newer else 'fp8'} must be specified when moe_router",
        )
    if raw.moe_token_dispatcher_type not in _WITHOUT_PADDING:
        return None
    return Problem(
        f"the router pads for quantization with moe_token_dispatcher_type = "
        f"{raw.moe_token_dispatcher_type}",
        "use moe_token_dispatcher_type alltoall or flex",
        "ValueError: allgather and alltoall_seq dispatcher does not support",
    )


def single_expert_softmax(raw: RawSettings, revision: Revision) -> Problem | None:
    """With one expert a token the softmax comes before the choice."""
    softmax = raw.moe_router_score_function == "softmax" and not raw.moe_router_pre_softmax
    if raw.moe_router_topk != 1 or not softmax:
        return None
    if raw.moe_router_load_balancing_type == "sinkhorn":
        return None
    return Problem(
        "moe_router_topk = 1 without moe_router_pre_softmax",
        "set moe_router_pre_softmax",
        "ValueError: Please use --moe-router-pre-softmax when topk is 1.",
    )


SHAPE_RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        expert_parallel_needs_experts,
        experts_are_positive,
        expert_size_needs_experts,
        flex_dispatcher_padding,
        shared_expert_size,
        shared_expert_overlap_dispatcher,
        capacity_needs_auxiliary_loss,
        padding_needs_capacity,
    )
)
"""Megatron checks these before offloading and recompute."""

ROUTER_RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        expert_bias_under_etp,
        router_bias_needs_sigmoid,
        router_padding,
        single_expert_softmax,
    )
)
"""Megatron checks these after them."""
