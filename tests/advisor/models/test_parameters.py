"""Parameter counts: equal to counts from the published shapes, and near what the authors print."""

import pytest

from advisor.models.parameters import ParameterCount, count_parameters, parameter_count
from advisor.models.presets import load_model, load_preset, model_names
from advisor.models.spec import Activation, ModelSpec, Normalization, PositionEmbedding

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
    "mistral_7b": 7_248_023_552,  # v0.1's 7,241,732,096 and 2 x 768 x 4096 for the vocabulary
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_14b": 14_770_033_664,
    "qwen2.5_32b": 32_763_876_352,
    "qwen2.5_72b": 72_706_203_648,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
}

# Their published figure is a name, not a count: "1T" of Korthikanti et al. Table 3 and "72B".
LABELS = {"gpt3_1t", "qwen2.5_72b"}
# Test configurations of Megatron-LM, whose size nobody states.
UNPUBLISHED = {"megatron_ci_gpt3_7b", "megatron_ci_gpt3_15b"}


def test_every_preset_is_checked() -> None:
    assert set(model_names()) == set(EXACT)


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact(name: str) -> None:
    assert count_parameters(load_model(name)) == EXACT[name]


@pytest.mark.parametrize("name", sorted(set(EXACT) - UNPUBLISHED))
def test_counts_agree_with_what_is_published(name: str) -> None:
    published = load_preset(name).published_parameters
    assert published is not None
    assert published.source
    tolerance = 0.01 if name in LABELS else 0.005
    assert abs(EXACT[name] / published.value - 1) < tolerance


def toy(**options: object) -> ModelSpec:
    shape = {
        "name": "toy", "num_layers": 2, "hidden_size": 4, "ffn_hidden_size": 6,
        "num_attention_heads": 2, "num_query_groups": 1, "kv_channels": 3, "vocab_size": 10,
        "max_position_embeddings": 5,
    }  # fmt: skip
    return ModelSpec(**(shape | options))  # type: ignore[arg-type]


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
