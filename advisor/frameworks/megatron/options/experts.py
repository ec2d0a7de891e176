"""Options of layers with experts: the router, the dispatch and the experts themselves."""

from typing import Final

from advisor.frameworks.megatron.options.parallelism import DEGREE, STRATEGY
from advisor.frameworks.megatron.options.values import (
    emitted_where,
    has_experts,
    sends_flex,
    weights_squared_relu,
)
from advisor.frameworks.option import (
    Emitted,
    Options,
    When,
    checked,
    harmless,
    option,
    refused,
    unpriced,
)

_MODEL: Final = Emitted(line=When(only_if=has_experts))
_RUN: Final = emitted_where(has_experts, nemo_1="")
_FLEX: Final = emitted_where(sends_flex, nemo_1="", order=9)
_SMS: Final = "the dispatcher is modelled with Megatron's default number of multiprocessors"
_KERNELS: Final = "the dispatcher's kernels are modelled with their default settings"
_LAYOUT: Final = "another weight layout or kernel of the same MLP"
_FIXED_SIZE: Final = "buffers of a fixed size are not modelled"
_PADDING: Final = "padding tokens are not counted"


class Experts(Options, title="Experts"):
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
    moe_router_topk_scaling_factor: float | None = harmless(None)
    moe_router_topk_limited_devices: int | None = harmless(
        None, "an old name of moe_router_group_topk", flag=""
    )
    moe_router_bias_update_rate: float = harmless(0.001)
    moe_router_quantile_balancing_ema: float = harmless(0.0, since="0.19")
    moe_router_force_biased: float | None = harmless(None, "used only for benchmarks", since="0.17")
    moe_per_layer_logging: bool = harmless(False)
    moe_token_dropping: bool = harmless(False, "has no effect in any release", flag="")
    moe_deepep_num_sms: int | None = unpriced(None, _SMS, since="0.13", older={"0.18": 20})
    moe_hybridep_num_sms: int | None = unpriced(None, _SMS, since="0.16", older={"0.16": 16})
    moe_hybridep_num_sms_preprocessing: int = harmless(108, _KERNELS, since="0.18")
    moe_hybridep_num_blocks_permute: int | None = harmless(None, _KERNELS, since="0.17")
    moe_hybridep_num_blocks_unpermute: int | None = harmless(None, _KERNELS, since="0.17")
    moe_flex_dispatcher_num_sms: int | None = unpriced(None, _SMS, since="0.19")
    moe_hybridep_pad_uneven_dispatch_inputs: bool = unpriced(
        False, "padding in the dispatcher's inputs is not counted", since="0.19"
    )
    moe_permute_fusion_into_hybridep: bool = unpriced(
        False, "the permutation is modelled separately from the dispatch", since="0.17"
    )
    moe_ncclep_static_shape: bool = unpriced(False, _FIXED_SIZE, since="0.19")
    moe_ncclep_zero_copy: bool = unpriced(False, _FIXED_SIZE, since="0.19")
    moe_latent_size: int | None = option(None, "model", _MODEL, strict=True, since="0.16")
    moe_single_grouped_weight: bool = harmless(False, _LAYOUT, since="0.18")
    moe_single_grouped_bias: bool = harmless(False, _LAYOUT, since="0.18")
    moe_mlp_glu_interleave_size: int | None = harmless(None, _LAYOUT, since="0.18")
    moe_shared_expert_glu_interleave_size: int | None = harmless(None, _LAYOUT, since="0.19")
    use_grouped_gemm_for_shared_expert: bool = harmless(False, _LAYOUT, since="0.19")
    use_grouped_gemm_for_dense_mlp: bool = harmless(False, _LAYOUT, since="0.18")
    moe_expert_rank_capacity_factor: float | None = unpriced(None, _FIXED_SIZE, since="0.18")
    moe_enable_routing_replay: bool = unpriced(
        False, "replayed routing is not modelled", since="0.16"
    )
    moe_pad_experts_for_cuda_graph_inference: bool = harmless(
        False, "used only for inference", since="0.17"
    )
    moe_use_upcycling: bool = refused(
        False, "experts made from a dense checkpoint are not modelled"
    )
    moe_upcycling_granularity: int = harmless(1, "used only with moe_use_upcycling")
