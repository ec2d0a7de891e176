"""Implementations of a head by name: what each starts from, and in which layers it is known."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from advisor.job.loss_head import HeadImplementation as Name
from advisor.layers.heads import chunked, sharded, whole
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape


class Head(Struct, frozen=True, kw_only=True):
    """operators: of the last hidden states, or of logits (`of_logits`), up to what it returns.
    eager, megatron: whether it is known after eager torch's layers, and after Megatron's."""

    operators: Callable[[RankShape, Tensor], tuple[Operator, ...]]
    of_logits: bool = False
    eager: bool = True
    megatron: bool = False


def _fused(operators: Callable[[RankShape, Tensor], tuple[Operator, ...]]) -> Head:
    return Head(operators=operators)


def _of_logits(operators: Callable[[RankShape, Tensor], tuple[Operator, ...]]) -> Head:
    return Head(operators=operators, of_logits=True)


def _on_megatron(
    operators: Callable[[RankShape, Tensor], tuple[Operator, ...]], *, of_logits: bool, eager: bool
) -> Head:
    return Head(operators=operators, of_logits=of_logits, eager=eager, megatron=True)


HEADS: Final = {
    Name.LIGER_GRPO: _fused(chunked.liger_grpo),
    Name.LIGER_PREFERENCE: _fused(chunked.liger_preference),
    Name.TRL: _fused(chunked.trl),
    Name.TRL_LOGITS: _of_logits(whole.trl_logits),
    Name.VERL: _of_logits(whole.verl),
    Name.VERL_FUSED: _fused(chunked.verl_fused),
    Name.VERL_TRITON: _on_megatron(chunked.verl_triton, of_logits=False, eager=True),
    Name.VERL_MEGATRON: _on_megatron(sharded.verl_megatron, of_logits=True, eager=False),
    Name.PRIME_RL: _fused(chunked.prime_rl),
    Name.PRIME_RL_VOCABULARY: _fused(chunked.prime_rl_vocabulary),
    Name.PRIME_RL_CROSS_ENTROPY: _of_logits(whole.prime_rl_cross_entropy),
    Name.PRIME_RL_LOGITS: _of_logits(whole.prime_rl_logits),
    Name.OPENRLHF: _of_logits(whole.openrlhf),
    Name.AUTOMODEL_CHUNKED: _fused(chunked.automodel_chunked),
    Name.CUT_CROSS_ENTROPY: _fused(chunked.cut_cross_entropy),
    Name.TORCHTITAN_CHUNKED: _fused(chunked.torchtitan_chunked),
    Name.SLIME: _on_megatron(sharded.slime, of_logits=True, eager=False),
    Name.NEMO_RL: _on_megatron(sharded.nemo_rl, of_logits=True, eager=True),
    Name.NEMO_RL_FUSED: _on_megatron(chunked.nemo_rl_fused, of_logits=False, eager=False),
}
"""Without the default, and without transformers' and Liger's, which are the layers' own."""
