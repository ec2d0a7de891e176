"""DeepSeek's families in config.json, with the values that are published, against the presets."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from tests.advisor.models.config_json.test_importer import load

_COMMON: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "use_cache": True,
    "ep_size": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
}
DEEPSEEK_V3 = _COMMON | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "aux_loss_alpha": 0.0001,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2 = _COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1536,
    "n_group": 8,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_attention_heads": 128,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 60,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "aux_loss_alpha": 0.001,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "norm_topk_prob": False,
    "vocab_size": 102400,
}
DEEPSEEK_V2_LITE = DEEPSEEK_V2 | {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "topk_group": 1,
    "topk_method": "greedy",
}
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
    "seq_aux": False,
    "aux_loss_alpha": 0.0,
}
GLM45_AIR = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "first_k_dense_replace": 1,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_qk_norm": False,
    "vocab_size": 151552,
}
PHI4 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17920,
    "max_position_embeddings": 16384,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
CONFIGS = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v2_lite": DEEPSEEK_V2_LITE,
    "kimi_k2": KIMI_K2,
    "glm4.5_air": GLM45_AIR,
    "phi4": PHI4,
}


def preset(name: str) -> ModelSpec:
    """A preset but for the vocabulary's multiple, which config.json does not hold."""
    return replace(load_model(name), make_vocab_size_divisible_by=128)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_gives_the_preset(tmp_path: Path, name: str) -> None:
    assert replace(load(tmp_path, CONFIGS[name]), name=name) == preset(name)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "kv_lora_rank = None: is missing"),
        (DEEPSEEK_V3, {"q_lora_rank": 0}, "q_lora_rank = 0: must be at least 1"),
        (DEEPSEEK_V3, {"attention_bias": True}, "attention_bias = True: latent attention has no"),
        (DEEPSEEK_V3, {"hidden_act": "gelu"}, "hidden_act = gelu: is not a modelled activation"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq = 2: must be 1, with first_k"),
        (DEEPSEEK_V3, {"topk_group": 9}, "model.moe_router_group_topk = 9: must be between 1"),
        (DEEPSEEK_V3, {"index_topk": 2048}, "index_topk = 2048: is unknown"),
        (GLM45_AIR, {"kv_lora_rank": 512}, "kv_lora_rank = 512: is unknown"),
        (PHI4, {"resid_pdrop": 0.1}, "resid_pdrop = 0.1: is unknown"),
        (PHI4, {"model_type": "gpt_oss"}, "gpt_oss_20b"),
    ],
)
def test_refusals_are_one_line(
    tmp_path: Path, base: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, base, **changes)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
