"""Kinds of attention in Megatron's words: choices of its options, and what they exclude.

Source: megatron-core 0.16.1 transformer/transformer_config.py (TransformerConfig,
MLATransformerConfig).
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.models.spec import ModelSpec


class RopeType(StrEnum):
    """`--rope-type` of multi-latent attention; only yarn has a fused kernel there."""

    ROPE = "rope"
    YARN = "yarn"


class SoftmaxType(StrEnum):
    """`--softmax-type`: whether the denominator has a sink, and whether it is learnt."""

    VANILLA = "vanilla"
    OFF_BY_ONE = "off-by-one"
    LEARNABLE = "learnable"


class CpCommType(StrEnum):
    """`--cp-comm-type`: how attention reaches across the ranks of context parallelism.

    Keys and values go round a ring, are gathered, or heads are exchanged for positions; a2a+p2p
    exchanges heads within hierarchical_context_parallel_sizes[0] ranks, rings among them.
    """

    P2P = "p2p"
    ALL_GATHER = "all_gather"
    A2A = "a2a"
    A2A_P2P = "a2a+p2p"


def check_attention(model: "ModelSpec") -> None:
    """Raise UserError on what Megatron refuses about attention."""
    for field in _SIZES:
        value = getattr(model, field)
        if value is not None and not 1 <= value <= _LARGEST:
            raise _refuse(model, field, f"must be in 1 .. {_LARGEST}")
    if model.multi_latent_attention:
        _check_latent(model)
    if model.window_attn_skip_freq is None:
        return
    if model.window_size is None:
        raise _refuse(model, "window_attn_skip_freq", "needs window_size")
    if not model.window_attn_skip_freq.isdigit():
        model.window_attn_skip_freq.expand(model.num_layers, "model.window_attn_skip_freq")


def _check_latent(model: "ModelSpec") -> None:
    if model.num_query_groups != model.num_attention_heads:
        raise _refuse(
            model, "num_query_groups", "must equal num_attention_heads under multi-latent attention"
        )
    if model.window_size is not None:
        raise _refuse(model, "window_size", "is not modelled with multi-latent attention")


def _refuse(model: "ModelSpec", field: str, relation: str) -> UserError:
    return UserError(f"model.{field}", getattr(model, field), relation)


_SIZES = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "window_size",
    "mtp_num_layers",
)
_LARGEST = 10**8
