"""config.json of Mixtral and Qwen3 MoE, with the values of the public files."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.config_json.importer import load_config_json
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec

MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def load(tmp_path: Path, values: dict[str, Any]) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return load_config_json(path)


@pytest.mark.parametrize(
    ("name", "values"), [("mixtral_8x7b", MIXTRAL_8X7B), ("qwen3_30b_a3b", QWEN3_30B_A3B)]
)
def test_equal_to_the_preset(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    """But for the weight of the load-balancing loss, which the files give for fine-tuning."""
    spec, preset = load(tmp_path, values), load_model(name)
    assert spec.moe_aux_loss_coeff == values["router_aux_loss_coef"]
    same = {"name": preset.name, "moe_aux_loss_coeff": preset.moe_aux_loss_coeff}
    assert replace(spec, **same) == preset


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, "1111"),
        ({"decoder_sparse_step": 2}, "0101"),
        ({"mlp_only_layers": [0, 2]}, "0101"),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, "0100"),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers: str, tmp_path: Path) -> None:
    spec = load(tmp_path, QWEN3_30B_A3B | {"num_hidden_layers": 4} | changes)
    assert "".join(str(int(kind.feed_forward == "moe")) for kind in spec.layer_kinds) == layers


def test_probabilities_that_are_not_normalized_come_before_top_k(tmp_path: Path) -> None:
    assert load(tmp_path, QWEN3_30B_A3B | {"norm_topk_prob": False}).moe_router_pre_softmax
    assert not load(tmp_path, MIXTRAL_8X7B).moe_router_pre_softmax


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 0}, "must be at least 1"),
        ({"num_experts_per_tok": 256}, "must not exceed num_moe_experts = 128"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
        ({"mlp_only_layers": 3}, "must be a list"),
        ({"router_jitter_noise": 0.1}, "noise on the router's input"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        load(tmp_path, QWEN3_30B_A3B | changes)
