"""Plain torch modules, as torchtitan writes them."""

from typing import Final

from advisor.layers.eager.ends import embedding_operators, head_groups
from advisor.layers.family import LayerFamily
from advisor.layers.torchtitan.adapters import tuned
from advisor.layers.torchtitan.block import plain_layer

FAMILY: Final = LayerFamily(
    source="torchtitan",
    layer=plain_layer,
    embedding=embedding_operators,
    head=head_groups,
    tuned=tuned,
)
