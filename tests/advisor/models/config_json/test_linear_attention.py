"""config.json of Qwen3-Next and Nemotron 3 Nano, with the values of the public files."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.config_json.importer import load_config_json
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec

QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
NEMOTRON3_NANO = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 128,
    "hidden_dropout": 0.0,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 64,
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "residual_in_fp32": False,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, 1e9],
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 131072,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next_80b_a3b": QWEN3_NEXT,
    "nemotron3_nano_30b_a3b": NEMOTRON3_NANO,
}


def load(folder: Path, values: dict[str, Any]) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return load_config_json(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_gives_the_preset(tmp_path: Path, name: str) -> None:
    assert replace(load(tmp_path, CONFIGS[name]), name=name) == load_model(name)


def test_layers_by_name(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    qwen = load(tmp_path, QWEN3_NEXT | {"num_hidden_layers": 4, "layer_types": kinds})
    assert [kind.mixer == "gated_delta_net" for kind in qwen.layer_kinds] == [
        True,
        False,
        False,
        True,
    ]
    blocks = {"layers_block_type": ["mamba", "moe", "attention", "mlp"]}
    named = {k: v for k, v in NEMOTRON3_NANO.items() if k != "hybrid_override_pattern"}
    assert load(tmp_path, named | blocks).hybrid_layer_pattern == "ME*-"


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (QWEN3_NEXT, {"layer_types": ["sliding_attention"] * 48}, "layer_types"),
        (QWEN3_NEXT, {"linear_num_key_heads": 5}, "must divide linear_num_value_heads = 32"),
        (QWEN3_NEXT, {"index_topk": 1}, "index_topk = 1: is unknown"),
        (NEMOTRON3_NANO, {"hybrid_override_pattern": "MX"}, "must not hold 'X'; write M (Mamba)"),
        (NEMOTRON3_NANO, {"conv_kernel": 8}, "conv_kernel = 8: must be 4: other values"),
        (
            NEMOTRON3_NANO,
            {"moe_latent_size": 64},
            "moe_latent_size = 64: must be null: other values",
        ),
        (NEMOTRON3_NANO, {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers = 1"),
        (NEMOTRON3_NANO, {"n_groups": 7}, "mamba_num_groups = 7: must divide the 64 heads"),
    ],
)
def test_refusals_are_one_line(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, base | changes)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
