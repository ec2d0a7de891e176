"""Dense MLP: linear_fc1, activation, linear_fc2 (megatron-core 0.16.1 transformer/mlp.py)."""

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.megatron.linear import column_parallel_linear, row_parallel_linear
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import Activation


class Mlp(Struct, frozen=True, kw_only=True):
    """Which MLP of a layer: its modules, its width, and what its tensors' names begin with."""

    fc1: Module = Module.LINEAR_FC1
    activation: Module = Module.ACTIVATION
    fc2: Module = Module.LINEAR_FC2
    ffn_hidden_size: int
    prefix: str = ""


def mlp_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """The dense MLP of a layer, from the normalized input to linear_fc2's output."""
    return parallel_mlp(shape, source, Mlp(ffn_hidden_size=shape.model.ffn_hidden_size))


def parallel_mlp(shape: RankShape, source: Tensor, mlp: Mlp) -> tuple[Operator, ...]:
    """An MLP that tensor parallelism cuts; linear_fc1's bias is added with the activation."""
    fc1_width = shape.model.fc1_size_of(mlp.ffn_hidden_size) // shape.tp
    fc1_out = shape.activation(f"{mlp.prefix}fc1_out", fc1_width)
    activated = shape.activation(f"{mlp.prefix}activation_out", mlp.ffn_hidden_size // shape.tp)
    output, bias = shape.hidden(f"{mlp.prefix}mlp_out"), shape.model.add_bias_linear
    fc1, fc2 = f"{mlp.prefix}linear_fc1", f"{mlp.prefix}linear_fc2"
    return (
        column_parallel_linear(shape, fc1, mlp.fc1, source, fc1_out, bias=bias),
        _activation(shape, fc1_out, activated, mlp),
        row_parallel_linear(shape, fc2, mlp.fc2, activated, output, bias=bias),
    )


def _activation(shape: RankShape, source: Tensor, output: Tensor, mlp: Mlp) -> Operator:
    """Bias and activation. Fused, it keeps its input [s/cp, b, fc1 width / tp] alone.

    With activation_func_fp8_input_store the input is kept in 8 bits (fused_bias_swiglu.py). Unfused
    SwiGLU keeps the input (both halves are views of it), silu(gate), and from 0.15 on the copy that
    `value + glu_linear_offset` makes. Unfused GELU keeps input plus bias, squared ReLU keeps the
    ReLU's output: one tensor of the input's size each."""
    saved: tuple[Tensor, ...] = (source,)
    if shape.quantizes and shape.model.activation_func_fp8_input_store:
        saved = (Tensor(f"{source.name}_fp8", source.shape, DType.FLOAT8, copy_of=source.name),)
    if shape.model.activation.gated and not fuses_activation(shape):
        saved += tuple(
            Tensor(f"{mlp.prefix}{half}", output.shape, output.dtype) for half in glu_halves(shape)
        )
    return Operator(f"{mlp.prefix}activation", mlp.activation, (source,), (output,), saved=saved)


def glu_halves(shape: RankShape) -> tuple[str, ...]:
    """What an unfused gated activation keeps besides its input, each half of that."""
    return ("glu_gate", "glu_value") if shape.copies_glu_value else ("glu_gate",)


def fuses_activation(shape: RankShape) -> bool:
    """Whether bias_activation_fusion applies: SwiGLU, GEGLU, and GELU with a bias (mlp.py)."""
    model = shape.model
    if not model.bias_activation_fusion or model.activation is Activation.SQUARED_RELU:
        return False
    return model.activation.gated or model.add_bias_linear
