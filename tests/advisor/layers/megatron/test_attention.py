"""Operators of self-attention on a toy; what Megatron's own layers keep stands in tests/oracles."""

import pytest
from msgspec.structs import replace

from advisor.layers.megatron.attention import attention_operators
from advisor.layers.operators import CollectiveKind, Operator
from advisor.layers.shape import RankShape
from advisor.models.presets import load_model
from tests.advisor.toys import GPT, KEY, LSE, QUERY, SHARD, saved_bytes, toy_shape


def attention(shape: RankShape) -> tuple[Operator, ...]:
    return attention_operators(shape, shape.hidden("normed"))


def names(operators: tuple[Operator, ...]) -> list[str]:
    return [operator.name for operator in operators]


def test_transformer_engine_makes_v_contiguous_and_lets_mixed_qkv_go() -> None:
    """Fused RoPE keeps no tables; cuDNN's attention hands its output on as it is."""
    shape = toy_shape(transformer_impl="transformer_engine", attention_backend="fused")
    assert saved_bytes(attention(shape)) == {
        "normed": SHARD,
        "query_rope": QUERY,
        "key_rope": KEY,
        "value_contiguous": KEY,
        "core_attn_out": QUERY,
        "softmax_lse": LSE,
    }


def test_the_flash_package_transposes_the_output_of_several_sequences() -> None:
    te = {"transformer_impl": "transformer_engine", "attention_backend": "flash"}
    assert saved_bytes(attention(toy_shape(**te)))["core_attn_out_transposed"] == QUERY
    one = saved_bytes(attention(toy_shape(**te, micro_batch_size=1)))
    assert "core_attn_out_transposed" not in one


def test_more_ranks_than_groups_gather_the_whole_mixed_qkv() -> None:
    """8 heads, 4 groups, TP 8: each rank projects 1/8 of 16 heads and gathers them all."""
    operators = attention(toy_shape(tensor_model_parallel_size=8))
    assert names(operators)[:3] == ["linear_qkv", "gather_mixed_qkv", "split_qkv"]
    projection, gather, split = operators[:3]
    assert projection.weights[0].shape == ((8 + 2 * 4) * 8 // 8, 64)
    whole = 32 * 2 * (8 + 2 * 4) * 8 * 2
    assert (gather.inputs[0].num_bytes, gather.outputs[0].num_bytes) == (whole // 8, whole)
    assert [c.kind for c in gather.forward_collectives] == [CollectiveKind.ALL_GATHER]
    assert [c.kind for c in gather.backward_collectives] == [CollectiveKind.REDUCE_SCATTER]
    assert {t.storage.name for t in split.outputs} == {"mixed_qkv"}
    assert saved_bytes(operators)["mixed_qkv"] == whole


def test_a_fused_softmax_kernel_works_in_the_compute_type() -> None:
    changes = {"attention_softmax_in_fp32": True, "masked_softmax_fusion": True}
    assert "softmax_fp32" not in saved_bytes(attention(toy_shape(GPT, **changes)))
    short = toy_shape(GPT, **changes, seq_length=16)  # 16 keys: too few for the kernel
    assert "softmax_fp32" in saved_bytes(attention(short))


def test_transformer_engines_unfused_attention_makes_its_scores_a_tensor() -> None:
    """Its softmax kernel takes up to 16384 keys, multiples of eight, and works in fp32 without."""
    changes = {"transformer_impl": "transformer_engine", "attention_dropout": 0.0}
    shape = toy_shape(GPT, **changes, attention_softmax_in_fp32=False)
    scores = 2 * 4 * 32 * 32 * 2
    (product,) = (o for o in attention(shape) if o.name == "attention_scores")
    assert product.forward_workspace == scores
    assert "softmax_fp32" not in saved_bytes(attention(shape))
    odd = toy_shape(GPT, **changes, attention_softmax_in_fp32=False, seq_length=28)
    assert saved_bytes(attention(odd))["softmax_fp32"] == 2 * 4 * 28 * 28 * 4
    (product,) = (o for o in attention(toy_shape(GPT)) if o.name == "attention_scores")
    assert product.forward_workspace == 0  # Megatron's stays, see process_buffers


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_flops_of_attention_over_the_causal_half(tp: int) -> None:
    """2 matmuls x 2 x batch x heads x head_dim x s x s / 2, whether fused or not."""
    expected = 2 * 2 * 2 * (8 // tp) * 8 * 32 * 32 // 2
    for backend in ("flash", "unfused"):
        shape = toy_shape(tensor_model_parallel_size=tp, attention_backend=backend)
        flops = sum(operator.attention_flops for operator in attention(shape))
        assert flops == expected * (1 if backend == "flash" else 2)


def test_context_parallelism_rings_keys_and_values() -> None:
    (ring,) = attention(toy_shape(context_parallel_size=4))[-2].forward_collectives
    assert ring.kind is CollectiveKind.RING
    assert ring.num_bytes == 3 * 2 * KEY // 4


def test_unfused_rotary_embedding_moves_five_times_as_much() -> None:
    """Ten tensors of q and k where the fused kernel moves two; cos and sin tables next to them."""
    fused, plain = (
        next(o for o in attention_operators(shape, shape.hidden("x")) if o.name == "rotary_pos_emb")
        for shape in (
            RankShape(
                model=replace(load_model("llama3_8b"), apply_rope_fusion=fusion),
                seq_length=8,
                micro_batch_size=1,
            )
            for fusion in (True, False)
        )
    )
    tables = sum(tensor.num_bytes for tensor in plain.saved)
    assert plain.forward_bytes == 5 * fused.forward_bytes + tables
    assert plain.backward_bytes == 5 * fused.backward_bytes + tables
