"""The kind of every layer of a model, in order, out of patterns, frequencies and letters; heads of
those that mix tokens in other ways than softmax attention.

Source: megatron-core 0.16.1 transformer/transformer_config.py, 0.19.0
models/hybrid/hybrid_layer_allocation.py.
"""

from collections.abc import Sequence
from functools import lru_cache

from advisor.base.errors import UserError
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind, Mixer
from advisor.models.layer_pattern import LayerPattern
from advisor.models.model_fields import ModelFields

LINEAR_MIXERS = frozenset({Mixer.GATED_DELTA_NET, Mixer.MAMBA})
_SYMBOLS = {
    "M": LayerKind(Mixer.MAMBA, FeedForward.NONE),
    "G": LayerKind(Mixer.GATED_DELTA_NET, FeedForward.NONE),
    "*": LayerKind(Mixer.FULL, FeedForward.NONE),
    "-": LayerKind(Mixer.NONE, FeedForward.DENSE),
    "E": LayerKind(Mixer.NONE, FeedForward.MOE),
}


def layer_kinds(model: ModelFields) -> tuple[LayerKind, ...]:
    """The kind of every layer, in order."""
    if model.hybrid_layer_pattern is not None:
        kinds = hybrid_kinds(model.hybrid_layer_pattern)
    else:
        kinds = _layer_kinds(model.num_layers, model.num_moe_experts, model.moe_layer_freq)
    if model.linear_attention_freq is not None:
        kinds = with_linear_attention(kinds, model.linear_attention_freq)
    if model.window_size is not None:
        kinds = _with_windows(kinds, model.window_attn_skip_freq)
    if model.no_rope_freq is not None:
        kinds = _without_rotary(kinds, model.no_rope_freq)
    if model.num_kv_shared_layers:
        own = model.num_layers - model.num_kv_shared_layers
        kinds = (*kinds[:own], *(kind._replace(reuses_keys=True) for kind in kinds[own:]))
    if not model.first_last_layers_bf16:
        return kinds
    start = model.num_layers_at_start_in_bf16
    end = model.num_layers - model.num_layers_at_end_in_bf16
    return tuple(
        kind._replace(high_precision=not start <= layer < end) for layer, kind in enumerate(kinds)
    )


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
            "model.hybrid_layer_pattern",
            pattern,
            f"must not hold {unknown[0]!r}" if unknown else "must hold a layer",
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
    return _with_mixer(kinds, linear, Mixer.GATED_DELTA_NET)


def _with_mixer(
    kinds: tuple[LayerKind, ...], chosen: Sequence[bool], mixer: Mixer
) -> tuple[LayerKind, ...]:
    pairs = zip(kinds, chosen, strict=True)
    return tuple(kind._replace(mixer=mixer) if has else kind for kind, has in pairs)


@lru_cache(maxsize=256)
def _layer_kinds(
    num_layers: int, num_moe_experts: int | None, moe_layer_freq: LayerPattern
) -> tuple[LayerKind, ...]:
    if num_moe_experts is None:
        return (DENSE,) * num_layers
    experts = moe_layer_freq.expand(num_layers, "model.moe_layer_freq")
    moe = LayerKind(feed_forward=FeedForward.MOE)
    return tuple(moe if has_experts else DENSE for has_experts in experts)


@lru_cache(maxsize=256)
def _with_windows(kinds: tuple[LayerKind, ...], skip: LayerPattern | None) -> tuple[LayerKind, ...]:
    """Every layer has a window; of a number, every Nth has none; of a list, the zeros (0.16.1
    transformer/utils.py is_layer_window_attention)."""
    if skip is None:
        windowed = [True] * len(kinds)
    elif skip.isdigit():
        windowed = [not nth for nth in skip.expand_from_one(len(kinds), "")]
    else:
        windowed = list(skip.expand(len(kinds), "model.window_attn_skip_freq"))
    return _with_mixer(kinds, windowed, Mixer.SLIDING_WINDOW)


@lru_cache(maxsize=256)
def _without_rotary(kinds: tuple[LayerKind, ...], pattern: LayerPattern) -> tuple[LayerKind, ...]:
    """Layers that `pattern` names have no rotary positions (0.16.1 transformer_config.py)."""
    pairs = zip(kinds, pattern.expand_from_one(len(kinds), "model.no_rope_freq"), strict=True)
    return tuple(kind._replace(rotary=not without) for kind, without in pairs)


def mamba_heads(model: ModelFields) -> int:
    """Heads of a Mamba mixer: twice the hidden size over the head's, where none are given."""
    return model.mamba_num_heads or 2 * model.hidden_size // model.mamba_head_dim


@lru_cache(maxsize=256)
def sharded_heads(model: ModelFields) -> tuple[tuple[str, int], ...]:
    """Names and numbers that TP x CP must divide: both cut these mixers by heads and groups."""
    mixers = {kind.mixer for kind in layer_kinds(model)}
    named: list[tuple[str, int]] = []
    if Mixer.GATED_DELTA_NET in mixers:
        names = ("linear_num_key_heads", "linear_num_value_heads")
        named += [(name, getattr(model, name)) for name in names]
    if Mixer.MAMBA in mixers:
        named.append(("mamba_num_heads", mamba_heads(model)))
        named.append(("mamba_num_groups", model.mamba_num_groups))
    return tuple(named)
