"""Norms, and linear layers: cut by TP in columns or rows, or whole on every rank.

Source: megatron-core 0.16.1 tensor_parallel/layers.py; TE module/linear.py.
"""

from math import prod

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.megatron.quantization import gradient_copies, saved_input
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape, norm_weights
from advisor.models.options import Normalization


def column_parallel_linear(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor, *, bias: bool
) -> Operator:
    """`output` [.., n / tp] = `source` [.., k] x weight [n / tp, k].

    Saves its input; under SP that is the shard, which forward and backward gather: Megatron's own
    layer into a buffer of the process (see resident buffers). The data gradient of the whole
    sequence lives until its reduce-scatter."""
    biases = (Weight(f"{name}.bias", output.shape[-1:], True),) if bias else ()
    layer = _linear(shape, name, module, source, output, shape.tokens, biases)
    gathered = shape.tokens * source.shape[-1] * shape.dtype.itemsize
    workspace = gathered if shape.sequence_parallel else 0
    return replace(
        layer,
        forward_collectives=shape.column_parallel_forward(gathered),
        backward_collectives=shape.column_parallel_backward(gathered),
        forward_workspace=0 if shape.is_local else workspace,
        backward_workspace=layer.backward_workspace + (1 if shape.is_local else 2) * workspace,
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
    biases = (Weight(f"{name}.bias", output.shape[-1:]),) if bias else ()
    layer = _linear(shape, name, module, source, output, shape.tokens, biases)
    kept = layer.saved if saved is None else saved
    return replace(
        layer,
        saved=kept,
        saved_for_weights=frozenset(tensor.name for tensor in kept),
        forward_holds=forward_holds,
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
        forward_workspace=shape.row_parallel_workspace,
        gathers_gradient=shape.gathers_gradient,
        backward_workspace=layer.backward_workspace + shape.row_parallel_workspace,
    )


def duplicated_linear(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """The whole weight on every TP rank, each with its own tokens under SP (TELinear, parallel
    mode "duplicated"). Saves its input."""
    return _linear(shape, name, module, source, output, prod(source.shape[:2]), (), cut=False)


def _linear(
    shape: RankShape,
    name: str,
    module: Module,
    source: Tensor,
    output: Tensor,
    tokens: int,
    biases: tuple[Weight, ...],
    *,
    cut: bool = True,
) -> Operator:
    """What all have: a GEMM over `tokens`, and in its backward copies of the output's gradient in
    few bits and the weight's gradient."""
    width, inner = output.shape[-1], prod(source.shape[2:])
    saved = saved_input(shape, source)
    return Operator(
        name,
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved,
        saved_for_weights=frozenset(tensor.name for tensor in saved),
        weights=(Weight(f"{name}.weight", (width, inner), cut, in_linear=True), *biases),
        gemm=shape.gemm(tokens, width, inner),
        backward_workspace=gradient_copies(shape, output)
        + shape.weight_gradient_bytes(width * inner),
        extra_backward_bytes=shape.main_grad_traffic(width * inner),
    )


def norm_operator(shape: RankShape, module: Module, source: Tensor, output: Tensor) -> Operator:
    """Normalization over the last dimension of `source`. Saves its input and, in fp32 per row, rstd
    (RMSNorm) or mean and rstd (LayerNorm): torch's and Transformer Engine's fused kernels alike (TE
    layernorm_linear.py; ATen layer_norm_kernel.cu)."""
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
