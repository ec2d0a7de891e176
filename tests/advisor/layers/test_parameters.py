"""Parameter counts: equal to counts from the published shapes, and near what the authors print."""

import csv
from pathlib import Path

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

with Path(__file__).with_name("parameters.csv").open(encoding="utf-8") as _file:
    _ROWS = list(csv.DictReader(line for line in _file if not line.startswith("#")))
EXACT, ACTIVE, PREDICTS = (
    {row["name"]: int(row[column]) for row in _ROWS if row[column]}
    for column in ("total", "active", "mtp")
)

# Their published figure is a name or a rounded statement, not a count: "1T" of Korthikanti et al.
# Table 3, "72B", "355B", "106B", Gemma 2's "9B" and "27B"; Kimi K2's 1.04T is more than its own
# shape gives; "0.6B", "1.7B" and "4B" of Qwen3.
LABELS = {
    "gpt3_1t": 0.01,
    "qwen2.5_72b": 0.01,
    "glm4.5": 0.01,
    "glm4.6": 0.01,
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
    assert set(model_names()) == set(EXACT) >= {*ACTIVE, *PREDICTS}


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_exact(name: str) -> None:
    model = load_model(name)
    assert count_parameters(model) == EXACT[name]
    assert ACTIVE.get(name) in (None, active_parameters(model))
    predicts = parameter_count(model).multi_token_prediction
    assert PREDICTS.get(name) in (None, predicts)


@pytest.mark.parametrize("name", sorted(set(EXACT) - UNPUBLISHED))
def test_counts_agree_with_what_is_published(name: str) -> None:
    published = load_preset(name).published_parameters
    assert published.source
    assert abs(EXACT[name] / published.value - 1) < LABELS.get(name, 0.005)


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
