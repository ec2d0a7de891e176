"""torchtitan's layers as operators."""

from typing import Final

from advisor.models.options import TransformerImpl

IMPLEMENTATIONS: Final = (TransformerImpl.TORCH,)
