"""Parameter counts: equal to counts from the published shapes, and near what the authors print."""

import pytest

from advisor.layers.parameters import (
    ParameterCount,
    active_parameters,
    count_parameters,
    parameter_count,
)
from advisor.models.options import Activation, Normalization, PositionEmbedding
from advisor.models.presets import load_model, load_preset, model_names
from advisor.models.spec import ModelSpec

# Counted from the same shapes by an independent script, every norm and bias included.
EXACT = {
    "gpt3_22b": 22_074_273_792,
    "gpt3_175b": 174_615_846_912,
    "gpt3_530b": 529_600_819_200,
    "gpt3_1t": 1_008_038_758_400,
    "megatron_ci_gpt3_7b": 6_745_964_544,
    "megatron_ci_gpt3_15b": 15_628_775_424,
    "nemotron4_15b": 15_628_775_424,
    "nemotron4_340b": 341_029_195_776,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "llama3.1_8b": 8_030_261_248,
    "llama3.1_70b": 70_553_706_496,
    "llama3.1_405b": 405_853_388_800,
    "llama3.2_1b": 1_235_814_400,
    "llama3.2_3b": 3_212_749_824,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_630_071_296,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "mistral_7b": 7_248_023_552,  # v0.1's 7,241,732,096 and 2 x 768 x 4096 for the vocabulary
    "mistral_7b_v0.1": 7_241_732_096,
    "gpt2_small": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_27b": 27_009_002_240,
    "llama4_scout_17b_16e": 107_769_861_120,
    "llama4_maverick_17b_128e": 400_711_848_960,
    "olmo2_32b": 32_234_279_936,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_14b": 14_770_033_664,
    "qwen2.5_32b": 32_763_876_352,
    "qwen2.5_72b": 72_706_203_648,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "phi4": 14_659_507_200,
    "deepseek_v2": 235_741_434_880,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_404_352,
    "deepseek_r1": 671_026_404_352,
    "moonlight_16b_a3b": 15_960_116_736,
    "kimi_k2": 1_026_408_209_408,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "glm4.5": 352_797_814_784,
    "glm4.5_air": 106_852_245_504,
    "megatron_ci_deepseekv3_proxy": 38_972_595_200,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "nemotron3_nano_30b_a3b": 31_577_937_344,
}

# Parameters that a token goes through, and those of multi-token prediction, from the same script.
# The router's bias of every expert, which it counts and Megatron keeps as a buffer, is left out.
ACTIVE = {
    "deepseek_v2": 21_375_800_320,
    "deepseek_v2_lite": 2_661_150_208,
    "deepseek_v3": 37_552_282_624,
    "moonlight_16b_a3b": 2_914_782_720,
    "kimi_k2": 32_861_477_888,
    "llama4_scout_17b_16e": 17_172_894_720,
    "llama4_maverick_17b_128e": 17_184_691_200,
    "gpt_oss_20b": 4_187_440_704,
    "gpt_oss_120b": 5_711_982_912,
    "glm4.5": 33_632_251_904,
    "glm4.5_air": 13_424_123_904,
    "qwen3_next_80b_a3b": 3_874_929_408,
    "nemotron3_nano_30b_a3b": 3_580_073_408,
}
PREDICTS = {"deepseek_v3": 11_610_067_968, "glm4.5": 3_988_069_632, "glm4.5_air": 2_375_059_456}

# Their published figure is a name or a rounded statement, not a count: "1T" of Korthikanti et al.
# Table 3, "72B", "355B", "106B", Gemma 2's "9B" and "27B"; Kimi K2's 1.04T is more than its own
# shape gives; "0.6B", "1.7B" and "4B" of Qwen3.
LABELS = {
    "gpt3_1t": 0.01,
    "qwen2.5_72b": 0.01,
    "glm4.5": 0.01,
    "glm4.5_air": 0.01,
    "kimi_k2": 0.014,
    "gemma2_9b": 0.028,
    "gemma2_27b": 0.009,
    "qwen3_0.6b": 0.007,
    "qwen3_1.7b": 0.013,
    "qwen3_4b": 0.006,
}
# Test configurations of Megatron-LM, whose size nobody states.
UNPUBLISHED = {"megatron_ci_gpt3_7b", "megatron_ci_gpt3_15b", "megatron_ci_deepseekv3_proxy"}


def test_every_preset_is_checked() -> None:
    assert set(model_names()) == set(EXACT)


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact(name: str) -> None:
    assert count_parameters(load_model(name)) == EXACT[name]


@pytest.mark.parametrize("name", sorted(set(EXACT) - UNPUBLISHED))
def test_counts_agree_with_what_is_published(name: str) -> None:
    published = load_preset(name).published_parameters
    assert published.source
    assert abs(EXACT[name] / published.value - 1) < LABELS.get(name, 0.005)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_exact(name: str) -> None:
    assert active_parameters(load_model(name)) == ACTIVE[name]


@pytest.mark.parametrize("name", PREDICTS)
def test_multi_token_prediction_is_counted_apart(name: str) -> None:
    assert parameter_count(load_model(name)).multi_token_prediction == PREDICTS[name]


def toy(**options: object) -> ModelSpec:
    shape = {
        "name": "toy",
        "num_layers": 2,
        "hidden_size": 4,
        "ffn_hidden_size": 6,
        "num_attention_heads": 2,
        "num_query_groups": 1,
        "kv_channels": 3,
        "vocab_size": 10,
        "max_position_embeddings": 5,
    }
    return ModelSpec(**(shape | options))


def test_a_toy_by_hand() -> None:
    # qkv (6+3+3)*4, proj 4*6, fc1 12*4, fc2 4*6, two norms of 4; embedding and output 10*4.
    layer = 48 + 24 + 48 + 24 + 8
    assert parameter_count(toy()) == ParameterCount(embedding=40, layers=2 * layer, output=4 + 40)


def test_the_vocabulary_is_not_padded() -> None:
    assert parameter_count(toy(make_vocab_size_divisible_by=128)).embedding == 40


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"share_embeddings_and_output_weights": True}, -40),
        ({"position_embedding_type": PositionEmbedding.LEARNED}, 5 * 4),
        ({"normalization": Normalization.LAYER_NORM}, (2 * 2 + 1) * 4),
        ({"activation": Activation.GELU}, 2 * -24),
        ({"add_qkv_bias": True}, 2 * 12),
        ({"add_bias_linear": True}, 2 * (12 + 4 + 12 + 4)),
        ({"qk_layernorm": True}, 2 * 2 * 3),
    ],
)
def test_each_option_costs_what_it_should(options: dict[str, object], difference: int) -> None:
    assert count_parameters(toy(**options)) - count_parameters(toy()) == difference


def test_total_is_the_sum_of_the_parts() -> None:
    count = parameter_count(load_model("llama3_8b"))
    assert count.total == count.embedding + count.layers + count.output


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral_8x7b", 12_879_925_248),
        ("mixtral_8x22b", 39_161_468_928),
        ("qwen3_30b_a3b", 3_353_032_704),
        ("qwen3_235b_a22b", 22_190_763_520),
        ("llama3_8b", 8_030_261_248),
    ],
)
def test_active_parameters_are_those_of_topk_experts(name: str, active: int) -> None:
    """Counted by the same independent script; cards say 12.9, 39, 3.3 and 22 billion."""
    assert active_parameters(load_model(name)) == active
