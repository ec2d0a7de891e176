"""Megatron Core's layers as operators: Transformer Engine's modules, or its own."""

from typing import Final

from advisor.models.options import TransformerImpl

IMPLEMENTATIONS: Final = (TransformerImpl.TRANSFORMER_ENGINE, TransformerImpl.LOCAL)
