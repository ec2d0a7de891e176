"""config.json of models of 2025 and 2026, in the form of the public files: the size that their
names say, the shape of layers, and refusals. tests/oracles count their parameters exactly."""

from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.layers.parameters import active_parameters, count_parameters
from advisor.models.config_json.importer import load_config_json
from advisor.models.presets import load_model
from tests.advisor.models.config_json.published import PUBLISHED, load, write


def _shape(kind: str, layers: int, hidden: int, ffn: int, heads: int, groups: int) -> Any:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": 131072,
    }


GPT_OSS = _shape("gpt_oss", 24, 2880, 2880, 64, 8) | {
    "attention_bias": True,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "initial_context_length": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "router_aux_loss_coef": 0.9,
    "vocab_size": 201088,
    "quantization_config": {"quant_method": "mxfp4"},
}
MINIMAX_M2 = _shape("minimax_m2", 62, 3072, 1536, 48, 8) | {
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "rotary_dim": 64,
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_mtp": True,
    "num_mtp_modules": 3,
    "mtp_transformer_layers": 1,
    "shared_intermediate_size": 0,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
ERNIE = _shape("ernie4_5_moe", 28, 2560, 12288, 20, 4) | {
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_start_index": 1,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": True,
    "use_bias": False,
    "vocab_size": 103424,
}
SEED_OSS = _shape("seed_oss", 64, 5120, 27648, 80, 8) | {
    "attention_bias": True,
    "attention_out_bias": False,
    "head_dim": 128,
    "mlp_bias": False,
    "residual_dropout": 0.1,
    "attention_dropout": 0.1,
    "vocab_size": 155136,
}
OLMO3 = _shape("olmo3", 64, 5120, 27648, 40, 8) | {
    "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 16,
    "sliding_window": 4096,
    "vocab_size": 100278,
}
GLM_FLASH = _shape("glm4_moe_lite", 47, 2048, 10240, 20, 20) | {
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "topk_method": "noaux_tc",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
_QWEN = _shape("qwen3_5_moe_text", 40, 2048, 5632, 16, 2) | {
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "mamba_ssm_dtype": "float32",
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 248320,
}
QWEN35 = {"model_type": "qwen3_5_moe", "text_config": _QWEN, "vision_config": {"depth": 27}}
_MINISTRAL = _shape("ministral3", 34, 4096, 14336, 32, 8) | {"head_dim": 128, "vocab_size": 131072}
MINISTRAL = {"model_type": "mistral3", "text_config": _MINISTRAL, "vision_config": {}}
MISTRAL_SMALL = {
    "model_type": "mistral3",
    "text_config": _shape("mistral", 40, 5120, 32768, 32, 8)
    | {"head_dim": 128, "vocab_size": 131072, "sliding_window": None},
}
# billions of parameters in the name, or on the model's card, and of active ones
SIZES: dict[str, tuple[Any, float, float | None]] = {
    "gpt-oss-20b": (GPT_OSS, 20.9, 4.2),
    "MiniMax-M2": (MINIMAX_M2, 229, 10),
    "ERNIE-4.5-21B-A3B": (ERNIE, 21, 3),
    "Seed-OSS-36B": (SEED_OSS, 36, None),
    "Olmo-3-32B": (OLMO3, 32, None),
    "GLM-4.7-Flash": (GLM_FLASH, 30, 3),
    "Qwen3.5-35B-A3B": (QWEN35, 35, 3),
    "Ministral-3-8B": (MINISTRAL, 8, None),
    "Mistral-Small-3.1-24B": (MISTRAL_SMALL, 24, None),
}


@pytest.mark.parametrize("name", SIZES)
def test_as_many_parameters_as_the_name_says(tmp_path, name) -> None:
    """Names have whole billions, rounded or cut off; of active ones embeddings may be left out."""
    config, total, active = SIZES[name]
    spec = load(tmp_path, config)
    assert count_parameters(spec) / 1e9 == pytest.approx(total, abs=1)
    if active is not None:
        embedding = spec.vocab_size * spec.hidden_size / 1e9
        assert active - 1 < active_parameters(spec) / 1e9 < active + embedding + 1


def test_gpt_oss_is_the_preset(tmp_path) -> None:
    spec, preset = load(tmp_path, GPT_OSS), load_model("gpt_oss_20b")
    different = {n for n in spec.__struct_fields__ if getattr(spec, n) != getattr(preset, n)}
    assert different == {"name"}


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (MINIMAX_M2, "rotary_percent", 0.5),
        (MINIMAX_M2, "qk_layernorm_across_heads", True),
        (ERNIE, "moe_shared_expert_intermediate_size", 3072),
        (ERNIE | {"moe_layer_start_index": 0}, "moe_layer_freq", "1"),
        (SEED_OSS, "hidden_dropout", 0.1),
        (SEED_OSS, "add_bias_linear", False),
        (OLMO3, "window_attn_skip_freq", "4"),
        (GLM_FLASH, "moe_router_score_function", "sigmoid"),
        (GLM_FLASH, "mtp_num_layers", 1),
        (QWEN35, "linear_attention_freq", "4"),
        (QWEN35, "mtp_num_layers", 1),
        (MINISTRAL, "share_embeddings_and_output_weights", False),
    ],
)
def test_fields(tmp_path, config, field, value) -> None:
    assert getattr(load(tmp_path, config), field) == value


def test_dense_qwen(tmp_path) -> None:
    dense = {k: v for k, v in _QWEN.items() if "expert" not in k and "moe" not in k}
    spec = load(tmp_path, dense | {"model_type": "qwen3_5_text"})
    assert spec.num_moe_experts is None
    assert {kind.feed_forward for kind in spec.layer_kinds} == {"mlp"}


def test_experts_of_nemotron_on_a_latent_dimension(tmp_path) -> None:
    nano = PUBLISHED["nemotron3_nano_30b_a3b"]
    spec = load(tmp_path, nano | {"moe_latent_size": 1024, "num_nextn_predict_layers": 1})
    assert (spec.moe_latent_size, spec.mtp_num_layers) == (1024, None)


@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        (GPT_OSS, {"attention_bias": False}, "attention_bias = False: must be true: other values"),
        (MINIMAX_M2, {"scoring_func": "softmax"}, "scoring_func = softmax: must be sigmoid"),
        (MINIMAX_M2, {"attn_type_list": [0] * 62}, "attn_type_list = "),
        (ERNIE, {"use_bias": True}, "use_bias = True: must be false"),
        (SEED_OSS, {"attention_out_bias": True}, "attention_out_bias = True: adds biases"),
        (GLM_FLASH, {"mlp_layer_types": ["sparse", "dense"]}, "must be dense in the first layers"),
        (OLMO3, {"model_type": "gemma4_text"}, "has attention heads of two widths"),
        (OLMO3, {"model_type": "deepseek_v4"}, "attends to compressed tokens"),
        (OLMO3, {"model_type": "deepseek_v32"}, "attends to the tokens that an index chooses"),
        (OLMO3, {"model_type": "kimi_linear"}, "has Kimi delta attention"),
    ],
)
def test_refusals_are_one_line(tmp_path, config, changes, says) -> None:
    with pytest.raises(UserError) as error:
        load_config_json(write(tmp_path, config | changes))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["kimi_linear", "deepseek_v4", "falcon_7b"])
def test_a_name_without_a_preset_says_why(name: str) -> None:
    with pytest.raises(UserError, match=r"not modelled|does not support"):
        load_model(name)
