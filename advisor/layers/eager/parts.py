"""What eager torch layers are made of: each operator is one kernel, or a few whose temporaries die.

Tensors are batch first, [micro_batch_size, seq_length, width]. A weight gradient is a tensor of its
own that stays until the layer's backward is through (autograd's accumulation, or FSDP's
reduce-scatter of the whole layer).
"""

from math import prod

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.layers.megatron import quantization
from advisor.layers.operators import (
    AttentionShape,
    ComputeUnit,
    Gemm,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.layers.shape import RankShape, norm_weights
from advisor.models.options import Activation, AttentionBackend, Normalization


def activation(shape: RankShape, name: str, *width: int) -> Tensor:
    """[micro_batch_size, seq_length, width]."""
    return Tensor(name, (shape.micro_batch_size, shape.local_seq, *width), shape.dtype)


def hidden(shape: RankShape, name: str, dtype: DType | None = None) -> Tensor:
    """[micro_batch_size, seq_length (/ tp), hidden_size], in the type of the residual stream:
    torchtitan cuts the sequence outside attention and MLP."""
    size = (shape.micro_batch_size, shape.norm_seq, shape.model.hidden_size)
    return Tensor(name, size, dtype or shape.stream_dtype)


def in_fp32(tensor: Tensor, name: str) -> Tensor:
    """A copy of `tensor` in fp32."""
    return Tensor(name, tensor.shape, DType.FP32)


def linear(
    shape: RankShape,
    name: str,
    module: Module,
    source: Tensor,
    output: Tensor,
    *,
    bias: bool,
    holds: tuple[Tensor, ...] = (),
) -> Operator:
    """nn.Linear: keeps its input; its weight is [out_features, in_features]. In place of it
    Accelerate puts te.Linear where 16 divides both, torchao its own except for the output.

    holds: tensors that variables of the calling function keep alive until it returns."""
    width, depth = output.shape[-1], source.shape[-1]
    weights = [Weight(f"{name}.weight", (width, depth), in_linear=True)]
    if bias:
        weights.append(Weight(f"{name}.bias", (width,)))
    quantized = shape.precision is Precision.FP8_CURRENT and module is not Module.OUTPUT_LAYER
    saved: tuple[Tensor, ...] = (source,)
    cast = 0
    if shape.autocast:
        cast_here = () if quantized else weights
        casts = (Tensor(f"{w.name}.cast", w.shape, shape.dtype) for w in cast_here)
        saved = (_narrow(shape, source, name), *casts)  # until the outermost context ends
        cast = saved[0].num_bytes - source.num_bytes
    before, backward_cast = _in_8_bits(source, output, weights[0]) if quantized else (0, 0)
    operator = Operator(
        name,
        module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=saved,
        saved_for_weights=frozenset({saved[0].name}),
        forward_workspace=before,
        backward_workspace=cast + backward_cast,  # the input's gradient is in 16 bits at first
        weights=tuple(weights),
        gemm=Gemm(shape.tokens, width, depth, quantized),
        forward_holds=holds,
    )
    if shape.precision is Precision.FP8_DELAYED and width % 16 == depth % 16 == 0:
        operator = _as_te_linear(shape, operator)
    return with_weight_gradients(shape, operator)


def _as_te_linear(shape: RankShape, operator: Operator) -> Operator:
    """Keeps 8-bit copies: of its input, which no other layer shares, and of its weight, made in
    every forward, as nobody says which microbatch is the first (read in transformer_engine 2.20.2
    pytorch/module/linear.py, not run)."""
    (source,), (output,), weight = operator.inputs, operator.outputs, operator.weights[0]
    own = replace(source, name=f"{source.name}.for_{operator.name}")
    saved, size = quantization.saved_input(shape, own), weight.num_elements
    copies = (quantization.weight_copies(shape, size),)
    both, of_gradient = (quantization.gradient_copies(shape, one) for one in (source, output))
    return replace(
        operator,
        saved=(*saved, Tensor(f"{weight.name}_{shape.precision}", copies, DType.FLOAT8)),
        saved_for_weights=frozenset(tensor.name for tensor in saved),
        gemm=operator.gemm and replace(operator.gemm, quantized=True),
        forward_workspace=both - saved[0].num_bytes,
        backward_workspace=operator.backward_workspace + of_gradient,
        extra_forward_bytes=size * (shape.stream_dtype.itemsize + 2 * DType.FLOAT8.itemsize),
    )


def _in_8_bits(source: Tensor, output: Tensor, weight: Weight) -> tuple[int, int]:
    """Bytes of 8-bit copies with the 16-bit tensors, which are what is kept: of input and weight;
    going back of the output's gradient twice, by rows and by columns, as well. Source: torchao
    0.18.0 float8/float8_linear.py matmul_with_hp_or_float8_args (read, not run)."""
    both = (source.num_elements + weight.num_elements) * DType.FLOAT8.itemsize
    return both, both + 2 * output.num_elements * DType.FLOAT8.itemsize


def _narrow(shape: RankShape, source: Tensor, reader: str) -> Tensor:
    """`source` in 16 bits: a copy for each reader, if it is fp32."""
    if source.dtype is not DType.FP32:
        return source
    return Tensor(f"{source.name}.for_{reader}", source.shape, shape.dtype)


def with_weight_gradients(
    shape: RankShape, operator: Operator, dtype: DType | None = None
) -> Operator:
    """`operator` whose weights get gradients of their own, in `dtype` or the type of its output; on
    one device they are the parameters' own, or are added to them one by one."""
    elements = sum(weight.num_elements for weight in operator.weights if not weight.frozen)
    made = dtype or operator.outputs[0].dtype
    own = _gradient_dtype(shape, operator, made)
    narrow = elements * made.itemsize if own is not made else 0
    passing = passing_gradients(shape, operator, made)
    return replace(
        operator,
        weight_gradient_bytes=0 if shape.adds_weight_grads else elements * own.itemsize,
        narrow_weight_gradient_bytes=narrow,
        backward_workspace=operator.backward_workspace + passing,
    )


def passing_gradients(shape: RankShape, operator: Operator, dtype: DType | None = None) -> int:
    """Bytes of its weights' gradients, made in `dtype` or the type of its output, where each goes
    as soon as it is made, and is not cast."""
    made = dtype or operator.outputs[0].dtype
    if not shape.adds_weight_grads or _gradient_dtype(shape, operator, made) is not made:
        return 0
    return made.itemsize * sum(one.num_elements for one in operator.weights if not one.frozen)


def _gradient_dtype(shape: RankShape, operator: Operator, made: DType) -> DType:
    """The weights' own type, which their gradients have in the end."""
    given = next((weight.dtype for weight in operator.weights if weight.dtype), None)
    return given or shape.weight_grads_dtype or made


def residual(
    name: str,
    module: Module,
    branch: Tensor,
    skip: Tensor,
    output: Tensor,
    holds: tuple[Tensor, ...] = (),
) -> Operator:
    """skip + branch: keeps nothing, and hands its gradient on to both.

    holds: the layer's input, which the caller's variable keeps alive until the layer returns. A
    branch in another type than the output's gets a gradient of its own."""
    same = frozenset(t.name for t in (branch, skip) if t.dtype is output.dtype)
    return Operator(
        name, module, (branch, skip), (output,), gradient_passed_to=same, forward_holds=holds
    )


def dropout(
    name: str, module: Module, source: Tensor, probability: float
) -> tuple[Tensor, tuple[Operator, ...]]:
    """`source` after nn.Dropout, which keeps a 1-byte mask (native_dropout); nothing at 0."""
    if probability == 0:
        return source, ()
    output = Tensor(name, source.shape, source.dtype)
    mask = Tensor(f"{name}.mask", source.shape, DType.BOOL)
    return output, (Operator(name, module, (source,), (output,), saved=(mask,)),)


def fused_norm(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """nn.RMSNorm and nn.LayerNorm on a GPU: keep the input and fp32 statistics of each row. Source:
    torch 2.13 derivatives.yaml (_fused_rms_norm, native_layer_norm). The weight's gradient is a
    kernel of its own, which reads input and gradient again (layer_norm_kernel.cu)."""
    layer_norm = shape.model.normalization is Normalization.LAYER_NORM
    statistics = ("mean", "rstd") if layer_norm else ("rstd",)
    rows, width = (*source.shape[:-1], 1), source.shape[-1]
    kept = tuple(Tensor(f"{name}.{statistic}", rows, DType.FP32) for statistic in statistics)
    operator = Operator(
        name,
        module,
        (source,),
        (output,),
        saved=(source, *kept),
        weights=norm_weights(shape, name, width),
        extra_backward_bytes=2 * source.num_bytes,
    )
    return with_weight_gradients(shape, operator)


def attention(shape: RankShape, query: Tensor, key: Tensor, value: Tensor) -> Operator:
    """scaled_dot_product_attention with a flash kernel, causal, keys and values not expanded; of
    the samples of a row each on its own (varlen).

    Keeps q, k, v, the output [micro_batch_size, seq_length, heads x v_channels] and the fp32
    log-sum-exp [micro_batch_size, heads, seq_length] (_scaled_dot_product_flash_attention)."""
    model = shape.model
    width = shape.local_heads * model.v_channels
    both = shape.local_heads * model.qk_channels + width
    output = activation(shape, "core_attention_out", width)
    rows = (shape.micro_batch_size, shape.local_heads, shape.local_seq)
    return Operator(
        "core_attention",
        Module.CORE_ATTENTION,
        (query, key, value),
        (output,),
        unit=ComputeUnit.ATTENTION,
        saved=(query, key, value, output, Tensor("softmax_lse", rows, DType.FP32)),
        attention_flops=shape.tokens * shape.attended_length * both,
        attention=AttentionShape(
            rows=prod(rows),
            longest=shape.attended_length,
            qk_channels=model.qk_channels,
            v_channels=model.v_channels,
            # the flash kernel takes no values narrower than keys, which leaves cuDNN's
            fused=model.attention_backend is AttentionBackend.FUSED
            or model.qk_channels != model.v_channels,
        ),
    )


def rotate_half(
    sources: tuple[Tensor, ...], tables: tuple[Tensor, ...] = (), dtype: DType | None = None
) -> Operator:
    """x cos + rotate_half(x) sin of q and k, or of q alone, in 16 bits or the `dtype` of the
    tables; keeps `tables`, where a layer makes its own.

    Two products, or a product and the rotated halves, live next to what is read and written. In
    tensors of q's and k's size move: two products 4, a half negated 1, both joined 2, the sum 3;
    going back two products 4, a half negated 1, two halves in zeros of their own 3, two sums 6."""
    outputs = tuple(Tensor(f"{t.name}_rope", t.shape, dtype or t.dtype) for t in sources)
    size, both = outputs[0].num_bytes, sum(tensor.num_bytes for tensor in outputs)
    return Operator(
        "rotary",
        Module.ROTARY,
        sources,
        outputs,
        saved=tables,
        forward_workspace=2 * size,
        backward_workspace=size * 3 // 2,
        extra_forward_bytes=8 * both,
        extra_backward_bytes=12 * both,
        forward_kernels=len(sources) * 5,
        backward_kernels=len(sources) * 9,
    )


def by_head(shape: RankShape, tensor: Tensor, heads: int) -> Tensor:
    """`tensor` as [micro_batch_size, seq_length, heads, kv_channels]."""
    return Tensor(tensor.name, (*tensor.shape[:2], heads, shape.model.kv_channels), tensor.dtype)


def multiplied(
    activated: Tensor,
    up: Tensor,
    product: Tensor,
    name: str = "multiply",
    module: Module = Module.ACTIVATION,
) -> Operator:
    """What the activation made of the gate, times the other projection: keeps both."""
    return Operator(name, module, (activated, up), (product,), saved=(activated, up))


def nonlinearity(activation: Activation, source: Tensor, output: Tensor) -> list[Operator]:
    """silu and gelu keep their input; squared ReLU keeps the ReLU's output."""
    if activation is not Activation.SQUARED_RELU:
        return [Operator("activation", Module.ACTIVATION, (source,), (output,), saved=(source,))]
    relu = Tensor("relu_out", source.shape, source.dtype)
    return [
        Operator("relu", Module.ACTIVATION, (source,), (relu,), saved=(relu,)),
        Operator("square", Module.ACTIVATION, (relu,), (output,), saved=(relu,)),
    ]
