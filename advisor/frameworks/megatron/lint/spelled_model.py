"""The model that a configuration of Megatron spells out: its fields, and a preset of its shape."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from advisor.frameworks.megatron.lint.option_values import field_values, is_taken, omitted_values
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.names import Framework
from advisor.models.options import Activation, PositionEmbedding
from advisor.models.presets import load_preset, model_names
from advisor.models.spec import ModelSpec
from advisor.models.variants import of_providers
from advisor.reading.document_keys import as_whole_number, truth
from advisor.reading.read_configuration import ReadValue

_SIZES: Final = ("num_layers", "hidden_size", "num_attention_heads")
_COMPARED: Final = (*_SIZES, "ffn_hidden_size", "num_query_groups", "num_moe_experts")
_NEARER: Final = ("vocab_size", "max_position_embeddings", "position_embedding_type")
"""Fields in which presets of one shape may differ."""
_ACTIVATIONS: Final = {
    "swiglu": Activation.SWIGLU,
    "squared_relu": Activation.SQUARED_RELU,
    "quick_geglu": Activation.QUICK_GEGLU,
}
_POSITIONS: Final = {"yarn": PositionEmbedding.ROPE}
"""Kinds of positions whose tensors are those of another one."""


def shape_values(read: ReadSettings, said: Mapping[str, ReadValue]) -> dict[str, ReadValue]:
    """Fields of the model. A command line of Megatron-LM that gives layers, width and heads gives
    all of them, by its defaults where it says nothing (training/arguments.py validate_args), unless
    some of its words are not known."""
    found = field_values(said, shape=True)
    if read.given.framework != Framework.MEGATRON_LM:
        return found | dict(_of_configuration(said))
    if any(name not in said for name in _SIZES):
        return found
    found |= dict(_derived(read, said))
    omitted = {} if read.unknown else omitted_values(read, said, shape=True)
    return {**omitted, **found}


def _of_configuration(said: Mapping[str, ReadValue]) -> Iterator[tuple[str, ReadValue]]:
    """Fields of TransformerConfig that Megatron-LM's command line says otherwise."""
    for name in ("num_query_groups", "position_embedding_type"):
        if name in said and is_taken(f"model.{name}", said[name].value):
            yield f"model.{name}", said[name]


def _derived(read: ReadSettings, said: Mapping[str, ReadValue]) -> Iterator[tuple[str, ReadValue]]:
    """Fields that follow from several options."""
    sizes = {name: given.value for name, given in said.items()}
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    activation, at = _activation(said)
    knows_all = not read.unknown
    if at is not None or knows_all:
        yield "model.activation", _value(read, at, "no --swiglu", activation)
    if "ffn_hidden_size" not in said and knows_all:
        # validate_args: two thirds of four times the width, in multiples of 64
        gated = int((4 * hidden * 2 / 3) / 64) * 64
        ffn = gated if activation is Activation.SWIGLU else 4 * hidden
        yield "model.ffn_hidden_size", _value(read, None, "no --ffn-hidden-size", ffn)
    if sizes.get("num_moe_experts") and "moe_ffn_hidden_size" not in said and knows_all:
        written, ffn = "no --moe-ffn-hidden-size", said.get("ffn_hidden_size")
        if ffn is not None:
            yield "model.moe_ffn_hidden_size", _value(read, None, written, ffn.value)
    if sizes.get("add_bias_linear", True) and knows_all:  # of every linear layer
        yield "model.add_qkv_bias", _value(read, None, "no --disable-bias-linear", True)
    if "kv_channels" not in said and heads:
        yield "model.kv_channels", _value(read, None, "no --kv-channels", hidden // heads)
    groups, grouped = said.get("num_query_groups"), said.get("group_query_attention")
    if groups is not None and grouped is not None and grouped.value:
        yield "model.num_query_groups", _value(read, groups, "", groups.value)
    elif knows_all:
        written = "no --group-query-attention"
        yield "model.num_query_groups", _value(read, None, written, heads)
    untied = said.get("untie_embeddings_and_output_weights")
    if untied is not None or knows_all:
        tied = untied is None or not untied.value
        written = "no --untie-embeddings-and-output-weights"
        yield "model.share_embeddings_and_output_weights", _value(read, untied, written, tied)
    yield from _positions(read, said)
    if "num_moe_experts" in said and not said["num_moe_experts"].value:
        yield "model.num_moe_experts", _value(read, said["num_moe_experts"], "", None)


def _activation(said: Mapping[str, ReadValue]) -> tuple[Activation, ReadValue | None]:
    for name, activation in _ACTIVATIONS.items():
        if name in said and said[name].value:
            return activation, said[name]
    return Activation.GELU, None


def _positions(
    read: ReadSettings, said: Mapping[str, ReadValue]
) -> Iterator[tuple[str, ReadValue]]:
    """--use-rotary-position-embeddings is an old spelling of rope, and goes before the new one."""
    path = "model.position_embedding_type"
    rotary, given = read.loose.get("use_rotary_position_embeddings"), None
    kind: Any = PositionEmbedding.LEARNED
    if rotary is not None and truth(rotary.value):
        kind, given = PositionEmbedding.ROPE, rotary
    elif (given := said.get("position_embedding_type")) is not None:
        kind = _POSITIONS.get(given.value, given.value)
        if kind not in list(PositionEmbedding):
            return
    if given is not None or not read.unknown:
        yield path, _value(read, given, "no --position-embedding-type", kind)


def _value(read: ReadSettings, given: ReadValue | None, written: str, value: Any) -> ReadValue:
    return read.omitted(value, written) if given is None else given.meaning(value)


def model_of_shape(read: ReadSettings, shape: Mapping[str, ReadValue]) -> str:
    """The preset with the shape that is spelled out; empty where there is none."""
    values = {path.removeprefix("model."): given.value for path, given in shape.items()}
    wanted = _filled(values)
    if wanted is None:
        return ""
    provided = read.given.framework != Framework.MEGATRON_LM
    names = [
        name
        for name, its in _shapes()
        if its == wanted and (provided or next(of_providers(load_preset(name).spec), None) is None)
    ]
    for field in _NEARER:
        same = [n for n in names if getattr(load_preset(n).spec, field) == values.get(field)]
        names = same or names
    return names[0] if names else ""


def _filled(values: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    """The sizes that presets are compared by, with what follows from others."""
    if any(not values.get(name) for name in _SIZES):
        return None
    usual = {
        "ffn_hidden_size": 4 * values["hidden_size"],
        "num_query_groups": values["num_attention_heads"],
        "num_moe_experts": None,
    }
    found = usual | {name: values[name] for name in _COMPARED if name in values}
    return tuple(as_whole_number(found[name]) if found[name] else None for name in _COMPARED)


@cache
def _shapes() -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    specs: list[ModelSpec] = [load_preset(name).spec for name in model_names()]
    return tuple((spec.name, tuple(getattr(spec, name) for name in _COMPARED)) for spec in specs)
