"""config.json of models of 2025 and 2026, in the form of the public files: the size that their
names say, the shape of layers, and refusals. tests/oracles count their parameters exactly."""

import pytest

from advisor.base.errors import UserError
from advisor.layers.parameters import active_parameters, count_parameters
from advisor.models.config_json.importer import load_config_json
from advisor.models.presets import load_model
from tests.advisor.models.config_json.published import NEWER, PUBLISHED, load, write
from tests.advisor.refusals import refused

GPT_OSS, MINIMAX_M2, ERNIE, SEED_OSS, OLMO3, GLM_FLASH, QWEN35, MINISTRAL = (
    NEWER[name]
    for name in (
        *("gpt-oss-20b", "MiniMax-M2", "ERNIE-4.5-21B-A3B", "Seed-OSS-36B", "Olmo-3-32B"),
        *("GLM-4.7-Flash", "Qwen3.5-35B-A3B", "Ministral-3-8B"),
    )
)
# billions of parameters in the name, or on the model's card, and of active ones
SIZES: dict[str, tuple[float, float | None]] = {
    "gpt-oss-20b": (20.9, 4.2),
    "MiniMax-M2": (229, 10),
    "ERNIE-4.5-21B-A3B": (21, 3),
    "Seed-OSS-36B": (36, None),
    "Olmo-3-32B": (32, None),
    "GLM-4.7-Flash": (30, 3),
    "Qwen3.5-35B-A3B": (35, 3),
    "Ministral-3-8B": (8, None),
    "Mistral-Small-3.1-24B": (24, None),
    "SmolLM3-3B": (3, None),
    "Granite-3.3-8B": (8, None),
    "Phi-4-mini": (3.8, None),
    "Qwen2-VL-7B": (7.6, None),  # without its tower, as the two below
    "InternVL3-8B": (7.6, None),
    "GLM-4.5V": (107, 12),
}


@pytest.mark.parametrize("name", SIZES)
def test_as_many_parameters_as_the_name_says(tmp_path, name) -> None:
    """Names have whole billions, rounded or cut off; of active ones embeddings may be left out."""
    total, active = SIZES[name]
    spec = load(tmp_path, NEWER[name])
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
    text = QWEN35["text_config"]
    dense = {k: v for k, v in text.items() if "expert" not in k and "moe" not in k}
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
        (GPT_OSS, {"attention_bias": False}, "attention_bias = false: must be true: other values"),
        (MINIMAX_M2, {"scoring_func": "softmax"}, "scoring_func = softmax: must be sigmoid"),
        (MINIMAX_M2, {"attn_type_list": [0] * 62}, "attn_type_list = "),
        (ERNIE, {"use_bias": True}, "use_bias = true: must be false"),
        (SEED_OSS, {"attention_out_bias": True}, "attention_out_bias = true: adds biases"),
        (GLM_FLASH, {"mlp_layer_types": ["sparse", "dense"]}, "must be dense in the first layers"),
        (OLMO3, {"model_type": "deepseek_v4"}, "attends to compressed tokens"),
        (OLMO3, {"model_type": "kimi_linear"}, "has Kimi delta attention"),
    ],
)
def test_refusals_are_one_line(tmp_path, config, changes, says) -> None:
    with refused(says):
        load_config_json(write(tmp_path, config | changes))


@pytest.mark.parametrize("name", ["kimi_linear", "deepseek_v4", "falcon_7b"])
def test_a_name_without_a_preset_says_why(name: str) -> None:
    with pytest.raises(UserError, match=r"not modelled|does not support"):
        load_model(name)
