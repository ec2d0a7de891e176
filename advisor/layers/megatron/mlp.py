"""Dense MLP: linear_fc1, activation, linear_fc2 (megatron-core 0.16.1 transformer/mlp.py)."""

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.layers.megatron.quantization import gradient_copies, saved_input
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
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
    """An MLP that tensor parallelism cuts."""
    fc1_width = shape.model.fc1_size_of(mlp.ffn_hidden_size) // shape.tp
    fc1_out = shape.activation(f"{mlp.prefix}fc1_out", fc1_width)
    ffn = mlp.ffn_hidden_size // shape.tp
    activated = shape.activation(f"{mlp.prefix}activation_out", ffn)
    return (
        _linear_fc1(shape, source, fc1_out, mlp),
        _activation(shape, fc1_out, activated, mlp),
        _linear_fc2(shape, activated, mlp),
    )


def _linear_fc1(shape: RankShape, source: Tensor, output: Tensor, mlp: Mlp) -> Operator:
    """Column parallel; saves its input as the SP shard. The bias is added with the activation."""
    model, width = shape.model, output.shape[-1]
    name = f"{mlp.prefix}linear_fc1"
    weights = [Weight(f"{name}.weight", (width, model.hidden_size), True, True)]
    if model.add_bias_linear:
        weights.append(Weight(f"{name}.bias", (width,), True))
    return Operator(
        name,
        mlp.fc1,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved_input(shape, source),
        weights=tuple(weights),
        gemm=shape.gemm(shape.tokens, width, model.hidden_size),
        forward_collectives=shape.column_parallel_forward(),
        backward_collectives=shape.column_parallel_backward(),
        forward_workspace=shape.gathered_input_workspace,
        backward_workspace=shape.column_parallel_workspace
        + gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * model.hidden_size),
        extra_backward_bytes=shape.main_grad_traffic(width * model.hidden_size),
    )


def _activation(shape: RankShape, source: Tensor, output: Tensor, mlp: Mlp) -> Operator:
    """Bias and activation. Fused, it keeps its input [s/cp, b, fc1 width / tp] alone.

    With activation_func_fp8_input_store the input is kept in 8 bits (fused_bias_swiglu.py).
    Unfused SwiGLU keeps the input (both halves are views of it), silu(gate), and the copy that
    `value + glu_linear_offset` makes. Unfused GELU keeps input plus bias, squared ReLU keeps the
    ReLU's output: one tensor of the input's size each.
    """
    saved: tuple[Tensor, ...] = (source,)
    if shape.quantizes and shape.model.activation_func_fp8_input_store:
        saved = (Tensor(f"{source.name}_fp8", source.shape, DType.FLOAT8, copy_of=source.name),)
    if shape.model.activation.gated and not fuses_activation(shape):
        saved += tuple(
            Tensor(f"{mlp.prefix}{half}", output.shape, output.dtype)
            for half in ("glu_gate", "glu_value")
        )
    return Operator(f"{mlp.prefix}activation", mlp.activation, (source,), (output,), saved=saved)


def fuses_activation(shape: RankShape) -> bool:
    """Whether bias_activation_fusion applies: SwiGLU, GEGLU, and GELU with a bias (mlp.py)."""
    model = shape.model
    if not model.bias_activation_fusion or model.activation is Activation.SQUARED_RELU:
        return False
    return model.activation.gated or model.add_bias_linear


def _linear_fc2(shape: RankShape, source: Tensor, mlp: Mlp) -> Operator:
    """Row parallel; saves the activation's output."""
    model, width = shape.model, source.shape[-1]
    name = f"{mlp.prefix}linear_fc2"
    output = shape.hidden(f"{mlp.prefix}mlp_out")
    weights = [Weight(f"{name}.weight", (model.hidden_size, width), True, True)]
    if model.add_bias_linear:
        weights.append(Weight(f"{name}.bias", (model.hidden_size,)))
    return Operator(
        name,
        mlp.fc2,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved_input(shape, source),
        weights=tuple(weights),
        gemm=shape.gemm(shape.tokens, model.hidden_size, width),
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
        forward_workspace=shape.row_parallel_workspace,
        gathers_gradient=shape.gathers_gradient,
        backward_workspace=shape.row_parallel_workspace
        + gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * model.hidden_size),
        extra_backward_bytes=shape.main_grad_traffic(width * model.hidden_size),
    )
