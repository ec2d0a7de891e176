"""The dense MLP of a layer."""

from torch import Tensor, nn

from harness.backends.native.modules.kernels import bias_activation
from harness.backends.native.modules.layer_settings import LayerSettings


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
