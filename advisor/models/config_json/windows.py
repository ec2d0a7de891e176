"""Sliding windows in a Hugging Face config.json, and what else Gemma 4's layers with one have.

Source: transformers 4.57.1 and 5.23.0, configuration_*.py of mistral, qwen2, gemma2, gemma3 and
gemma4, integrations/heterogeneity.
"""

from collections.abc import Mapping
from typing import Any

from advisor.base.units import whole_number
from advisor.models.checks import MOST_LAYERS
from advisor.models.config_json.families import Family, Windows, family_of
from advisor.models.config_json.keys import HuggingFaceConfig
from advisor.models.layer_pattern import LayerPattern
from advisor.models.spec import ModelSpec

_SLIDING = {"sliding_attention": True, "full_attention": False}


def window_fields(
    config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of ModelSpec about windows; none where they are as long as the context. Where the
    classes have no windows, a key that asks for one is refused."""
    own = family.windows
    _layer_types(config, _SLIDING if own else {"full_attention": False})
    default = own.default if own and "sliding_window" not in config.values else None
    window = config.get("sliding_window", int, default)
    if window is None or window >= before["max_position_embeddings"]:
        return {}
    if own is None:
        raise config.refuse("sliding_window", "this family has no sliding-window attention")
    windowed = layer_windows(config, own)
    if not any(windowed):
        return {}
    return {
        "window_size": config.positive("sliding_window", window),
        "window_attn_skip_freq": skip_pattern(windowed),
    }


def _layer_types(config: HuggingFaceConfig, known: dict[str, bool]) -> tuple[str, ...]:
    types: tuple[str, ...] = config.get("layer_types", tuple[str, ...], ())
    if not set(types) <= set(known):
        raise config.refuse("layer_types", f"must hold only {' and '.join(sorted(known))}")
    return types


def layer_windows(config: HuggingFaceConfig, family: Windows) -> list[bool]:
    """Which layers have a window: those that layer_types calls so, else by the family's keys."""
    layers, types = config.positive("num_hidden_layers"), _layer_types(config, _SLIDING)
    if layers > MOST_LAYERS:
        raise config.refuse("num_hidden_layers", f"must be at most {MOST_LAYERS}")
    if types and len(types) != layers:
        raise config.refuse("layer_types", f"must list num_hidden_layers = {layers} layers")
    if types:
        return [_SLIDING[name] for name in types]
    if family.by_flag:
        first = config.get("max_window_layers", int, 28)
        uses = config.get("use_sliding_window", bool, False)
        return [uses and layer >= first for layer in range(layers)]
    if family.every is None:
        return [True] * layers
    every = config.positive("sliding_window_pattern", family.every)
    return [layer % every != 0 for layer in range(1, layers + 1)]


def skip_pattern(windowed: list[bool]) -> LayerPattern | None:
    """Megatron's shortest words: None for all layers, a number for each Nth without, a list."""
    if all(windowed):
        return None
    return each_nth([not has for has in windowed]) or LayerPattern.read(
        [int(has) for has in windowed], "layer_types"
    )


def each_nth(chosen: list[bool]) -> LayerPattern | None:
    """``4`` where every fourth layer is chosen and no other; None where that is no rule."""
    first = chosen.index(True) + 1 if any(chosen) else len(chosen) + 1
    by_rule = [layer % first == 0 for layer in range(1, len(chosen) + 1)]
    return LayerPattern(str(first)) if chosen == by_rule else None


def gemma4_fields(
    config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Whether a layer has a window decides how wide its heads are, however long the window is; the
    last layer has none, whatever the file says. Experts of every layer stand next to its dense MLP,
    which is a shared expert here."""
    windowed = [*layer_windows(config, Windows(every=6))[:-1], False]
    head_dim, groups = _global_heads(config, windowed)
    has_experts = config.get("enable_moe_block", bool, False)
    return {
        "window_size": config.positive("sliding_window", 512) if any(windowed) else None,
        "window_attn_skip_freq": skip_pattern(windowed) if any(windowed) else None,
        "global_kv_channels": head_dim,
        "num_global_query_groups": groups,
        "rotary_percent": 1.0,
        **(family_of("gemma4_experts").read(config, ModelSpec) if has_experts else {}),
    }


def _global_heads(config: HuggingFaceConfig, windowed: list[bool]) -> tuple[int, int]:
    """Width and number of key and value heads of the layers without a window: older files name the
    width by global_head_dim, files of transformers 5.23 in per_layer_config."""
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
            "per_layer_config", "must be the same of all layers without a window, and of no other"
        )
    if not set(own[0]) <= {"head_dim", "num_key_value_heads"}:
        raise config.refuse("per_layer_config", "must hold head_dim and num_key_value_heads alone")
    return own[0].get("head_dim", usual[0]), own[0].get("num_key_value_heads", usual[1])
