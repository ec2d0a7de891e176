"""Megatron Core's modules."""

from typing import Final

from advisor.layers.family import LayerFamily
from advisor.layers.megatron.adapters import tuned_operators
from advisor.layers.megatron.block import megatron_layer
from advisor.layers.megatron.ends import embedding_operators, head_groups

FAMILY: Final = LayerFamily(
    source="megatron-core",
    layer=megatron_layer,
    embedding=embedding_operators,
    head=head_groups,
    tuned=tuned_operators,
)
