"""A toy model with experts: 8 experts of width 32, two a token."""

from typing import Any

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.models.options import TokenDispatcher, TransformerImpl
from tests.advisor.toys import LLAMA, toy_shape

MOE = replace(
    LLAMA,
    name="toy_moe",
    num_moe_experts=8,
    moe_ffn_hidden_size=32,
    moe_token_dispatcher_type=TokenDispatcher.ALLTOALL,
)
GROUPED: dict[str, Any] = {
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "transformer_impl": TransformerImpl.TRANSFORMER_ENGINE,
}
"""As users train: Transformer Engine's grouped GEMM and fused permutation."""
TOKENS = 32 * 2


def moe_shape(**changes: Any) -> RankShape:
    """One rank of the toy at TP 1: 32 positions, micro batch 2."""
    plain = {"tensor_model_parallel_size": 1, "sequence_parallel": False}
    return toy_shape(MOE, **(plain | changes))
