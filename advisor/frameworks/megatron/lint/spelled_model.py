"""The model that a configuration of Megatron spells out: its fields, and a preset of its shape."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from advisor.frameworks.megatron.lint.option_values import field_values, is_taken, omitted_values
from advisor.frameworks.megatron.lint.settings import Fields, ReadSettings, Said
from advisor.frameworks.names import Framework
from advisor.frameworks.option import dashed
from advisor.models.options import Activation, PositionEmbedding
from advisor.models.presets import load_preset, presets_with
from advisor.models.spec import ModelSpec
from advisor.models.variants import of_providers
from advisor.reading.read_configuration import ReadValue, as_whole_number, truth

_SIZES: Final = ("num_layers", "hidden_size", "num_attention_heads")
_COMPARED: Final = (*_SIZES, "ffn_hidden_size", "num_query_groups", "num_moe_experts")
_NEARER: Final = ("vocab_size", "max_position_embeddings", "position_embedding_type")
"""Fields in which presets of one shape may differ."""
_ACTIVATIONS: Final = {
    "swiglu": Activation.SWIGLU,
    "squared_relu": Activation.SQUARED_RELU,
    "quick_geglu": Activation.QUICK_GEGLU,
}
_UNTIED: Final = "untie_embeddings_and_output_weights"
_POSITIONS: Final = {"yarn": PositionEmbedding.ROPE}
"""Kinds of positions whose tensors are those of another one."""


def shape_values(read: ReadSettings, said: Said) -> dict[str, ReadValue]:
    """Fields of the model. A command line of Megatron-LM that gives layers, width and heads gives
    all of them, by its defaults where it says nothing (training/arguments.py validate_args), unless
    some of its words are not known."""
    found = field_values(said, shape=True)
    if read.given.framework != Framework.MEGATRON_LM:
        # Megatron-LM's command line says these of TransformerConfig otherwise
        own = ("num_query_groups", "position_embedding_type")
        taken = (n for n in own if n in said and is_taken(f"model.{n}", said[n].value))
        return found | {f"model.{name}": said[name] for name in taken}
    if any(name not in said for name in _SIZES) or said["hidden_size"].value is None:
        return found
    found |= dict(_derived(read, said))
    omitted = {} if read.unknown else omitted_values(read, said, shape=True)
    return {**omitted, **found}


def _derived(read: ReadSettings, said: Said) -> Fields:
    """Fields that follow from several options."""
    sizes = {name: given.value for name, given in said.items()}
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    given = (name for name in _ACTIVATIONS if sizes.get(name))
    activation = next(given, None)
    knows_all = not read.unknown
    if activation is not None:
        yield "model.activation", said[activation].meaning(_ACTIVATIONS[activation])
    elif knows_all:
        yield "model.activation", read.omitted(Activation.GELU, "no --swiglu")
    if knows_all:
        yield from _omitted_widths(read, sizes, gated=activation == "swiglu")
    if "kv_channels" not in said and heads:
        yield "model.kv_channels", read.omitted(hidden // heads, "no --kv-channels")
    if "num_query_groups" in said and sizes.get("group_query_attention"):
        yield "model.num_query_groups", said["num_query_groups"]
    elif knows_all:
        yield "model.num_query_groups", read.omitted(heads, "no --group-query-attention")
    untied, path = said.get(_UNTIED), "model.share_embeddings_and_output_weights"
    if untied is not None:
        yield path, untied.meaning(not untied.value)
    elif knows_all:
        yield path, read.omitted(True, f"no {dashed(_UNTIED)}")
    yield from _positions(read, said)
    if "num_moe_experts" in said and not sizes["num_moe_experts"]:
        yield "model.num_moe_experts", said["num_moe_experts"].meaning(None)


def _omitted_widths(read: ReadSettings, sizes: Mapping[str, Any], *, gated: bool) -> Fields:
    """Of validate_args; gated: two thirds of four times the width, in multiples of 64."""
    hidden = sizes["hidden_size"]
    if "ffn_hidden_size" not in sizes:
        ffn = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
        yield "model.ffn_hidden_size", read.omitted(ffn, "no --ffn-hidden-size")
    elif sizes.get("num_moe_experts") and "moe_ffn_hidden_size" not in sizes:
        ffn = read.omitted(sizes["ffn_hidden_size"], "no --moe-ffn-hidden-size")
        yield "model.moe_ffn_hidden_size", ffn
    if sizes.get("add_bias_linear", True):  # of every linear layer
        yield "model.add_qkv_bias", read.omitted(True, "no --disable-bias-linear")


def _positions(read: ReadSettings, said: Said) -> Fields:
    """--use-rotary-position-embeddings is an old spelling of rope, and goes before the new one."""
    path = "model.position_embedding_type"
    rotary = read.loose.get("use_rotary_position_embeddings")
    given = said.get("position_embedding_type")
    if rotary is not None and truth(rotary.value):
        yield path, rotary.meaning(PositionEmbedding.ROPE)
    elif given is not None:
        kind = _POSITIONS.get(given.value, given.value)
        if kind in list(PositionEmbedding):
            yield path, given.meaning(kind)
    elif not read.unknown:
        yield path, read.omitted(PositionEmbedding.LEARNED, "no --position-embedding-type")


def model_of_shape(read: ReadSettings, shape: Said) -> str:
    """The preset with the shape that is spelled out; empty where there is none."""
    values = {path.removeprefix("model."): given.value for path, given in shape.items()}
    wanted = _filled(values)
    if wanted is None:
        return ""
    provided = read.given.framework != Framework.MEGATRON_LM
    found = [
        spec
        for spec in _specs(*wanted[:2])
        if tuple(getattr(spec, name) for name in _COMPARED) == wanted
        and (provided or next(of_providers(spec), None) is None)
    ]
    for field in _NEARER:
        found = [one for one in found if getattr(one, field) == values.get(field)] or found
    return found[0].name if found else ""


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
def _specs(layers: int | None, width: int | None) -> tuple[ModelSpec, ...]:
    """Of the presets that may have these sizes: reading all takes longer than an answer."""
    names = presets_with((f"num_layers: {layers}\n", f"hidden_size: {width}\n"))
    return tuple(load_preset(name).spec for name in names)
