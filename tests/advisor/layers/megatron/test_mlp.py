import pytest

from advisor.layers.megatron.mlp import fuses_activation, mlp_operators
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from tests.advisor.toys import GPT, HIDDEN, toy_shape


def mlp(shape: RankShape) -> tuple[Operator, ...]:
    return mlp_operators(shape, shape.hidden("mlp_input"))


@pytest.mark.parametrize(
    ("changes", "fused"),
    [
        ({"activation": "swiglu"}, True),
        ({"activation": "geglu"}, True),
        ({"activation": "gelu", "add_bias_linear": True}, True),
        ({"activation": "gelu"}, False),
        ({"activation": "squared_relu"}, False),
        ({"activation": "swiglu", "bias_activation_fusion": False}, False),
    ],
)
def test_which_activations_fuse(changes: dict[str, object], fused: bool) -> None:
    assert fuses_activation(toy_shape(**changes)) == fused


def test_weights_and_gemms() -> None:
    fc1, _, fc2 = mlp(toy_shape())
    assert [w.shape for w in fc1.weights] == [(2 * 128 // 2, 64)]
    assert [w.shape for w in fc2.weights] == [(64, 128 // 2)]
    assert fc1.forward_flops == 2 * 64 * 128 * 64
    assert fc2.forward_flops == 2 * 64 * 64 * 64
    fc1, _, fc2 = mlp(toy_shape(GPT))
    assert [w.shape for w in (*fc1.weights, *fc2.weights)] == [(128, 64), (128,), (64, 128), (64,)]


def test_workspaces_hold_gathered_tensors_and_weight_gradients() -> None:
    fc1, activation, fc2 = mlp(toy_shape())
    assert (fc1.forward_workspace, fc2.forward_workspace) == (0, HIDDEN)
    assert fc1.backward_workspace == HIDDEN + 2 * 128 * 64
    assert fc2.backward_workspace == HIDDEN + 2 * 64 * 64
    assert (fc1.gathers_gradient, fc2.gathers_gradient) == (False, True)
    assert activation.backward_workspace == 0
