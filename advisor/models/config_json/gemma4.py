"""What Gemma 4 has next to the shape in a Hugging Face config.json.

Source: transformers 5.23.0, models/gemma4 (configuration and modeling), and
integrations/heterogeneity. Heads are as wide as `head_dim` in layers with a window; older files
name those of the others by `global_head_dim`, files of this release in `per_layer_config`.
"""

from typing import Any

from advisor.base.units import whole_number
from advisor.models import options
from advisor.models.config_json.gemma import Variant
from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.config_json.mixtral import AS_BRIDGE_RUNS_EXPERTS
from advisor.models.config_json.windows import Windows, layer_windows, skip_pattern


def _gemma4(config: HuggingFaceConfig) -> dict[str, Any]:
    """Norms on both sides of attention and MLP, and of values. Whether a layer has a window decides
    how wide its heads are, however long the window is. The proportional rotary of layers without
    one turns all their channels, some of them by nothing."""
    if config.get("use_bidirectional_attention", str, None) == "all":
        raise config.refuse("use_bidirectional_attention", "only causal attention is modelled")
    windowed = _windowed(config)
    head_dim, groups = _global_heads(config, windowed)
    return {
        "window_size": config.positive("sliding_window", 512) if any(windowed) else None,
        "window_attn_skip_freq": skip_pattern(windowed) if any(windowed) else None,
        "global_kv_channels": head_dim,
        "num_global_query_groups": groups,
        "attention_k_eq_v": config.get("attention_k_eq_v", bool, False),
        "rotary_percent": 1.0,
        "v_layernorm": True,
        "layer_scalar": True,
        "num_kv_shared_layers": config.get("num_kv_shared_layers", int, 0),
        "use_double_wide_mlp": config.get("use_double_wide_mlp", bool, False),
        "hidden_size_per_layer_input": config.get("hidden_size_per_layer_input", int, 256) or None,
        "vocab_size_per_layer_input": config.positive("vocab_size_per_layer_input", 262144),
        "norm_placement": options.NormPlacement.PRE_AND_POST,
        "apply_embedding_scaling": True,
        "final_logit_softcapping": config.get("final_logit_softcapping", float, None),
        "transformer_impl": options.TransformerImpl.TRANSFORMERS,
        **(_experts(config) if config.get("enable_moe_block", bool, False) else {}),
    }


def _experts(config: HuggingFaceConfig) -> dict[str, Any]:
    """Experts of every layer next to its dense MLP, which is a shared expert here."""
    return {
        "num_moe_experts": config.positive("num_experts"),
        "moe_router_topk": config.positive("top_k_experts"),
        "moe_ffn_hidden_size": config.positive("moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": config.positive("intermediate_size"),
        "moe_separate_norms": True,
        **AS_BRIDGE_RUNS_EXPERTS,
    }


def _windowed(config: HuggingFaceConfig) -> list[bool]:
    """Which layers have a window; never the last one, whatever the file says."""
    return [*layer_windows(config, Windows(every=6))[:-1], False]


def _global_heads(config: HuggingFaceConfig, windowed: list[bool]) -> tuple[int, int]:
    """Width and number of key and value heads of the layers without a window."""
    usual = config.positive("head_dim", 256), config.positive("num_key_value_heads", 4)
    if "per_layer_config" not in config.values:
        named = config.positive("num_global_key_value_heads", usual[1])
        groups = named if config.get("attention_k_eq_v", bool, False) else usual[1]
        return config.positive("global_head_dim", 512), groups
    read = config.get("per_layer_config", dict[str, dict[str, int]], {})
    numbers = {whole_number(layer): own for layer, own in read.items()}
    layers = {layer: own for layer, own in numbers.items() if layer is not None}
    own = [layers.get(layer, {}) for layer, has in enumerate(windowed) if not has]
    others = [layers.get(layer, {}) for layer, has in enumerate(windowed) if has]
    if len(layers) < len(read) or any(others) or any(one != own[0] for one in own):
        raise config.refuse(
            "per_layer_config",
            "must be the same of all layers without a window, and of no other",
        )
    if not set(own[0]) <= {"head_dim", "num_key_value_heads"}:
        raise config.refuse("per_layer_config", "must hold head_dim and num_key_value_heads alone")
    return own[0].get("head_dim", usual[0]), own[0].get("num_key_value_heads", usual[1])


_KEYS = keys(
    """
    hidden_activation use_bidirectional_attention final_logit_softcapping global_head_dim
    num_global_key_value_heads per_layer_config attention_k_eq_v vocab_size_per_layer_input
    hidden_size_per_layer_input num_kv_shared_layers use_double_wide_mlp enable_moe_block
    num_experts top_k_experts moe_intermediate_size
    """
)
GEMMA4 = Variant(_KEYS, _gemma4)
