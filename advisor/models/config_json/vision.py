"""The vision tower in a config.json of Qwen2.5-VL, Qwen3-VL or Qwen3-VL-MoE.

Source of names, and of values where a key is absent: transformers 5.23.0
models/qwen2_5_vl/configuration_qwen2_5_vl.py, models/qwen3_vl and models/qwen3_vl_moe.
"""

from typing import Any, Final

from msgspec.structs import replace

from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.options import Activation, Normalization
from advisor.models.vision import VisionTower

TEXT_TYPES: Final = {"qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
"""The family of the decoder of each model type with a vision tower."""
_OUTER: Final = keys("architectures model_type text_config vision_config rope_scaling")
_KEYS: Final = keys(
    """
    depth hidden_size intermediate_size num_heads patch_size temporal_patch_size in_channels
    in_chans spatial_merge_size spatial_patch_size out_hidden_size hidden_act window_size
    fullatt_block_indexes deepstack_visual_indexes num_position_embeddings tokens_per_second
    model_type
    """
)
_ACTIVATIONS: Final = {"silu": Activation.SWIGLU, "gelu_pytorch_tanh": Activation.GELU}


def text_of(config: HuggingFaceConfig) -> HuggingFaceConfig:
    """The decoder of a model with a tower: a section of its own, or all other keys of the file
    (transformers before 4.52). Its rotary positions have three axes, which changes no size."""
    inner = config.values.get("text_config")
    given = inner if isinstance(inner, dict) else config.values
    values = {key: value for key, value in given.items() if key not in _OUTER}
    tied = config.values.get("tie_word_embeddings")
    usual = {"model_type": TEXT_TYPES[str(config.values["model_type"])]}
    if tied is not None:
        values.setdefault("tie_word_embeddings", tied)
    ids = ("image_token_id", "video_token_id", "vision_token_id")
    ends = ("vision_start_token_id", "vision_end_token_id")
    return replace(config, values=usual | {k: v for k, v in values.items() if k not in ids + ends})


def tower_of(config: HuggingFaceConfig, hidden_size: int) -> VisionTower:
    """The tower of a file; UserError where it is missing, or another than the class has."""
    given = config.values.get("vision_config")
    if not isinstance(given, dict):
        raise config.refuse("vision_config", "is missing")
    its = replace(config, values=given)
    its.check_keys(_KEYS)
    older = config.values["model_type"] == "qwen2_5_vl"
    width = its.positive("out_hidden_size", 3584)
    if width != hidden_size:
        raise its.refuse("out_hidden_size", f"must be the decoder's hidden_size = {hidden_size}")
    activation = its.get("hidden_act", str, "silu" if older else "gelu_pytorch_tanh")
    if _ACTIVATIONS.get(activation) is not (Activation.SWIGLU if older else Activation.GELU):
        raise its.refuse("hidden_act", "is not a modelled activation of this tower")
    sizes: dict[str, Any] = {
        "num_layers": its.positive("depth", 32 if older else 27),
        "hidden_size": its.positive("hidden_size", 3584 if older else 1152),
        "ffn_hidden_size": its.positive("intermediate_size", 3420 if older else 4304),
        "num_attention_heads": its.positive("num_heads", 16),
        "patch_size": its.positive("patch_size", 14 if older else 16),
        "temporal_patch_size": its.positive("temporal_patch_size", 2),
        "in_channels": its.positive("in_channels", its.positive("in_chans", 3)),
        "spatial_merge_size": its.positive("spatial_merge_size", 2),
    }
    if older:
        full = its.get("fullatt_block_indexes", tuple[int, ...], (7, 15, 23, 31))
        window = its.positive("window_size", 112)
        windows: dict[str, Any] = {"window_size": window, "full_attention_layers": full}
        return VisionTower(**sizes, **windows, has_input_embeddings=True)
    return VisionTower(
        **sizes,
        patch_bias=True,
        deepstack_layers=its.get("deepstack_visual_indexes", tuple[int, ...], (8, 16, 24)),
        num_position_embeddings=its.positive("num_position_embeddings", 2304),
        normalization=Normalization.LAYER_NORM,
        activation=Activation.GELU,
    )
