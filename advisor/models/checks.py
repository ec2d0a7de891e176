"""What a model's shape excludes: UserErrors on what Megatron refuses, or what is not modelled.

Sources: megatron-core 0.16.1 transformer/transformer_config.py, ssm/mamba_mixer.py; Megatron Bridge
0.3.1 models/gemma/*_provider.py, models/llama/llama4_utils.py; transformers 5.23.0 models/gemma2,
gemma3, llama4, olmo2.
"""

from collections.abc import Iterator

from advisor.base.errors import UserError
from advisor.base.units import nearest_divisors
from advisor.models.layer_kind import LayerKind, Mixer
from advisor.models.layer_kinds import (
    LINEAR_MIXERS,
    hybrid_kinds,
    layer_kinds,
    with_linear_attention,
)
from advisor.models.mixers import mamba_heads
from advisor.models.model_fields import ModelFields
from advisor.models.options import (
    LoadBalancing,
    NormPlacement,
    ScoreFunction,
    TokenDispatcher,
    TransformerImpl,
)


def check_model(model: ModelFields) -> None:
    """Raise UserError on a shape that is none, or that excludes itself."""
    for field in _POSITIVE:
        value = getattr(model, field)
        if value < 1:
            raise UserError(f"model.{field}", value, "must be at least 1")
        if value > _LARGEST:
            raise UserError(f"model.{field}", value, f"must not exceed {_LARGEST}")
    if model.num_layers > _MOST_LAYERS:
        raise UserError("model.num_layers", model.num_layers, f"must be at most {_MOST_LAYERS}")
    for field in ("hidden_dropout", "attention_dropout"):
        value = getattr(model, field)
        if not 0.0 <= value < 1.0:
            raise UserError(f"model.{field}", value, "must be at least 0 and below 1")
    if not 0.0 < model.rotary_percent <= 1.0:
        raise UserError(
            "model.rotary_percent", model.rotary_percent, "must be above 0 and at most 1"
        )
    if model.num_attention_heads % model.num_query_groups:
        raise UserError(
            "model.num_query_groups",
            model.num_query_groups,
            f"must divide num_attention_heads = {model.num_attention_heads}",
            f"nearest: {nearest_divisors(model.num_attention_heads, model.num_query_groups)}",
        )
    check_attention(model)
    check_experts(model)
    check_variants(model)
    model.moe_layer_freq.expand(model.num_layers, "model.moe_layer_freq")
    check_hybrid(model)


def check_attention(model: ModelFields) -> None:
    """Raise UserError on what Megatron refuses about attention."""
    _check_sizes(model, _ATTENTION_SIZES)
    if model.multi_latent_attention:
        _check_latent(model)
    if model.window_attn_skip_freq is None:
        return
    if model.window_size is None:
        raise _refuse(model, "window_attn_skip_freq", "needs window_size")
    if not model.window_attn_skip_freq.isdigit():
        model.window_attn_skip_freq.expand(model.num_layers, "model.window_attn_skip_freq")


def _check_latent(model: ModelFields) -> None:
    if model.num_query_groups != model.num_attention_heads:
        raise _refuse(
            model, "num_query_groups", "must equal num_attention_heads under multi-latent attention"
        )
    if model.window_size is not None:
        raise _refuse(model, "window_size", "is not modelled with multi-latent attention")


def check_experts(model: ModelFields) -> None:
    """Raise UserError on what TransformerConfig refuses about mixture of experts."""
    if model.num_moe_experts is None:
        if model.moe_ffn_hidden_size is not None:
            raise _refuse(model, "moe_ffn_hidden_size", "needs num_moe_experts", "leave it unset")
        return
    _check_sizes(model, _EXPERT_SIZES)
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


def _check_router(model: ModelFields) -> None:
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
            "needs moe_router_pre_softmax, else the softmax is over one expert",
        )
    if sinkhorn and model.moe_aux_loss_coeff:
        raise _refuse(model, "moe_aux_loss_coeff", "must be 0 under sinkhorn routing")
    _check_groups(model)


def _check_groups(model: ModelFields) -> None:
    groups, wanted = model.moe_router_num_groups, model.moe_router_group_topk
    if wanted is None:
        return
    if groups is None:
        raise _refuse(model, "moe_router_group_topk", "needs moe_router_num_groups")
    experts = model.num_moe_experts or 0
    if groups < 1 or experts % groups:
        near = f"nearest: {nearest_divisors(experts, groups)}"
        relation = f"must divide num_moe_experts = {experts}"
        raise _refuse(model, "moe_router_num_groups", relation, near)
    if not 1 <= wanted <= groups:
        relation = f"must be between 1 and moe_router_num_groups = {groups}"
        raise _refuse(model, "moe_router_group_topk", relation)


def _check_capacity(model: ModelFields) -> None:
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
        raise _refuse(
            model, "moe_expert_capacity_factor", "cannot be combined with sinkhorn routing"
        )


def check_variants(model: ModelFields) -> None:
    """Raise UserError on what excludes each other, or has no meaning."""
    for field in ("attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"):
        value = getattr(model, field)
        if value is not None and not 0 < value <= _LARGEST:
            raise _refuse(model, field, f"must be positive and at most {_LARGEST}")
    if model.no_rope_freq is not None:
        model.no_rope_freq.expand_from_one(model.num_layers, "model.no_rope_freq")
    for field, wrong, relation in _exclusions(model):
        if wrong and getattr(model, field):
            raise _refuse(model, field, relation)


def _exclusions(model: ModelFields) -> Iterator[tuple[str, bool, str]]:
    """Field, whether it may not be set, and why."""
    kernel = model.attention_backend not in ("auto", "unfused")
    able = " or ".join(impl for impl in TransformerImpl if impl.norms_whole_branches)
    foreign = not model.transformer_impl.norms_whole_branches
    behind_alone = model.norm_placement is NormPlacement.POST
    for field, wrong in (
        ("norm_placement", foreign and behind_alone),
        ("qk_layernorm_across_heads", foreign),
    ):
        yield (
            field,
            wrong,
            f"needs transformer_impl = {able}: other implementations have no such layer",
        )
    latent, unfused = model.multi_latent_attention, model.attention_backend == "unfused"
    yield "qk_layernorm_across_heads", not model.qk_layernorm, "needs qk_layernorm"
    yield "qk_l2_norm", model.qk_layernorm, "cannot be combined with qk_layernorm"
    yield (
        "attn_logit_softcapping",
        kernel,
        (
            f"needs attention_backend = unfused: {model.attention_backend} has no kernel with "
            "attention logit softcapping"
        ),
    )
    yield (
        "final_logit_softcapping",
        model.mtp_num_layers is not None,
        "is not modelled with multi-token prediction",
    )
    yield (
        "attention_chunk_size",
        unfused or model.window_size is not None,
        "is not modelled with unfused attention or windows",
    )
    for field in ("qk_l2_norm", "no_rope_freq", "attention_chunk_size", "attn_logit_softcapping"):
        yield field, latent, "is not modelled with multi-latent attention"


def check_hybrid(model: ModelFields) -> None:
    """Raise UserError on what Megatron refuses about such layers, or what is not modelled."""
    _check_sizes(model, _MIXER_SIZES)
    if (model.experimental_attention_variant is None) != (model.linear_attention_freq is None):
        raise _refuse(
            model,
            "linear_attention_freq",
            "needs experimental_attention_variant",
            "set both, or neither",
        )
    if model.hybrid_layer_pattern is not None:
        _check_pattern(model, model.hybrid_layer_pattern)
    if model.linear_attention_freq is not None:
        with_linear_attention((LayerKind(),) * model.num_layers, model.linear_attention_freq)
    mixers = {kind.mixer for kind in layer_kinds(model)}
    if Mixer.GATED_DELTA_NET in mixers:
        _check_divides(model, "linear_num_key_heads", "linear_num_value_heads")
    if Mixer.MAMBA in mixers:
        _check_mamba(model)
    if mixers & LINEAR_MIXERS or model.attention_output_gate:
        _check_plain_attention(model)


def _check_pattern(model: ModelFields, pattern: str) -> None:
    layers = len(hybrid_kinds(pattern))
    if layers != model.num_layers:
        raise _refuse(
            model,
            "hybrid_layer_pattern",
            f"has {layers} layers, but num_layers = {model.num_layers}",
        )
    for field in ("linear_attention_freq", "window_size", "mtp_num_layers"):
        if getattr(model, field) is not None:
            raise _refuse(model, field, "is not modelled together with hybrid_layer_pattern")
    if model.num_moe_experts is None and "E" in pattern:
        raise _refuse(
            model, "hybrid_layer_pattern", "has expert layers (E), which need num_moe_experts"
        )


def _check_mamba(model: ModelFields) -> None:
    if model.mamba_num_heads is None and 2 * model.hidden_size % model.mamba_head_dim:
        relation = f"must divide 2 x hidden_size = {2 * model.hidden_size}"
        raise _refuse(model, "mamba_head_dim", relation)
    if mamba_heads(model) % model.mamba_num_groups:
        relation = f"must divide the {mamba_heads(model)} heads of Mamba"
        raise _refuse(model, "mamba_num_groups", relation)


def _check_plain_attention(model: ModelFields) -> None:
    """Softmax attention beside such layers, or with an output gate, is plain MHA or GQA."""
    if model.multi_latent_attention:
        raise _refuse(
            model,
            "multi_latent_attention",
            "is not modelled together with linear attention, Mamba or an output gate",
        )
    if model.window_size is not None:
        raise _refuse(
            model, "window_size", "is not modelled together with linear attention or Mamba"
        )


def _check_divides(model: ModelFields, field: str, other: str) -> None:
    if getattr(model, other) % getattr(model, field):
        raise _refuse(model, field, f"must divide {other} = {getattr(model, other)}")


def _check_sizes(model: ModelFields, names: tuple[str, ...]) -> None:
    for field in names:
        value = getattr(model, field)
        if value is not None and not 1 <= value <= _LARGEST:
            raise _refuse(model, field, f"must be between 1 and {_LARGEST}")


def _refuse(model: ModelFields, field: str, relation: str, nearest: str = "") -> UserError:
    return UserError(f"model.{field}", getattr(model, field), relation, nearest)


_LARGEST = 10**8
_MOST_LAYERS = 10_000
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "max_position_embeddings",
    "make_vocab_size_divisible_by",
)
_ATTENTION_SIZES = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "window_size",
    "mtp_num_layers",
)
_EXPERT_SIZES = (
    "num_moe_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
)
_GATED_DELTA_NET_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
_MIXER_SIZES = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    *_GATED_DELTA_NET_HEADS,
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
)
