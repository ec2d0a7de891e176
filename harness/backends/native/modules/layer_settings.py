"""What every layer of the native model is built from."""

from typing import Any

import torch
from msgspec import Struct, field
from torch import Tensor

from advisor.layers.operators import Module
from advisor.models.options import PositionEmbedding
from advisor.models.spec import ModelSpec
from harness.backends.native.modules.kernels import rotary_frequencies
from harness.backends.native.modules.linear import ParallelLinear, TensorParallel
from harness.backends.native.setting import OpPolicy


class LayerSettings(Struct, frozen=True, kw_only=True):
    """Model, sizes, device and regime; `num_microbatches` of a step share auxiliary losses."""

    model: ModelSpec
    seq_length: int
    num_microbatches: int = 1
    dtype: torch.dtype
    device: torch.device
    tensor: TensorParallel = field(default_factory=TensorParallel)
    policy: OpPolicy | None = None
    offloaded: frozenset[Module] = frozenset()

    @property
    def where(self) -> dict[str, Any]:
        """Keywords that make a parameter."""
        return {"dtype": self.dtype, "device": self.device}

    def linear(
        self, in_size: int, out_size: int, *, column_parallel: bool = True, **options: Any
    ) -> ParallelLinear:
        """A linear layer of this rank."""
        return ParallelLinear(
            in_size,
            out_size,
            self.tensor,
            column_parallel=column_parallel,
            **options,
            **self.where,
        )

    def frequencies(self) -> Tensor | None:
        """Rotary angles that all layers share; None without rotary embedding. Yarn has RoPE's
        here: they change no byte and no FLOP."""
        if self.model.position_embedding_type is not PositionEmbedding.ROPE:
            return None
        return rotary_frequencies(self.seq_length, self.model.rotary_dim, self.device)
