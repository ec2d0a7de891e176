"""Implementations of a head by name: what each starts from, and after which layers it is known."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from advisor.job.loss_head import HeadImplementation as Name
from advisor.layers.heads import sharded, whole
from advisor.layers.heads.chunked import CHUNKED, chunked
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape


class Head(Struct, frozen=True):
    """operators: of logits, or of the last hidden states, up to what it returns. eager, megatron:
    whether it is known after eager torch's layers, and after Megatron's."""

    operators: Callable[[RankShape, Tensor], tuple[Operator, ...]]
    of_logits: bool
    eager: bool
    megatron: bool


HEADS: Final = {
    Name.TRL_LOGITS: Head(whole.trl_logits, True, True, False),
    Name.VERL: Head(whole.verl, True, True, False),
    Name.PRIME_RL_LOGITS: Head(whole.prime_rl_logits, True, True, False),
    Name.PRIME_RL_CROSS_ENTROPY: Head(whole.prime_rl_cross_entropy, True, True, False),
    Name.OPENRLHF: Head(whole.openrlhf, True, True, False),
    Name.VERL_MEGATRON: Head(sharded.verl_megatron, True, False, True),
    Name.SLIME: Head(sharded.slime, True, False, True),
    Name.NEMO_RL: Head(sharded.nemo_rl, True, True, True),
    **{
        name: Head(chunked, False, "eager" in row.layers, "megatron" in row.layers)
        for name, row in CHUNKED.items()
    },
}
"""Without the default, and without transformers' and Liger's, which are the layers' own."""
