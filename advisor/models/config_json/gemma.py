"""What Gemma, OLMo, Seed-OSS and Llama 4 have next to the shape in a Hugging Face config.json.

Source: transformers 5.23.0, models/gemma2, gemma3, llama4, olmo2, olmo3 and seed_oss.
How a block is run is not in the file: as Megatron Bridge 0.3.1 builds it (models/gemma,
models/llama), OLMo as transformers.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from advisor.models import options
from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.config_json.windows import each_nth
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern


class Variant(Struct, frozen=True):
    """Keys of one family alone, and the fields of ModelSpec that they and its classes make."""

    keys: frozenset[str]
    fields: Callable[[HuggingFaceConfig], dict[str, Any]]


def _gemma(config: HuggingFaceConfig) -> dict[str, Any]:
    """Norms on both sides, scaled embeddings; fast_gelu is not fused with its gate."""
    if config.get("use_bidirectional_attention", bool, False):
        raise config.refuse("use_bidirectional_attention", "only causal attention is modelled")
    return {
        "norm_placement": options.NormPlacement.PRE_AND_POST,
        "layernorm_zero_centered_gamma": True,
        "apply_embedding_scaling": True,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
    }


def _gemma2(config: HuggingFaceConfig) -> dict[str, Any]:
    """Capped scores, which only unfused attention computes, and capped logits."""
    scores, logits = (
        _cap(config, key, default)
        for key, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0))
    )
    fields = _gemma(config)
    fields |= {"attn_logit_softcapping": scores, "final_logit_softcapping": logits}
    if scores is not None:
        fields["attention_backend"] = options.AttentionBackend.UNFUSED
        fields["attention_softmax_in_fp32"] = False
    return fields


def _cap(config: HuggingFaceConfig, key: str, default: float) -> float | None:
    """A cap; null, unlike an absent key, means none."""
    value: float | None = config.get(key, float, None if key in config.values else default)
    return value


def _gemma3(config: HuggingFaceConfig) -> dict[str, Any]:
    """Flash attention: Bridge turns cuDNN's off. Its classes read caps and apply none."""
    return {**_gemma(config), "attention_backend": options.AttentionBackend.FLASH}


def _olmo2(config: HuggingFaceConfig) -> dict[str, Any]:
    return {
        "norm_placement": options.NormPlacement.POST,
        "qk_layernorm_across_heads": True,
        "transformer_impl": options.TransformerImpl.TRANSFORMERS,
    }


def _seed_oss(config: HuggingFaceConfig) -> dict[str, Any]:
    """Biases of q, k and v alone, and dropout unless the file says otherwise."""
    return {
        "add_qkv_bias": config.get("attention_bias", bool, True),
        "attention_dropout": config.get("attention_dropout", float, 0.1),
        "hidden_dropout": config.get("residual_dropout", float, 0.1),
    }


def _llama4(config: HuggingFaceConfig) -> dict[str, Any]:
    """Experts next to a shared one in each Nth layer, rotary positions but in each Nth layer,
    attention in chunks where they are. The dense layers' width has a key of its own, and no
    auxiliary loss is added."""
    width = config.positive("intermediate_size", 8192)
    bare = _bare_layers(config)
    return {
        "ffn_hidden_size": config.positive("intermediate_size_mlp", 16384),
        "num_moe_experts": config.positive("num_local_experts", 16),
        "moe_layer_freq": _expert_layers(config),
        "moe_ffn_hidden_size": width,
        "moe_router_topk": config.positive("num_experts_per_tok", 1),
        "moe_router_score_function": options.ScoreFunction.SIGMOID,
        "moe_apply_probs_on_input": True,
        "moe_shared_expert_intermediate_size": width,
        "moe_shared_expert_overlap": True,
        "moe_token_dispatcher_type": options.TokenDispatcher.ALLTOALL,
        "moe_grouped_gemm": True,
        "no_rope_freq": bare,
        "attention_chunk_size": config.get(
            "attention_chunk_size", int, None if "attention_chunk_size" in config.values else 8192
        ),
        "qk_l2_norm": config.get("use_qk_norm", bool, True),
        "apply_rope_fusion": False,
    }


def _expert_layers(config: HuggingFaceConfig) -> LayerPattern:
    """Layers of moe_layers, or each interleave_moe_layer_step-th."""
    layers = config.positive("num_hidden_layers")
    step = config.positive("interleave_moe_layer_step", 1)
    chosen = config.get("moe_layers", tuple[int, ...], tuple(range(step - 1, layers, step)))
    experts = [int(layer in chosen) for layer in range(layers)]
    if all(experts):
        return EVERY_LAYER
    return _repeated(experts) or LayerPattern.read(experts, "moe_layers")


def _repeated(entries: list[int]) -> LayerPattern | None:
    """``[0,1]*24`` for what repeats so."""
    head = entries[: entries.index(1) + 1] if 1 in entries else []
    times = len(entries) // len(head) if head else 0
    if head * times != entries:
        return None
    return LayerPattern(f"[{','.join(map(str, head))}]*{times}")


def _bare_layers(config: HuggingFaceConfig) -> LayerPattern:
    """Layers without rotary positions: the zeros of no_rope_layers, which is named for the
    opposite, or each Nth; those alone see the whole sequence."""
    layers = config.positive("num_hidden_layers")
    every = config.positive("no_rope_layer_interval", 4)
    rotary = config.get("no_rope_layers", tuple[int, ...], ())
    rotary = rotary or tuple(int(layer % every != 0) for layer in range(1, layers + 1))
    types = tuple("chunked_attention" if has else "full_attention" for has in rotary)
    if config.get("layer_types", tuple[str, ...], types) != types:
        raise config.refuse(
            "layer_types", "must be chunked_attention exactly where no_rope_layers is 1"
        )
    bare = [not has for has in rotary]
    return each_nth(bare) or LayerPattern.read([int(one) for one in bare], "no_rope_layers")


# Scaling of queries, and names that older files repeat, change no size.
_GEMMA_KEYS = keys(
    """
    hidden_activation query_pre_attn_scalar use_bidirectional_attention attn_logit_softcapping
    final_logit_softcapping cache_implementation rope_local_base_freq _sliding_window_pattern
    """
)
_LLAMA4_KEYS = keys(
    """
    intermediate_size_mlp num_local_experts num_experts_per_tok moe_layers interleave_moe_layer_step
    use_qk_norm no_rope_layers no_rope_layer_interval attention_chunk_size router_aux_loss_coef
    attn_temperature_tuning floor_scale attn_scale for_llm_compressor
    """
)
GEMMA2, GEMMA3 = Variant(_GEMMA_KEYS, _gemma2), Variant(_GEMMA_KEYS, _gemma3)
LLAMA4, OLMO2 = Variant(_LLAMA4_KEYS, _llama4), Variant(keys(""), _olmo2)
SEED_OSS = Variant(keys("attention_bias residual_dropout"), _seed_oss)
