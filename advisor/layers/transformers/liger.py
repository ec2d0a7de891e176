"""Liger's kernels in place of parts of transformers' layers (`use_liger_kernel`).

Source: liger-kernel 0.7.0, 0.8.0 and 0.8.5 ops/rms_norm.py, rope.py, swiglu.py,
fused_linear_cross_entropy.py. They are Triton's and need a GPU: read, not run.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import multiplied, with_weight_gradients
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.layers.weights import norm_weights


def liger_norm(
    shape: RankShape, name: str, module: Module, source: Tensor, output: Tensor
) -> Operator:
    """Keeps its input and 1/rms of each row; the input's gradient is written over the output's."""
    operator = Operator(
        name,
        module,
        (source,),
        (output,),
        saved=(source, Tensor(f"{name}.rstd", (*source.shape[:-1], 1), DType.FP32)),
        weights=norm_weights(shape, name, source.shape[-1]),
        backward_workspace=-output.num_bytes,
    )
    return with_weight_gradients(shape, operator)


def liger_rotary(query: Tensor, key: Tensor) -> tuple[Operator, ...]:
    """Rotates queries and keys where they lie, and their gradients likewise."""
    return tuple(
        Operator(
            name,
            Module.ROTARY,
            (tensor,),
            (tensor.view(f"{name}_out", tensor.shape),),
            gradient_passed_to=frozenset({tensor.name}),
        )
        for name, tensor in (("rotary_query", query), ("rotary_key", key))
    )


def liger_swiglu(gate: Tensor, up: Tensor, product: Tensor) -> Operator:
    """Keeps both inputs, computes silu again, and writes their gradients over them."""
    return replace(multiplied(gate, up, product, "swiglu"), gradient_in_saved=True)


def liger_loss(shape: RankShape, source: Tensor, weight: Weight) -> Operator:
    """Output layer and loss over chunks of tokens, whose logits are as large as the hidden states
    (chunk: the next power of two). The forward computes the gradients, which it keeps: of the
    hidden states, and the weight's [vocabulary, hidden_size]. To that each chunk's is added in fp32
    (to 0.8.0; 0.8.5 adds in place where the types agree, and takes less)."""
    vocabulary, width = weight.shape
    pieces = -(-vocabulary // width)
    chunk = min(shape.tokens, 1 << (-(-shape.tokens // pieces) - 1).bit_length())
    logits = chunk * vocabulary * shape.dtype.itemsize
    added = weight.num_elements * (shape.dtype.itemsize + DType.FP32.itemsize)
    gradient = Tensor("fused_loss.input_gradient", source.shape, source.dtype)
    return Operator(
        "fused_linear_cross_entropy",
        Module.OUTPUT_LAYER,
        (source,),
        (Tensor("loss", (1,), DType.FP32),),
        unit=ComputeUnit.GEMM,
        saved=(gradient, Tensor("fused_loss.weight_gradient", weight.shape, source.dtype)),
        weights=(weight,),
        gemm=Gemm(shape.tokens, vocabulary, width),
        gradient_in_saved=True,
        forward_workspace=logits + added,
    )
