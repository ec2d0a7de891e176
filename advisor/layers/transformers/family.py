"""The modelling code of Hugging Face's transformers."""

from typing import Final

from advisor.layers.eager.adapters import tuned
from advisor.layers.eager.ends import embedding_operators
from advisor.layers.family import LayerFamily
from advisor.layers.transformers.aux_loss import head_with_aux_loss
from advisor.layers.transformers.block import transformers_layer
from advisor.layers.transformers.core_attention import mask_bytes
from advisor.layers.transformers.tower_blocks import vision_end

FAMILY: Final = LayerFamily(
    source="transformers",
    layer=transformers_layer,
    embedding=embedding_operators,
    head=head_with_aux_loss,
    mask_bytes=mask_bytes,
    masks_rows=True,
    holds_embedding=True,  # inputs_embeds of LlamaModel.forward, and of its kin
    autocasts=True,
    loss_inside=True,  # LlamaForCausalLM.forward
    tuned=tuned,
    vision=vision_end,
)
