"""Layers of models with linear attention in a Hugging Face config.json: Qwen3-Next, Qwen3.5,
Nemotron-H.

Source: transformers 5.23.0, models/qwen3_next, qwen3_5, qwen3_5_moe and nemotron_h (configuration
and modeling).
"""

from collections.abc import Mapping
from typing import Any

from advisor.models.config_json.families import Family, family_of
from advisor.models.config_json.keys import HuggingFaceConfig
from advisor.models.config_json.routed_layers import group_fields
from advisor.models.layer_pattern import LayerPattern
from advisor.models.spec import ModelSpec

_LETTERS = {
    **dict.fromkeys(("linear_attention", "mamba"), "M"),
    **dict.fromkeys(("full_attention", "attention"), "*"),
    **{"mlp": "-", "moe": "E"},
}


def linear_layers(
    config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Ones where layer_types says linear_attention; of an interval N, all but every Nth layer."""
    kinds = config.get("layer_types", tuple[str, ...], None)
    interval = config.positive("full_attention_interval", 4)
    layers = range(1, before["num_layers"] + 1)
    if kinds is None or kinds == tuple(
        "full_attention" if layer % interval == 0 else "linear_attention" for layer in layers
    ):
        return {"linear_attention_freq": LayerPattern(str(interval))}
    if not set(kinds) <= {"full_attention", "linear_attention"}:
        raise config.refuse("layer_types", "may hold only full_attention and linear_attention")
    entries = [int(kind == "linear_attention") for kind in kinds]
    return {"linear_attention_freq": LayerPattern.read(entries, "layer_types")}


def nemotron_layers(config: HuggingFaceConfig, *_: Any) -> dict[str, Any]:
    """Nemotron-H and Nemotron 3: one letter, or one name, a layer; with experts where one has."""
    pattern = _pattern(config)
    fields = {"hybrid_layer_pattern": pattern, "num_layers": len(pattern)}
    if "E" not in pattern:
        return fields
    groups = group_fields(config, config.get("n_group", int, 1), 1)
    return fields | family_of("nemotron_experts").read(config, ModelSpec) | groups


def _pattern(config: HuggingFaceConfig) -> str:
    names = config.get("layers_block_type", tuple[str, ...], ())
    unknown = sorted(set(names) - set(_LETTERS))
    if unknown:
        raise config.refuse(
            "layers_block_type",
            f"has {unknown[0]}, which is not modelled",
            "use linear_attention, full_attention, mlp or moe",
        )
    default = "".join(_LETTERS[name] for name in names) or None
    pattern: str | None = config.get("hybrid_override_pattern", str, default)
    if not pattern:
        raise config.refuse("hybrid_override_pattern", "is missing")
    return pattern
