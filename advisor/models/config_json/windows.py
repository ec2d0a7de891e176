"""Sliding windows in a Hugging Face config.json.

Source: transformers 4.57.1 and 5.23.0, configuration_*.py of mistral, qwen2, gemma2 and gemma3.
"""

from typing import Any

from msgspec import Struct

from advisor.models.checks import MOST_LAYERS
from advisor.models.config_json.keys import HuggingFaceConfig
from advisor.models.layer_pattern import LayerPattern

_SLIDING = {"sliding_attention": True, "full_attention": False}


class Windows(Struct, frozen=True, kw_only=True):
    """Windows of one family's classes: of `default` tokens where the key is absent.

    by_flag: use_sliding_window decides, and max_window_layers says how many layers have none.
    every: each Nth layer has none; sliding_window_pattern may say another number.
    """

    default: int | None = None
    by_flag: bool = False
    every: int | None = None

    @property
    def keys(self) -> frozenset[str]:
        """Every key that is read next to layer_types and sliding_window."""
        flag = {"use_sliding_window", "max_window_layers"} if self.by_flag else set()
        return frozenset(flag | ({"sliding_window_pattern"} if self.every else set()))


def window_fields(
    config: HuggingFaceConfig, family: Windows | None, context: int
) -> dict[str, Any]:
    """Fields of ModelSpec about windows; none where they are as long as the `context`.

    Without `family` the classes have no windows, and a key that asks for one is refused.
    """
    _layer_types(config, _SLIDING if family else {"full_attention": False})
    default = family.default if family and "sliding_window" not in config.values else None
    window = config.get("sliding_window", int, default)
    if window is None or window >= context:
        return {}
    if family is None:
        raise config.refuse("sliding_window", "this family has no sliding-window attention")
    windowed = layer_windows(config, family)
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
