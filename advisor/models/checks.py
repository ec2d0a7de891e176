"""What a model's shape excludes: UserErrors on what Megatron refuses, or what is not modelled.

Sources: megatron-core 0.16.1 transformer/transformer_config.py, ssm/mamba_mixer.py; Megatron Bridge
0.3.1 models/gemma/*_provider.py, models/llama/llama4_utils.py; transformers 5.23.0 models/gemma2,
gemma3, llama4, olmo2.
"""

from collections.abc import Callable, Iterator
from math import inf, nextafter
from typing import ClassVar, Final

from advisor.base.rule import Match, Rule, refuse
from advisor.base.units import nearest_divisors
from advisor.models import options
from advisor.models.layer_kind import LayerKind, Mixer
from advisor.models.layer_kinds import (
    LINEAR_MIXERS,
    hybrid_kinds,
    layer_kinds,
    mamba_heads,
    with_linear_attention,
)
from advisor.models.model_fields import ModelFields


def check_model(model: ModelFields) -> None:
    """Raise UserError on a shape that is none, or that excludes itself."""
    refuse(_SHAPE, model)
    skipped = model.window_attn_skip_freq
    if skipped is not None and not skipped.isdigit():
        skipped.expand(model.num_layers, "model.window_attn_skip_freq")
    if model.num_moe_experts is not None:
        refuse(_EXPERTS, model)
    refuse(_VARIANTS, model)
    if model.no_rope_freq is not None:
        model.no_rope_freq.expand_from_one(model.num_layers, "model.no_rope_freq")
    model.moe_layer_freq.expand(model.num_layers, "model.moe_layer_freq")
    refuse(_MIXERS, model)
    if model.linear_attention_freq is not None:
        with_linear_attention((LayerKind(),) * model.num_layers, model.linear_attention_freq)
    mixers = {kind.mixer for kind in layer_kinds(model)}
    of_mixers = (
        (Mixer.GATED_DELTA_NET in mixers, _DELTA_NET),
        (Mixer.MAMBA in mixers, _MAMBA),
        (model.has_sparse_attention, _SPARSE),
        (mixers & LINEAR_MIXERS or model.attention_output_gate, _PLAIN_ATTENTION),
    )
    refuse((rule for holds, rules in of_mixers if holds for rule in rules), model)


_Test = Callable[[ModelFields], object]


class ModelRule(Rule[[ModelFields]], frozen=True, kw_only=True):
    """A rule on the fields of a model."""

    names: ClassVar[tuple[str, ...]] = ("model",)


def _on(
    name: str, when: _Test, reason: str, fix: str = "", given: _Test | None = None
) -> ModelRule:
    return ModelRule(field=f"model.{name}", when=when, reason=reason, fix=fix, given=given)


_LARGEST: Final = 10**8
MOST_LAYERS: Final = 1_000
"""The deepest that was trained (DeepNet, arXiv 2203.00555); each layer costs time to predict."""
_ABOVE_0, _BELOW_1 = nextafter(0.0, 1.0), nextafter(1.0, 0.0)
_POSITIVE: Final = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "vocab_size", "max_position_embeddings", "make_vocab_size_divisible_by"),
)
_DROPOUTS: Final = ("hidden_dropout", "attention_dropout")


def _between(name: str, low: float, high: float, reason: str, fix: str = "") -> ModelRule:
    """A field that may be unset."""

    def is_outside(m: ModelFields) -> bool:
        value = getattr(m, name)
        return value is not None and not low <= value <= high

    return _on(name, is_outside, reason, fix)


def _sizes(*names: str) -> Iterator[ModelRule]:
    return (_between(name, 1, _LARGEST, f"must be between 1 and {_LARGEST}") for name in names)


def _is_set(name: str, given: _Test, reason: str) -> ModelRule:
    """A field that may not be set where `given` holds."""
    return _on(name, lambda m: getattr(m, name), reason, "", given)


def _divides_heads(name: str) -> ModelRule:
    def near(m: ModelFields) -> str:
        heads, groups = m.num_attention_heads, getattr(m, name) or 1
        return nearest_divisors(heads, groups) if heads % groups else ""

    reason = "must divide num_attention_heads = {model.num_attention_heads}"
    return _on(name, near, reason, "nearest: {found}")


_SHAPE: Final = (
    *(_between(name, 1, inf, "must be at least 1") for name in _POSITIVE),
    *(_between(name, 1, _LARGEST, f"must not exceed {_LARGEST}") for name in _POSITIVE),
    _between("num_layers", 1, MOST_LAYERS, f"must be at most {MOST_LAYERS}"),
    *(_between(name, 0.0, _BELOW_1, "must be at least 0 and below 1") for name in _DROPOUTS),
    _between("rotary_percent", _ABOVE_0, 1.0, "must be above 0 and at most 1"),
    _divides_heads("num_query_groups"),
    _divides_heads("num_global_query_groups"),
    *_sizes("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim"),
    *_sizes("v_head_dim", "window_size", "mtp_num_layers", "global_kv_channels"),
    *_sizes("num_global_query_groups"),
    _on(
        "num_query_groups",
        lambda m: m.num_query_groups != m.num_attention_heads,
        "must equal num_attention_heads under multi-latent attention",
        given=lambda m: m.multi_latent_attention,
    ),
    _is_set(
        "window_size",
        lambda m: m.multi_latent_attention,
        "is not modelled with multi-latent attention",
    ),
    _is_set("window_attn_skip_freq", lambda m: m.window_size is None, "needs window_size"),
    _on(
        "moe_ffn_hidden_size",
        lambda m: m.num_moe_experts is None and m.moe_ffn_hidden_size is not None,
        "needs num_moe_experts",
        "leave it unset",
    ),
)


def _uneven_groups(m: ModelFields) -> Match | None:
    groups, experts = m.moe_router_num_groups, m.num_moe_experts or 0
    if groups is None or (groups >= 1 and experts % groups == 0):
        return None
    return Match(
        f"must divide num_moe_experts = {experts}", f"nearest: {nearest_divisors(experts, groups)}"
    )


def _is_softmax(m: ModelFields) -> bool:
    return m.moe_router_score_function is options.ScoreFunction.SOFTMAX


def _is_sinkhorn(m: ModelFields) -> bool:
    return m.moe_router_load_balancing_type is options.LoadBalancing.SINKHORN


def _has_groups(m: ModelFields) -> bool:
    return m.moe_router_group_topk is not None


_EXPERTS: Final = (
    *_sizes("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    *_sizes("moe_shared_expert_intermediate_size", "moe_latent_size"),
    _on(
        "moe_router_topk",
        lambda m: m.moe_router_topk > (m.num_moe_experts or 0),
        "must not exceed num_moe_experts = {model.num_moe_experts}",
    ),
    _is_set(
        "moe_router_enable_expert_bias", _is_softmax, "needs moe_router_score_function = sigmoid"
    ),
    _on(
        "moe_router_topk",
        lambda m: m.moe_router_topk == 1 and not m.moe_router_pre_softmax,
        "needs moe_router_pre_softmax, else the softmax is over one expert",
        given=lambda m: _is_softmax(m) and not _is_sinkhorn(m),
    ),
    _is_set("moe_aux_loss_coeff", _is_sinkhorn, "must be 0 under sinkhorn routing"),
    _is_set(
        "moe_router_group_topk",
        lambda m: m.moe_router_num_groups is None,
        "needs moe_router_num_groups",
    ),
    _on("moe_router_num_groups", _uneven_groups, "", given=_has_groups),
    _on(
        "moe_router_group_topk",
        lambda m: not 1 <= (m.moe_router_group_topk or 0) <= (m.moe_router_num_groups or 0),
        "must be between 1 and moe_router_num_groups = {model.moe_router_num_groups}",
        given=_has_groups,
    ),
    _is_set(
        "moe_pad_expert_input_to_capacity",
        lambda m: m.moe_expert_capacity_factor is None,
        "needs moe_expert_capacity_factor",
    ),
    _between("moe_expert_capacity_factor", _ABOVE_0, inf, "must be positive", "leave it unset"),
    _is_set("moe_expert_capacity_factor", _is_sinkhorn, "cannot be combined with sinkhorn routing"),
    _is_set(
        "moe_shared_expert_overlap",
        lambda m: (
            m.moe_shared_expert_intermediate_size
            and m.moe_token_dispatcher_type is options.TokenDispatcher.ALLGATHER  # flex from 0.17
        ),
        "needs the alltoall or flex dispatcher",
    ),
    _is_set(
        "moe_latent_size",
        lambda m: m.moe_shared_expert_overlap,
        "cannot be combined with moe_shared_expert_overlap",
    ),
    _is_set(
        "moe_apply_probs_on_input", lambda m: m.moe_router_topk != 1, "needs moe_router_topk = 1"
    ),
)


def _is_foreign(m: ModelFields) -> bool:
    return not m.transformer_impl.norms_whole_branches


_ABLE: Final = " or ".join(impl for impl in options.TransformerImpl if impl.norms_whole_branches)
_NO_SUCH: Final = f"needs transformer_impl = {_ABLE}: other implementations have no such layer"


def _lacks_keys(m: ModelFields) -> bool:
    """Whether a layer that reuses keys has none of its kind before those that do."""
    kinds = layer_kinds(m)
    return {kind.mixer for kind in kinds} != {k.mixer for k in kinds if not k.reuses_keys}


_GEMMA4: Final = (
    *("global_kv_channels", "v_layernorm", "layer_scalar", "moe_separate_norms"),
    *("num_kv_shared_layers", "hidden_size_per_layer_input"),
)
_VARIANTS: Final = (
    *(
        _between(name, _ABOVE_0, _LARGEST, f"must be positive and at most {_LARGEST}")
        for name in ("attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size")
    ),
    _on(
        "norm_placement",
        lambda m: m.norm_placement is options.NormPlacement.POST,
        _NO_SUCH,
        given=_is_foreign,
    ),
    *(_is_set(name, _is_foreign, _NO_SUCH) for name in ("qk_layernorm_across_heads", *_GEMMA4)),
    *(
        _is_set(name, lambda m: m.global_kv_channels is None, "needs global_kv_channels")
        for name in ("num_global_query_groups", "attention_k_eq_v", "num_kv_shared_layers")
    ),
    _is_set("hidden_size_per_layer_input", lambda m: not m.layer_scalar, "needs layer_scalar"),
    *_sizes("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    _between("num_kv_shared_layers", 0, MOST_LAYERS, f"must be between 0 and {MOST_LAYERS}"),
    _is_set("use_double_wide_mlp", lambda m: m.num_moe_experts, "is not modelled with experts"),
    _on("num_kv_shared_layers", _lacks_keys, "must leave a layer with a window, and one without"),
    _is_set(
        "moe_separate_norms",
        lambda m: m.moe_shared_expert_intermediate_size != m.ffn_hidden_size,
        "needs moe_shared_expert_intermediate_size = {model.ffn_hidden_size}, as ffn_hidden_size",
    ),
    _is_set("qk_layernorm_across_heads", lambda m: not m.qk_layernorm, "needs qk_layernorm"),
    _is_set("qk_l2_norm", lambda m: m.qk_layernorm, "cannot be combined with qk_layernorm"),
    _is_set(
        "attn_logit_softcapping",
        lambda m: m.attention_backend not in ("auto", "unfused"),
        "needs attention_backend = unfused: {model.attention_backend} has no kernel with "
        "attention logit softcapping",
    ),
    _is_set(
        "final_logit_softcapping",
        lambda m: m.mtp_num_layers is not None,
        "is not modelled with multi-token prediction",
    ),
    _is_set(
        "attention_chunk_size",
        lambda m: m.attention_backend == "unfused" or m.window_size is not None,
        "is not modelled with unfused attention or windows",
    ),
    *(
        _is_set(
            name, lambda m: m.multi_latent_attention, "is not modelled with multi-latent attention"
        )
        for name in ("qk_l2_norm", "no_rope_freq", "attention_chunk_size", "attn_logit_softcapping")
    ),
)


def _divides(name: str, other: str) -> ModelRule:
    return _on(
        name,
        lambda m: getattr(m, other) % getattr(m, name),
        f"must divide {other} = {{model.{other}}}",
    )


_INDEXED: Final = (
    *("multi_latent_attention", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"),
)
_GDN: Final = options.AttentionVariant.GATED_DELTA_NET
_MIXERS: Final = (
    *_sizes("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim"),
    *_sizes("linear_num_key_heads", "linear_num_value_heads", "mamba_state_dim"),
    *_sizes("mamba_head_dim", "mamba_num_groups", "mamba_num_heads"),
    *_sizes(*_INDEXED[1:]),
    _on(
        "linear_attention_freq",
        lambda m: (m.experimental_attention_variant == _GDN) != bool(m.linear_attention_freq),
        f"needs experimental_attention_variant = {_GDN}",
        "set both, or neither",
    ),
    _on(
        "hybrid_layer_pattern",
        lambda m: (
            len(hybrid_kinds(m.hybrid_layer_pattern)) != m.num_layers
            and f"{len(hybrid_kinds(m.hybrid_layer_pattern))}"
        ),
        "has {found} layers, but num_layers = {model.num_layers}",
        given=lambda m: m.hybrid_layer_pattern is not None,
    ),
    *(
        _is_set(
            name,
            lambda m: m.hybrid_layer_pattern is not None,
            "is not modelled together with hybrid_layer_pattern",
        )
        for name in ("linear_attention_freq", "window_size", "mtp_num_layers")
    ),
    _on(
        "hybrid_layer_pattern",
        lambda m: m.num_moe_experts is None and "E" in (m.hybrid_layer_pattern or ""),
        "has expert layers (E), which need num_moe_experts",
    ),
)
_DELTA_NET: Final = (_divides("linear_num_key_heads", "linear_num_value_heads"),)
_MAMBA: Final = (
    _on(
        "mamba_head_dim",
        lambda m: (
            m.mamba_num_heads is None
            and 2 * m.hidden_size % m.mamba_head_dim
            and f"{2 * m.hidden_size}"
        ),
        "must divide 2 x hidden_size = {found}",
    ),
    _on(
        "mamba_num_groups",
        lambda m: mamba_heads(m) % m.mamba_num_groups and f"{mamba_heads(m)}",
        "must divide the {found} heads of Mamba",
    ),
)
_SPARSE: Final = (
    _on(
        "experimental_attention_variant",
        lambda m: not all(getattr(m, name) for name in _INDEXED),
        f"needs {', '.join(_INDEXED)}",
    ),
    _is_set("qk_layernorm", lambda m: m.q_lora_rank is None, "needs q_lora_rank"),
)
"""megatron-core 0.19.2 experimental_attention_variant_module_specs.py, mla_qk_norm_config.py."""
_PLAIN_ATTENTION: Final = (
    _is_set(
        "multi_latent_attention",
        lambda _: True,
        "is not modelled together with linear attention, Mamba or an output gate",
    ),
    _is_set(
        "window_size", lambda _: True, "is not modelled together with linear attention or Mamba"
    ),
)
"""Softmax attention next to such layers, or with an output gate, is plain MHA or GQA."""
