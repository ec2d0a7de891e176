"""Heads of layers that mix tokens in other ways than softmax attention: gated delta net, Mamba-2.

Source: megatron-core 0.16.1 ssm/mamba_mixer.py.
"""

from functools import lru_cache

from advisor.models.layer_kind import Mixer
from advisor.models.layer_kinds import layer_kinds
from advisor.models.model_fields import ModelFields


def mamba_heads(model: ModelFields) -> int:
    """Heads of a Mamba mixer: twice the hidden size over the head's, where none are given."""
    return model.mamba_num_heads or 2 * model.hidden_size // model.mamba_head_dim


@lru_cache(maxsize=256)
def sharded_heads(model: ModelFields) -> tuple[tuple[str, int], ...]:
    """Names and numbers that TP x CP must divide: both cut these mixers by heads and groups."""
    mixers = {kind.mixer for kind in layer_kinds(model)}
    named: list[tuple[str, int]] = []
    if Mixer.GATED_DELTA_NET in mixers:
        named += [(name, getattr(model, name)) for name in _GATED_DELTA_NET_HEADS]
    if Mixer.MAMBA in mixers:
        named += [
            ("mamba_num_heads", mamba_heads(model)),
            ("mamba_num_groups", model.mamba_num_groups),
        ]
    return tuple(named)


_GATED_DELTA_NET_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
