"""Presets against transformers' own classes: config.json, and every parameter on the meta device.

Figures of the public files; what transformers writes into config.json next to them is its own.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from advisor.layers.parameters import count_parameters  # noqa: E402
from advisor.models.config_json.importer import load_config_json  # noqa: E402
from advisor.models.presets import load_model  # noqa: E402


def _shape(layers: int, hidden: int, ffn: int, heads: int, groups: int, **more: Any) -> Any:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        **more,
    }


def _gpt2(layers: int, hidden: int, heads: int) -> tuple[str, dict[str, Any]]:
    return "GPT2", {"n_layer": layers, "n_embd": hidden, "n_head": heads}


_LLAMA4 = _shape(48, 5120, 8192, 40, 8, max_position_embeddings=262144)
_MISTRAL = _shape(32, 4096, 14336, 32, 8, vocab_size=32000, max_position_embeddings=32768)
PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2_9b": ("Gemma2", _shape(42, 3584, 14336, 16, 8)),
    "gemma2_27b": (
        "Gemma2",
        _shape(46, 4608, 36864, 32, 16, head_dim=128, query_pre_attn_scalar=144),
    ),
    "gemma3_27b": (
        "Gemma3Text",
        _shape(62, 5376, 21504, 32, 16, head_dim=128, sliding_window=1024, vocab_size=262144),
    ),
    "llama4_scout_17b_16e": ("Llama4Text", {**_LLAMA4, "num_local_experts": 16}),
    "llama4_maverick_17b_128e": (
        "Llama4Text",
        {**_LLAMA4, "num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False},
    ),
    "olmo2_32b": (
        "Olmo2",
        _shape(64, 5120, 27648, 40, 8, vocab_size=100352, max_position_embeddings=4096),
    ),
    "gpt_oss_20b": ("GptOss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt_oss_120b": ("GptOss", {}),
    "gpt2_small": _gpt2(12, 768, 12),
    "gpt2_medium": _gpt2(24, 1024, 16),
    "gpt2_large": _gpt2(36, 1280, 20),
    "gpt2_xl": _gpt2(48, 1600, 25),
    "mistral_7b_v0.1": ("Mistral", _MISTRAL),
}
MODELS = {
    "Gemma3Text": "Gemma3ForCausalLM",
    "Llama4Text": "Llama4ForCausalLM",
    "GPT2": "GPT2LMHeadModel",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_config_and_parameters(name: str, tmp_path: Path) -> None:
    family, values = PUBLIC[name]
    config = getattr(transformers, f"{family}Config")(**values)
    config.save_pretrained(tmp_path)
    spec = load_config_json(tmp_path / "config.json")
    assert replace(spec, name=name) == load_model(name)
    with torch.device("meta"):
        model = getattr(transformers, MODELS.get(family, f"{family}ForCausalLM"))(config)
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == count_parameters(spec)


@pytest.mark.parametrize(
    ("family", "preset"), [("Gemma3", "gemma3_27b"), ("Llama4", "llama4_scout_17b_16e")]
)
def test_the_language_model_of_one_that_sees(family: str, preset: str, tmp_path: Path) -> None:
    text = getattr(transformers, PUBLIC[preset][0] + "Config")(**PUBLIC[preset][1])
    config = getattr(transformers, f"{family}Config")(text_config=text.to_dict())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str))
    assert replace(load_config_json(path), name=preset) == load_model(preset)


WITH_VISION = {
    "Mistral3": "Ministral3Config",
    "Qwen3_5": "Qwen3_5TextConfig",
    "Qwen3_5Moe": "Qwen3_5MoeTextConfig",
}


@pytest.mark.parametrize("family", WITH_VISION)
def test_newer_ones_that_see(family: str, tmp_path: Path) -> None:
    """The same as the file of the language model alone."""
    text = getattr(transformers, WITH_VISION[family])(num_hidden_layers=4)
    both = getattr(transformers, f"{family}Config")(text_config=text.to_dict())
    read = []
    for name, config in (("both", both), ("text", text)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config.to_dict(), default=str))
        read.append(replace(load_config_json(path), name=""))
    assert read[0] == read[1]
