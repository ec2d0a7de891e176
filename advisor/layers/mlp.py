"""Dense MLP: linear_fc1, activation, linear_fc2 (megatron-core 0.16.1 transformer/mlp.py)."""

from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.spec import Activation


def mlp_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """From the normalized input to linear_fc2's output."""
    model = shape.model
    ffn = model.ffn_hidden_size // shape.tp
    fc1_out = shape.activation("fc1_out", model.fc1_size // shape.tp)
    activated = shape.activation("activation_out", ffn)
    return (
        _linear_fc1(shape, source, fc1_out),
        _activation(shape, fc1_out, activated),
        _linear_fc2(shape, activated),
    )


def _linear_fc1(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """Column parallel; saves its input as the SP shard. The bias is added with the activation."""
    model, width = shape.model, output.shape[-1]
    weights = [Weight("linear_fc1.weight", (width, model.hidden_size), True, True)]
    if model.add_bias_linear:
        weights.append(Weight("linear_fc1.bias", (width,), True))
    return Operator(
        name="linear_fc1",
        module=Module.LINEAR_FC1,
        unit=ComputeUnit.GEMM,
        inputs=(source,),
        outputs=(output,),
        saved=(source,),
        weights=tuple(weights),
        gemm=Gemm(shape.tokens, width, model.hidden_size),
        forward_collectives=shape.column_parallel_forward(),
        backward_collectives=shape.column_parallel_backward(),
        forward_workspace=shape.gathered_input_workspace,
        backward_workspace=shape.column_parallel_workspace
        + shape.weight_gradient_bytes(width * model.hidden_size),
    )


def _activation(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """Bias and activation. Fused, it keeps its input [s/cp, b, fc1 width / tp] alone.

    Unfused SwiGLU keeps the input (both halves are views of it), silu(gate), and the copy that
    `value + glu_linear_offset` makes. Unfused GELU keeps input plus bias, squared ReLU keeps the
    ReLU's output: one tensor of the input's size each.
    """
    model = shape.model
    saved: tuple[Tensor, ...] = (source,)
    if model.activation.gated and not fuses_activation(shape):
        saved += (
            shape.activation("glu_gate", output.shape[-1]),
            shape.activation("glu_value", output.shape[-1]),
        )
    return Operator(
        name="activation",
        module=Module.ACTIVATION,
        unit=ComputeUnit.BANDWIDTH,
        inputs=(source,),
        outputs=(output,),
        saved=saved,
    )


def fuses_activation(shape: RankShape) -> bool:
    """Whether bias_activation_fusion applies: SwiGLU, GEGLU, and GELU with a bias (mlp.py)."""
    model = shape.model
    if not model.bias_activation_fusion or model.activation is Activation.SQUARED_RELU:
        return False
    return model.activation.gated or model.add_bias_linear


def _linear_fc2(shape: RankShape, source: Tensor) -> Operator:
    """Row parallel; saves the activation's output."""
    model, width = shape.model, source.shape[-1]
    weights = [Weight("linear_fc2.weight", (model.hidden_size, width), True, True)]
    if model.add_bias_linear:
        weights.append(Weight("linear_fc2.bias", (model.hidden_size,)))
    return Operator(
        name="linear_fc2",
        module=Module.LINEAR_FC2,
        unit=ComputeUnit.GEMM,
        inputs=(source,),
        outputs=(shape.hidden("mlp_out"),),
        saved=(source,),
        weights=tuple(weights),
        gemm=Gemm(shape.tokens, model.hidden_size, width),
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
        forward_workspace=shape.row_parallel_workspace,
        gathers_gradient=shape.gathers_gradient,
        backward_workspace=shape.row_parallel_workspace
        + shape.weight_gradient_bytes(width * model.hidden_size),
    )
