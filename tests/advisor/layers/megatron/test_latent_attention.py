"""Operators of multi-latent attention on a toy; what Megatron's own layers keep stands in
tests/oracles."""

from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.setting import selective
from advisor.layers.megatron.latent_attention import latent_attention_operators
from advisor.layers.operators import Group, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.options import RopeType
from advisor.models.spec import ModelSpec
from advisor.plan.flops import model_flops
from advisor.plan.recompute_plan import kept_tensors
from tests.advisor.toys import HIDDEN, LLAMA, LSE, SHARD, latent, saved_bytes, toy_shape

LATENT = latent(LLAMA, 16, 8, 4, 6, q_lora_rank=32, name="toy_mla")
# Bytes of the toy: seq 32, micro batch 2, 4 of 8 heads a rank, TP 2 with SP, 16 bit.
TOKENS = 32 * 2
QUERY, VALUE = TOKENS * 4 * 12 * 2, TOKENS * 4 * 6 * 2
KEY, OUT = QUERY, VALUE
Q_RANK, KV_RANK, K_ROPE = TOKENS * 32 * 2, TOKENS * 16 * 2, TOKENS * 4 * 2
TABLES = {f"rope_{name}": 32 * 4 * 2 for name in ("cos_q", "sin_q", "cos_k", "sin_k")}
STATISTICS = TOKENS // 2 * 4
CORE = {"key": KEY, "value": VALUE, "core_attn_out": OUT, "softmax_lse": LSE}


def latent(**changes: Any) -> RankShape:
    return toy_shape(LATENT, **changes)


def operators(shape: RankShape) -> tuple[Operator, ...]:
    return latent_attention_operators(shape, shape.hidden("normed"))


def test_the_kernels_backward_sums_up_the_querys_gradient_in_fp32() -> None:
    """Of the query's width, which is not the output's."""
    shape = latent(transformer_impl="transformer_engine")
    (kernel,) = (o for o in operators(shape) if o.name == "core_attention")
    assert kernel.backward_workspace == 2 * QUERY + LSE


def test_transformer_engine_keeps_each_rank_its_own_tokens() -> None:
    """Fused yarn rotates the query in place; the keys' compressed part is copied for its norm."""
    engine = {"transformer_impl": "transformer_engine", "attention_backend": "fused"}
    saved = saved_bytes(operators(latent(**engine)))
    assert saved == {
        "normed": SHARD,
        "linear_q_down_proj_out": Q_RANK // 2,
        "kv_compressed_contiguous": KV_RANK // 2,
        "query_compressed_normed.rstd": STATISTICS,
        "kv_compressed_normed.rstd": STATISTICS,
        "query_compressed_normed": Q_RANK // 2,
        "kv_compressed_normed": KV_RANK // 2,
        "query_up": QUERY,
        **CORE,
    }
    plain = latent(**engine, rope_type=RopeType.ROPE)
    assert set(saved_bytes(operators(plain))) - set(saved) == {*TABLES, "query"}


@pytest.mark.parametrize(("impl", "cut"), [("local", 2), ("transformer_engine", 1)])
def test_weights(impl: str, cut: int) -> None:
    """Down-projections are cut by TP on the local spec, whole under Transformer Engine."""
    made = operators(latent(transformer_impl=impl))
    shapes = {weight.name: weight.shape for operator in made for weight in operator.weights}
    assert shapes["linear_q_down_proj.weight"] == (32 // cut, 64)
    assert shapes["linear_kv_down_proj.weight"] == (20 // cut, 64)
    assert shapes["linear_q_up_proj.weight"] == (4 * 12, 32)
    assert shapes["linear_kv_up_proj.weight"] == (4 * (8 + 6), 16)
    assert shapes["linear_proj.weight"] == (64, 4 * 6)


def test_two_matmuls_of_different_width_and_communication_of_ranks() -> None:
    made = {operator.name: operator for operator in operators(latent())}
    # 2 x tokens x 32 keys / 2 x 4 heads x (12 + 6)
    assert made["core_attention"].attention_flops == TOKENS * 32 * 4 * 18
    gather = made["linear_q_up_proj"].forward_collectives[0]
    assert (gather.group, gather.num_bytes) == (Group.TENSOR, Q_RANK)
    assert made["linear_kv_down_proj"].forward_collectives[0].num_bytes == HIDDEN


def kept(shape: RankShape, *modules: str) -> dict[str, int]:
    layer = transformer_layer(shape)
    runs = selective_runs(selective(*modules), shape.model)
    return {name: tensor.num_bytes for name, tensor in kept_tensors(layer, runs).items()}


@pytest.mark.parametrize("impl", ["local", "transformer_engine"])
def test_up_projections_are_replayed_from_the_compressed_tensors(impl: str) -> None:
    shape = latent(transformer_impl=impl)
    before, after = kept(shape), kept(shape, "mla_up_proj")
    gone = {name: size for name, size in before.items() if name not in after}
    new = {name: size for name, size in after.items() if name not in before}
    if impl == "local":
        assert set(gone) == {"query", "key", "value", *TABLES}
        assert new == {"linear_kv_down_proj_out": KV_RANK + K_ROPE}
        return
    # Transformer Engine's norms are inside: the checkpoint keeps what they read.
    assert {"query_up", "key", "value", "kv_compressed_contiguous"} < set(gone)
    combined = (KV_RANK + K_ROPE) // 2
    assert new == {"linear_kv_down_proj_out": combined, "k_pos_emb_gathered": K_ROPE}


def test_layernorm_acts_on_the_input_norm_under_transformer_engine() -> None:
    shape = latent(transformer_impl="transformer_engine")
    before, after = kept(shape), kept(shape, "layernorm")
    assert set(before) - set(after) == {"input_layernorm_out", "input_layernorm_out.rstd"}
    (run,) = selective_runs(selective("layernorm"), shape.model)
    assert run.modules == {Module.INPUT_LAYERNORM}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_query_groups": 4}, "must equal num_attention_heads"),
        ({"kv_lora_rank": 0}, "must be between 1"),
        ({"window_size": 8}, "not modelled with multi-latent attention"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        replace(LATENT, **changes)


def test_a_step_counts_the_projections_as_megatron_does() -> None:
    spec: ModelSpec = replace(LATENT, num_layers=1)
    query = 32 * (64 + 8 * 12 + 1)
    keys_values = 16 * (64 + 8 * (8 + 6) + 1) + 64 * 4
    weights = query + keys_values + 8 * 6 * 64 + 3 * 64 * 128 + 64 * 1000
    core = 3 * 2 * 32 * 32 * 8 * (12 + 6) // 2
    assert model_flops(spec, 32, 1, 1000) == 6 * 32 * weights + core
