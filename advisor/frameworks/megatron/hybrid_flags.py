"""Megatron's options of linear attention, of an output gate and of hybrid patterns.

Option names: megatron-core wheels 0.17.0 and 0.19.0 training/arguments.py, and argument_utils.py,
which makes the others from TransformerConfig's fields. 0.16 spells the pattern
--hybrid-override-pattern.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from advisor.frameworks.megatron.revisions import Revision
from advisor.models.spec import ModelSpec

_SHAPES: Final = ("linear_", "mamba_")


def hybrid_flags(model: ModelSpec, revision: Revision) -> Iterator[str]:
    """What makes mixers other than plain attention; shapes where they are not the default."""
    if model.attention_output_gate:
        yield "--attention-output-gate"
    if model.experimental_attention_variant is not None:
        yield from ("--experimental-attention-variant", str(model.experimental_attention_variant))
    if model.hybrid_layer_pattern is not None:
        name = "layer" if revision.at_least(0, 17) else "override"
        yield from (f"--hybrid-{name}-pattern", model.hybrid_layer_pattern)
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name.startswith(_SHAPES) and value != field.default:
            yield from (f"--{field.name.replace('_', '-')}", str(value))
