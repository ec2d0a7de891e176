"""Layers of Hugging Face's transformers as operators."""

from typing import Final

from advisor.models.options import TransformerImpl

IMPLEMENTATIONS: Final = (TransformerImpl.TRANSFORMERS,)
