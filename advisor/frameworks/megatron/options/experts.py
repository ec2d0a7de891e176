"""Options of layers with experts: the router, the dispatch and the experts themselves."""

from typing import Final

from advisor.frameworks.megatron.options.parallelism import DEGREE, STRATEGY
from advisor.frameworks.megatron.options.section import Section
from advisor.frameworks.megatron.options.values import (
    emitted_where,
    has_experts,
    sends_flex,
    weights_squared_relu,
)
from advisor.frameworks.option import (
    Emitted,
    Status,
    When,
    checked,
    option,
)

_MODEL: Final = Emitted(line=When(only_if=has_experts))
_RUN: Final = emitted_where(has_experts, nemo_1="")
_FLEX: Final = emitted_where(sends_flex, nemo_1="", order=9)
_FIXED_SIZE: Final = "buffers of a fixed size are not modelled"
_PADDING: Final = "padding tokens are not counted"


class Experts(Section, title="Experts"):
    """Options of layers with experts; `order` is that of a Bridge recipe."""

    expert_model_parallel_size: int = option(
        1,
        "layout",
        DEGREE,
        line=When(with_layout=True, only_if=has_experts),
        recipe=When(always=True, only_if=has_experts),
    )
    expert_tensor_parallel_size: int | None = option(
        None,
        "layout",
        _RUN,
        recipe_value=lambda job, _: job.layout.expert_tensor_degree,
        nemo=STRATEGY,
    )
    num_moe_experts: int | None = option(None, "model", _MODEL, flag="--num-experts")
    moe_layer_freq: str = option("1", "model", _MODEL)
    moe_ffn_hidden_size: int | None = option(None, "model", _MODEL)
    moe_router_topk: int = option(2, "model", _MODEL)
    moe_router_num_groups: int | None = option(None, "model", _MODEL)
    moe_router_group_topk: int | None = option(None, "model", _MODEL)
    moe_router_score_function: str = option("softmax", "model", _MODEL)
    moe_router_pre_softmax: bool = option(False, "model", _MODEL)
    moe_router_dtype: str | None = option(None, "model", _RUN, order=5, since="0.12")
    moe_router_enable_expert_bias: bool = option(False, "model", _MODEL)
    moe_router_load_balancing_type: str = option("aux_loss", "model", _MODEL)
    moe_aux_loss_coeff: float = option(0.0, "model", _MODEL)
    moe_z_loss_coeff: float | None = option(None, "model", _MODEL)
    moe_router_fusion: bool = option(False, "model", _RUN, order=4, since="0.14")
    moe_token_dispatcher_type: str = option("allgather", "model", _RUN, order=1)
    moe_permute_fusion: bool = option(False, "model", _RUN, order=3)
    moe_expert_capacity_factor: float | None = option(None, "model", _RUN, order=7)
    moe_pad_expert_input_to_capacity: bool = option(False, "model", _RUN, order=8)
    moe_token_drop_policy: str = option("probs", "model", _MODEL)
    moe_grouped_gemm: bool = option(False, "model", _RUN, order=2)
    use_fused_weighted_squared_relu: bool = option(
        False, "model", emitted_where(weights_squared_relu), in_nemo=False, order=9, since="0.14"
    )
    moe_use_legacy_grouped_gemm: bool = option(False, "model", _MODEL, until="0.16")
    moe_apply_probs_on_input: bool = option(False, "model", _MODEL, since="0.12")
    moe_shared_expert_intermediate_size: int | None = option(None, "model", _MODEL)
    moe_shared_expert_gate: bool = option(False, "model", _MODEL, since="0.16")
    moe_shared_expert_overlap: bool = option(False, "model", _RUN, order=6)
    moe_flex_dispatcher_backend: str = option("deepep", "model", _FLEX, since="0.16")
    moe_enable_deepep: bool = option(
        False,
        "model.moe_flex_dispatcher_backend",
        _FLEX,
        # without backends the flex dispatcher runs with this one switched on alone
        # (megatron-core 0.12 to 0.15 token_dispatcher.py)
        value=lambda job, revision: sends_flex(job) and not revision.at_least(0, 16),
        recipe=When(only_if=sends_flex),
        since="0.12",
    )
    moe_router_padding_for_fp8: bool = checked(False, _PADDING, since="0.13")
    moe_router_padding_for_quantization: bool = checked(False, _PADDING, since="0.16")
    moe_input_jitter_eps: float | None = checked(None, "adds one multiplication per token")
    moe_router_force_load_balancing: bool = option(False, "job", since="0.13")
    moe_ncclep_static_shape: bool = checked(False, _FIXED_SIZE, Status.UNPRICED, since="0.19")
    moe_latent_size: int | None = option(None, "model", _MODEL, strict=True, since="0.16")
    moe_expert_rank_capacity_factor: float | None = checked(
        None, _FIXED_SIZE, Status.UNPRICED, since="0.18"
    )
