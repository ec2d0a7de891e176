"""What every layer of the native model is built from: its settings, norms and the MLP."""

from typing import Any

import torch
from msgspec import Struct, field
from torch import Tensor, nn

from advisor.layers.operators import Module
from advisor.models.options import Normalization, PositionEmbedding
from advisor.models.spec import ModelSpec
from harness.backends.native.modules.kernels import bias_activation, normalize, rotary_frequencies
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
            in_size, out_size, self.tensor, column_parallel=column_parallel, **options, **self.where
        )

    def frequencies(self) -> Tensor | None:
        """Rotary angles that all layers share; None without. Yarn's are RoPE's here: same bytes."""
        if self.model.position_embedding_type is not PositionEmbedding.ROPE:
            return None
        return rotary_frequencies(self.seq_length, self.model.rotary_dim, self.device)


class Norm(nn.Module):
    """RMSNorm or LayerNorm, as the model says."""

    def __init__(self, settings: LayerSettings, width: int) -> None:
        super().__init__()
        self.kind = settings.model.normalization
        self.weight = nn.Parameter(torch.empty(width, **settings.where))
        self.bias: nn.Parameter | None = None
        if self.kind is Normalization.LAYER_NORM:
            self.bias = nn.Parameter(torch.empty(width, **settings.where))

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last dimension."""
        return normalize(self.kind, x, self.weight, self.bias)


class Mlp(nn.Module):
    """linear_fc1, bias and activation in one, linear_fc2."""

    def __init__(self, settings: LayerSettings, ffn_hidden_size: int) -> None:
        super().__init__()
        model, bias = settings.model, settings.model.add_bias_linear
        self.activation = model.activation
        self.linear_fc1 = settings.linear(
            model.hidden_size,
            model.fc1_size_of(ffn_hidden_size),
            bias=bias,
            blocks=2 if model.activation.gated else 1,
        )
        self.linear_fc2 = settings.linear(
            ffn_hidden_size, model.hidden_size, column_parallel=False, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        """The branch before its bias."""
        widened = self.linear_fc1(x)
        activated = bias_activation(self.activation, widened, self.linear_fc1.bias)
        output: Tensor = self.linear_fc2(activated)
        return output
