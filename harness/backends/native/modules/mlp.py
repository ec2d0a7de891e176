"""The dense MLP of a layer."""

from torch import Tensor, nn

from harness.backends.native.modules.kernels import bias_activation
from harness.backends.native.modules.linear import ParallelLinear
from harness.backends.native.modules.settings import LayerSettings


class Mlp(nn.Module):
    """linear_fc1, bias and activation in one, linear_fc2."""

    def __init__(self, settings: LayerSettings, ffn_hidden_size: int) -> None:
        super().__init__()
        model, tp = settings.model, settings.tensor
        self.activation = model.activation
        self.linear_fc1 = ParallelLinear(
            model.hidden_size,
            model.fc1_size_of(ffn_hidden_size),
            tp,
            column_parallel=True,
            bias=model.add_bias_linear,
            blocks=2 if model.activation.gated else 1,
            **settings.where,
        )
        self.linear_fc2 = ParallelLinear(
            ffn_hidden_size,
            model.hidden_size,
            tp,
            column_parallel=False,
            bias=model.add_bias_linear,
            **settings.where,
        )

    def forward(self, x: Tensor) -> Tensor:
        """The branch before its bias."""
        widened = self.linear_fc1(x)
        activated = bias_activation(self.activation, widened, self.linear_fc1.bias)
        output: Tensor = self.linear_fc2(activated)
        return output
