"""Experts in eager torch: exact bytes on a toy; against torch they stand in tests/oracles."""

from msgspec.structs import replace

from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.torchtitan.moe import ALIGNMENT
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import layer_elements
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import kept_tensors
from tests.advisor.toys import toy_model

MOE = LayerKind(feed_forward=FeedForward.MOE)
TOY = toy_model(
    *(2, 8, 16, 4, 4),
    vocab_size=32,
    max_position_embeddings=64,
    num_moe_experts=4,
    moe_ffn_hidden_size=6,
    moe_router_topk=2,
    moe_grouped_gemm=True,
    transformer_impl=TransformerImpl.TORCH,
)
SHAPE = RankShape(model=TOY, seq_length=16, micro_batch_size=1)


def _kept(shape: RankShape) -> dict[str, int]:
    kept = kept_tensors(transformer_layer(shape, MOE), ())
    return {name: tensor.num_bytes for name, tensor in kept.items()}


def test_rows_of_torchtitans_experts_are_padded() -> None:
    """32 copies and 8 rows for each of four experts: 64 rows, kept in 16 bit at every width."""
    rows, kept = 32 + 4 * ALIGNMENT, _kept(SHAPE)
    assert kept["padded_tokens"] == rows * 8 * 2
    assert all(
        kept[f"experts.{name}"] == rows * 6 * 2
        for name in ("w1_out", "w3_out", "activation_out", "product")
    )
    assert kept["unsorted.fp32"] == 32 * 8 * 4


def test_ranks_of_expert_parallelism_have_their_experts_and_rows_of_all() -> None:
    shape = replace(SHAPE, expert_model_parallel_size=4)
    assert _kept(shape)["padded_tokens"] == (32 + ALIGNMENT) * 8 * 2
    busiest = replace(shape, moe_load_imbalance=1.5)
    assert _kept(busiest)["padded_tokens"] == (48 + ALIGNMENT) * 8 * 2
    attention, norms, gate = 4 * 8 * 8, 2 * 8, 4 * 8
    assert layer_elements(shape, MOE) == attention + norms + gate + 3 * 8 * 6


def test_without_expert_tensor_parallelism_tp_ranks_share_the_tokens() -> None:
    """Of 32 copies each of two ranks sends 16; the weighted sum is of all tokens all the same."""
    cut = replace(SHAPE, tensor_model_parallel_size=2, sequence_parallel=True)
    shared = replace(cut, expert_model_parallel_size=2)
    assert _kept(shared)["padded_tokens"] == (16 + 2 * ALIGNMENT) * 8 * 2
    assert _kept(shared)["unsorted.fp32"] == 32 * 8 * 4
    whole = replace(cut, expert_tensor_parallel_size=2)
    assert _kept(whole)["padded_tokens"] == (32 + 4 * ALIGNMENT) * 8 * 2
    assert _kept(whole)["experts.w1_out"] == (32 + 4 * ALIGNMENT) * 3 * 2


def test_transformers_keeps_no_padding_and_one_product_of_both_halves() -> None:
    model = replace(TOY, transformer_impl=TransformerImpl.TRANSFORMERS)
    kept = _kept(replace(SHAPE, model=model))
    assert kept["routed_tokens"] == 32 * 8 * 2
    assert kept["gate_up_proj_out"] == 2 * kept["experts.product"] == 32 * 12 * 2
    assert kept["sorted_weights"] == 32 * 4


def test_shared_experts_run_after_the_routed_ones() -> None:
    model = replace(TOY, moe_shared_expert_intermediate_size=6)
    modules = [o.module for o in transformer_layer(replace(SHAPE, model=model), MOE)]
    assert modules.index(Module.EXPERT_FC2) < modules.index(Module.SHARED_FC1)
    assert modules[-2:] == [Module.COMBINE, Module.MLP_BDA]
