"""Models whose layers mix tokens in other ways than softmax attention: gated delta net, Mamba-2.

Source: megatron-core 0.16.1 transformer/transformer_config.py, ssm/mamba_mixer.py and 0.19.0
models/hybrid/hybrid_layer_allocation.py.
"""

from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from advisor.base.errors import UserError
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer
from advisor.models.layer_pattern import LayerPattern

if TYPE_CHECKING:
    from advisor.models.spec import ModelSpec


class AttentionVariant(StrEnum):
    """`--experimental-attention-variant`, as far as it is modelled."""

    GATED_DELTA_NET = "gated_delta_net"


_SYMBOLS = {
    "M": LayerKind(Mixer.MAMBA, FeedForward.NONE),
    "G": LayerKind(Mixer.GATED_DELTA_NET, FeedForward.NONE),
    "*": LayerKind(Mixer.FULL, FeedForward.NONE),
    "-": LayerKind(Mixer.NONE, FeedForward.DENSE),
    "E": LayerKind(Mixer.NONE, FeedForward.MOE),
}
_PATTERN = "model.hybrid_layer_pattern"


def hybrid_segments(pattern: str) -> tuple[str, ...]:
    """The layers of every model chunk: `|` stands where one ends (one segment without any)."""
    return tuple(pattern.split("|"))


@lru_cache(maxsize=256)
def hybrid_kinds(pattern: str) -> tuple[LayerKind, ...]:
    """One layer a letter; UserError on a letter that is not modelled."""
    letters = pattern.replace("|", "")
    unknown = sorted(set(letters) - set(_SYMBOLS))
    if unknown or not letters:
        raise UserError(
            _PATTERN,
            pattern,
            f"has {unknown[0]!r}" if unknown else "names no layer",
            "write M (Mamba), G (gated delta net), * (attention), - (MLP), E (experts), |",
        )
    return tuple(_SYMBOLS[letter] for letter in letters)


@lru_cache(maxsize=256)
def with_linear_attention(
    kinds: tuple[LayerKind, ...], freq: LayerPattern
) -> tuple[LayerKind, ...]:
    """Of a number, every Nth layer has softmax attention and the others linear; of a list, the ones
    are linear (0.16.1 experimental_attention_variant_module_specs.py)."""
    if freq.isdigit():
        linear = [layer % int(freq) != 0 for layer in range(1, len(kinds) + 1)]
    else:
        linear = list(freq.expand(len(kinds), "model.linear_attention_freq"))
    return tuple(
        kind._replace(mixer=Mixer.GATED_DELTA_NET) if has else kind
        for kind, has in zip(kinds, linear, strict=True)
    )


def check_hybrid(model: "ModelSpec") -> None:
    """Raise UserError on what Megatron refuses about such layers, or what is not modelled."""
    for field in _SIZES:
        value = getattr(model, field)
        if value is not None and not 1 <= value <= _LARGEST:
            raise _refuse(model, field, f"must be in 1 .. {_LARGEST}")
    if (model.experimental_attention_variant is None) != (model.linear_attention_freq is None):
        raise _refuse(
            model,
            "linear_attention_freq",
            "goes with experimental_attention_variant",
            "set both, or neither",
        )
    if model.hybrid_layer_pattern is not None:
        _check_pattern(model, model.hybrid_layer_pattern)
    if model.linear_attention_freq is not None:
        with_linear_attention((LayerKind(),) * model.num_layers, model.linear_attention_freq)
    mixers = {kind.mixer for kind in model.layer_kinds}
    if Mixer.GATED_DELTA_NET in mixers:
        _check_divides(model, "linear_num_key_heads", "linear_num_value_heads")
    if Mixer.MAMBA in mixers:
        _check_mamba(model)
    if mixers & LINEAR_MIXERS or model.attention_output_gate:
        _check_attention(model)


def _check_pattern(model: "ModelSpec", pattern: str) -> None:
    layers = len(hybrid_kinds(pattern))
    if layers != model.num_layers:
        raise _refuse(
            model,
            "hybrid_layer_pattern",
            f"has {layers} layers, and num_layers is {model.num_layers}",
        )
    for field in ("linear_attention_freq", "window_size", "mtp_num_layers"):
        if getattr(model, field) is not None:
            raise _refuse(model, field, "is not modelled beside hybrid_layer_pattern")
    if model.num_moe_experts is None and "E" in pattern:
        raise _refuse(model, "hybrid_layer_pattern", "has E, which needs num_moe_experts")


def _check_mamba(model: "ModelSpec") -> None:
    if model.mamba_num_heads is None and 2 * model.hidden_size % model.mamba_head_dim:
        relation = f"must divide 2 x hidden_size = {2 * model.hidden_size}"
        raise _refuse(model, "mamba_head_dim", relation)
    if mamba_heads(model) % model.mamba_num_groups:
        relation = f"must divide the {mamba_heads(model)} heads of Mamba"
        raise _refuse(model, "mamba_num_groups", relation)


def _check_attention(model: "ModelSpec") -> None:
    """Softmax attention beside such layers, or with an output gate, is plain MHA or GQA."""
    if model.multi_latent_attention:
        raise _refuse(
            model,
            "multi_latent_attention",
            "is not modelled beside linear attention, Mamba or an output gate",
        )
    if model.window_size is not None:
        raise _refuse(model, "window_size", "is not modelled beside linear attention or Mamba")


def _check_divides(model: "ModelSpec", field: str, other: str) -> None:
    if getattr(model, other) % getattr(model, field):
        raise _refuse(model, field, f"must divide {other} = {getattr(model, other)}")


def mamba_heads(model: "ModelSpec") -> int:
    """Heads of a Mamba mixer: twice the hidden size over the head's, where none are given."""
    return model.mamba_num_heads or 2 * model.hidden_size // model.mamba_head_dim


@lru_cache(maxsize=256)
def sharded_heads(model: "ModelSpec") -> tuple[tuple[str, int], ...]:
    """Names and numbers that TP x CP must divide: both cut these mixers by heads and groups."""
    mixers = {kind.mixer for kind in model.layer_kinds}
    named: list[tuple[str, int]] = []
    if Mixer.GATED_DELTA_NET in mixers:
        named += [(name, getattr(model, name)) for name in _GATED_DELTA_NET_HEADS]
    if Mixer.MAMBA in mixers:
        named += [
            ("mamba_num_heads", mamba_heads(model)),
            ("mamba_num_groups", model.mamba_num_groups),
        ]
    return tuple(named)


def _refuse(model: "ModelSpec", field: str, relation: str, nearest: str = "") -> UserError:
    return UserError(f"model.{field}", getattr(model, field), relation, nearest)


LINEAR_MIXERS = frozenset({Mixer.GATED_DELTA_NET, Mixer.MAMBA})
_GATED_DELTA_NET_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
_SIZES = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    *_GATED_DELTA_NET_HEADS,
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
)
_LARGEST = 10**8
