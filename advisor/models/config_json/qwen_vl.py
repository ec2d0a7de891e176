"""The vision tower in a config.json of Qwen2.5-VL, Qwen3-VL or Qwen3-VL-MoE."""

from typing import Final

from msgspec.structs import replace

from advisor.models.config_json.families import FILE, family_of
from advisor.models.config_json.keys import HuggingFaceConfig, keys
from advisor.models.vision import VisionTower

_OUTER: Final = keys("architectures model_type text_config vision_config rope_scaling")


def text_of(config: HuggingFaceConfig, decoder: str) -> HuggingFaceConfig:
    """The `decoder` of a model with a tower, or what its own section says that it is: a section of
    the file, or all other keys of it (transformers before 4.52). Its rotary positions have three
    axes, which changes no size."""
    inner = config.values.get("text_config", config.values.get("llm_config"))
    given = inner if isinstance(inner, dict) else config.values
    values = {key: value for key, value in given.items() if key not in _OUTER}
    tied = config.values.get("tie_word_embeddings")
    own = given.get("model_type")
    usual = {"model_type": own if own in FILE.types else decoder}
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
    its, family = replace(config, values=given), family_of(str(config.values["model_type"]))
    family.check(its)
    if its.positive("out_hidden_size", 3584) != hidden_size:
        raise its.refuse("out_hidden_size", f"must be the decoder's hidden_size = {hidden_size}")
    if its.get("hidden_act", str, family.activation) != family.activation:
        raise its.refuse("hidden_act", "is not a modelled activation of this tower")
    channels = its.positive("in_channels", its.positive("in_chans", 3))
    return VisionTower(**family.read(its, VisionTower), in_channels=channels)
