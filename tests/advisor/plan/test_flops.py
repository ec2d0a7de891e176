"""Megatron's FLOPs convention against integers worked out by hand, and FLOPs of replays."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import NONE, Method, RecomputeSetting, full, selective
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import DENSE
from advisor.models.presets import load_model
from advisor.plan.flops import model_flops, replayed_flops
from tests.advisor.toys import toy_model

TOY = toy_model(
    2, 8, 16, 4, 2, vocab_size=128, max_position_embeddings=4, make_vocab_size_divisible_by=1
)
SHAPE = RankShape(model=TOY, seq_length=4, micro_batch_size=1)
# 2 x tokens x weights: q, k, v 8 x 16; output 8 x 8; fc1 8 x 32; fc2 16 x 8
QKV, PROJ, FC1, FC2 = 1024, 512, 2048, 1024
# two matmuls over half of 4 x 4 positions: 2 x 2 x 4 x 4 / 2 x 8
CORE = 256
LAYER = QKV + PROJ + FC1 + FC2 + CORE


def test_a_layer_of_the_toy() -> None:
    assert sum(operator.forward_flops for operator in transformer_layer(SHAPE)) == LAYER == 4864


def test_a_step_of_the_toy() -> None:
    # Three passes through two layers and an output layer of 8 x 128 on 5 sequences.
    assert model_flops(TOY, 4, 5, 128) == 3 * 5 * (2 * LAYER + 2 * 4 * 8 * 128) == 268_800


def test_llama3_70b_on_32_gpus() -> None:
    # Weights: a layer 8192 x (8192 + 2 x 1024) + 8192^2 + 3 x 8192 x 28672 = 855,638,016, 80 of
    # them, and 8192 x 128512 of the padded output layer: 69,503,811,584. Tokens: 32 x 4096.
    linear = 6 * 131_072 * 69_503_811_584
    # 12 x tokens x (4096 / 2) x 8192 a layer
    core = 12 * 131_072 * 2048 * 8192 * 80
    model = load_model("llama3_70b")
    assert linear + core == 56_771_083_876_958_208
    assert model_flops(model, 4096, 32, 128_512) == linear + core


def test_gpt3_175b_is_the_formula_of_the_paper_with_causal_attention() -> None:
    # arXiv 2205.05198 app. A: 72 B L s h^2 (1 + s/6h + V/12hL); s/6h is the whole square of
    # scores, Megatron counts the causal half.
    batch, layers, s, h, vocabulary = 64, 96, 2048, 12288, 51_200
    paper = 72 * batch * layers * s * h * h
    causal = paper * s // (12 * h) + paper * vocabulary // (12 * h * layers)
    assert paper + causal == 139_191_575_006_674_944
    assert model_flops(load_model("gpt3_175b"), s, batch, vocabulary) == paper + causal


@pytest.mark.parametrize(
    ("setting", "flops"),
    [
        (NONE, 0),
        (selective("core_attn"), 2 * CORE),
        (selective("mlp"), 2 * (FC1 + FC2)),
        (selective("core_attn", "mlp"), 2 * (CORE + FC1 + FC2)),
        (selective("layernorm"), 0),
        (full(Method.UNIFORM, 1), 2 * LAYER),
        (full(Method.UNIFORM, 2), 2 * LAYER),
        (full(Method.BLOCK, 1), LAYER),
    ],
)
def test_replayed_flops_of_two_layers(setting: RecomputeSetting, flops: int) -> None:
    plan = chunk_plan(setting, TOY, (DENSE,) * 2, False)
    assert replayed_flops(SHAPE, plan) == flops


@pytest.mark.parametrize(
    ("name", "flops"),
    [("qwen3_next_80b_a3b", 745_185_415_790_592), ("nemotron3_nano_30b_a3b", 721_311_303_204_864)],
)
def test_linear_attention_and_mamba_are_counted_as_megatron_counts_them(name, flops) -> None:
    """What num_floating_point_operations of megatron-core 0.19.0 training.py gives for the shapes:
    8 sequences of 4096, vocabulary 152064."""
    assert model_flops(load_model(name), 4096, 8, 152_064) == flops


def test_experts_on_a_latent_dimension_are_counted_as_megatron_counts_them() -> None:
    """0.19.2 training.py moe_layer_flops, of a forward: routed experts that are not gated, and both
    projections."""
    nano, tokens = load_model("nemotron3_nano_30b_a3b"), 4096
    latent, h = 1024, nano.hidden_size
    narrow = replace(nano, moe_latent_size=latent)
    layers = nano.hybrid_layer_pattern.count("E")
    experts = nano.moe_router_topk * nano.expert_ffn_hidden_size
    more = 4 * tokens * (experts * (latent - h) + h * latent)
    wide, found = (model_flops(model, tokens, 1, nano.vocab_size) for model in (nano, narrow))
    assert found - wide == 3 * layers * more
