"""Norms, and linear layers: cut by TP in columns or rows, or whole on every rank.

Source: megatron-core 0.16.1 tensor_parallel/layers.py; TE module/linear.py.
"""

from math import prod

from advisor.base.dtypes import DType
from advisor.layers.megatron.quantization import gradient_copies, saved_input
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.layers.weights import norm_weights
from advisor.models.options import Normalization


def column_parallel_linear(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor, *, bias: bool
) -> Operator:
    """`output` [.., n / tp] = `source` [.., k] x weight [n / tp, k].

    Saves its input; under SP that is the shard, which forward and backward gather: Megatron's own
    layer into a buffer of the process (see resident buffers). The data gradient of the whole
    sequence lives until its reduce-scatter.
    """
    width, inner = output.shape[-1], source.shape[-1]
    gathered = shape.tokens * inner * shape.dtype.itemsize
    workspace = gathered if shape.sequence_parallel else 0
    return Operator(
        name,
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved_input(shape, source),
        weights=_weights(name, width, inner, bias=bias, cut=True, bias_cut=True),
        gemm=shape.gemm(shape.tokens, width, inner),
        forward_collectives=shape.column_parallel_forward(gathered),
        backward_collectives=shape.column_parallel_backward(gathered),
        forward_workspace=0 if shape.is_local else workspace,
        backward_workspace=(1 if shape.is_local else 2) * workspace
        + gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * inner),
        extra_backward_bytes=shape.main_grad_traffic(width * inner),
    )


def row_parallel_linear(
    shape: RankShape,
    name: str,
    module: Module,
    source: Tensor,
    output: Tensor,
    *,
    bias: bool,
    saved: tuple[Tensor, ...] | None = None,
    forward_holds: tuple[Tensor, ...] = (),
) -> Operator:
    """`output` [.., hidden_size] = `source` [.., k / tp] x weight [hidden_size, k / tp]; saves its
    input, or `saved`. TP ranks add their parts up."""
    width, inner = output.shape[-1], prod(source.shape[2:])
    return Operator(
        name,
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved_input(shape, source) if saved is None else saved,
        forward_holds=forward_holds,
        weights=_weights(name, width, inner, bias=bias, cut=True, bias_cut=False),
        gemm=shape.gemm(shape.tokens, width, inner),
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
        forward_workspace=shape.row_parallel_workspace,
        gathers_gradient=shape.gathers_gradient,
        backward_workspace=shape.row_parallel_workspace
        + gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * inner),
        extra_backward_bytes=shape.main_grad_traffic(width * inner),
    )


def duplicated_linear(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """The whole weight on every TP rank, each with its own tokens under SP (TELinear, parallel
    mode "duplicated"). Saves its input."""
    width, inner = output.shape[-1], source.shape[-1]
    return Operator(
        name,
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved_input(shape, source),
        weights=_weights(name, width, inner, bias=False, cut=False, bias_cut=False),
        gemm=shape.gemm(prod(source.shape[:2]), width, inner),
        backward_workspace=gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * inner),
        extra_backward_bytes=shape.main_grad_traffic(width * inner),
    )


def _weights(
    name: str, width: int, inner: int, *, bias: bool, cut: bool, bias_cut: bool
) -> tuple[Weight, ...]:
    weight = Weight(f"{name}.weight", (width, inner), cut, True)
    return (weight, Weight(f"{name}.bias", (width,), bias_cut)) if bias else (weight,)


def norm_operator(shape: RankShape, module: Module, source: Tensor, output: Tensor) -> Operator:
    """Normalization over the last dimension of `source`.

    Saves its input and, in fp32 per row, rstd (RMSNorm) or mean and rstd (LayerNorm): torch's and
    Transformer Engine's fused kernels alike (TE layernorm_linear.py; ATen layer_norm_kernel.cu).
    """
    rows, width = source.shape[:-1], source.shape[-1]
    statistics: tuple[str, ...] = ("rstd",)
    if shape.model.normalization is Normalization.LAYER_NORM:
        statistics = ("mean", "rstd")
    saved = tuple(Tensor(f"{output.name}.{name}", rows, DType.FP32) for name in statistics)
    return Operator(
        f"{output.name}.norm" if module is Module.QK_LAYERNORM else str(module),
        module,
        (source,),
        (output,),
        saved=(source, *saved),
        weights=norm_weights(shape, module, width),
    )
