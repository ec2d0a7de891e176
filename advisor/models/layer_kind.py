"""What kinds of layers a model is made of: its mixer of tokens, and its feed-forward part."""

from enum import StrEnum
from typing import NamedTuple


class Mixer(StrEnum):
    """How the tokens of a layer see each other; none: not at all, the layer is a feed-forward."""

    FULL = "full_attention"
    SLIDING_WINDOW = "sliding_window_attention"
    GATED_DELTA_NET = "gated_delta_net"
    MAMBA = "mamba"
    NONE = "none"

    __hash__ = str.__hash__


SOFTMAX_MIXERS = frozenset({Mixer.FULL, Mixer.SLIDING_WINDOW})
"""Those with scores, whatever their projections are."""


class FeedForward(StrEnum):
    """What follows the mixer; none: nothing, as in the layers of a hybrid pattern."""

    DENSE = "mlp"
    MOE = "moe"
    NONE = "none"

    __hash__ = str.__hash__


class Role(StrEnum):
    """What a member of a model chunk is."""

    LAYER = "transformer_layer"
    VISION = "vision_block"
    FINAL_LAYERNORM = "final_layernorm"
    MULTI_TOKEN_PREDICTION = "mtp"

    __hash__ = str.__hash__


class LayerKind(NamedTuple):
    """Layers of one kind run the same operators: they are computed once.

    role: a transformer layer of the decoder, a block of the tower before it in a model that sees,
    or what a model with multi-token prediction has after the last one: the final norm, and then the
    layers that predict further tokens.
    high_precision: bf16 linear layers in a job of 8 or 4 bits (first_last_layers_bf16).
    rotary: with rotary positions, where the model has them.
    constant: a block of a tower, or a frozen layer before all that are trained, that runs without
    gradients.
    reuses_keys: attends to keys and values of an earlier layer (num_kv_shared_layers).

    A named tuple, because chunks of many layers are keys of caches: it hashes fastest.
    """

    mixer: Mixer = Mixer.FULL
    feed_forward: FeedForward = FeedForward.DENSE
    high_precision: bool = False
    role: Role = Role.LAYER
    rotary: bool = True
    reuses_keys: bool = False
    constant: bool = False

    @property
    def name(self) -> str:
        """``full_attention+mlp``, ``mamba`` or ``moe``: what it is made of."""
        parts = (self.mixer, self.feed_forward)
        text = "+".join(part for part in parts if part not in (Mixer.NONE, FeedForward.NONE))
        return f"vision:{text}" if self.role is Role.VISION else text


DENSE = LayerKind()
"""Attention over the whole sequence and a dense MLP."""
