"""Kernels of others in place of parts of transformers' layers: Liger's (`use_liger_kernel`), and
DeepSpeed's TiledMLP: gate, up, activation and down over one part of the tokens after the other.

Source: liger-kernel 0.5.10 to 0.8.5 ops/rms_norm.py, rope.py, swiglu.py,
fused_linear_cross_entropy.py. They are Triton's and need a GPU: read, not run. DeepSpeed 0.19.8
runtime/sequence_parallel/ulysses_sp.py, in its example ceil(sequence / hidden) parts. It keeps its
input; the backward runs each part forward again before it goes back.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import (
    hidden,
    linear,
    multiplied,
    nonlinearity,
    with_weight_gradients,
)
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape, norm_weights


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
    hidden states, and the weight's [vocabulary, hidden_size] unless it is frozen. To that each
    chunk's is added in place, from 0.8.3 on: 0.5 to 0.8.2 take 6 bytes more of each of its
    elements. Under autocast two 16-bit copies of an fp32 weight are there, one of them cached."""
    vocabulary, width = weight.shape
    pieces = -(-vocabulary // width)
    chunk = min(shape.tokens, 1 << (-(-shape.tokens // pieces) - 1).bit_length())
    logits = chunk * vocabulary * shape.dtype.itemsize
    casts = 2 * weight.num_elements * shape.dtype.itemsize if shape.autocast else 0
    saved = [Tensor("fused_loss.input_gradient", source.shape, source.dtype)]
    if not weight.frozen:
        saved.append(Tensor("fused_loss.weight_gradient", weight.shape, source.dtype))
    return Operator(
        "fused_linear_cross_entropy",
        Module.OUTPUT_LAYER,
        (source,),
        (Tensor("loss", (1,), DType.FP32),),
        unit=ComputeUnit.GEMM,
        saved=tuple(saved),
        weights=(weight,),
        gemm=Gemm(shape.tokens, vocabulary, width),
        gradient_in_saved=True,
        forward_workspace=logits + casts,
        workspace_without_grad=logits + source.num_bytes,
    )


def tiled_mlp(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Operators of an MLP whose inner tensors are of one part of the tokens; GEMMs are of all."""
    model = shape.model
    parts = -(-shape.local_seq // model.hidden_size)
    size = (-(-shape.tokens // parts), model.ffn_hidden_size)
    gate, up, activated, product = (
        Tensor(f"tile.{name}", size, shape.dtype)
        for name in ("gate", "up", "act_fn_out", "product")
    )
    out = hidden(shape, "down_proj_out", shape.dtype)
    bias = model.add_bias_linear
    first = linear(shape, "gate_proj", Module.LINEAR_FC1, source, gate, bias=bias)
    second = linear(shape, "up_proj", Module.LINEAR_FC1, source, up, bias=bias)
    down = linear(shape, "down_proj", Module.LINEAR_FC2, product, out, bias=bias, holds=(source,))
    if shape.use_liger_kernel:
        middle = [liger_swiglu(gate, up, product)]
    else:
        middle = nonlinearity(model.activation, gate, activated)
        middle.append(Operator("multiply", Module.ACTIVATION, (activated, up), (product,)))
    earlier = out.num_bytes * (parts - 1) // parts
    again = _while_a_part_goes_back(shape, gate, down.weights[0].num_elements, parts)
    return (
        _of_a_part(first, earlier),
        replace(_of_a_part(second, earlier), gradient_free_inputs=frozenset({source.name})),
        *(_of_a_part(operator, earlier) for operator in middle),
        replace(
            down,
            saved=(),
            forward_workspace=out.num_bytes,  # outputs of all parts, before they are put together
            backward_workspace=down.backward_workspace
            + again
            + source.num_bytes  # its whole gradient
            + out.num_bytes // parts,
        ),
    )


def _of_a_part(operator: Operator, earlier: int) -> Operator:
    """`operator` next to `earlier` bytes of outputs; of what it reads the input alone is kept."""
    return replace(
        operator,
        saved=operator.saved if operator.name == "gate_proj" else (),
        gradient_in_saved=False,
        forward_workspace=operator.forward_workspace + earlier,
    )


def _while_a_part_goes_back(shape: RankShape, gate: Tensor, weight: int, parts: int) -> int:
    """Bytes next to the product's and the down projection's gradients, which the walk counts: what
    the part computed again, and from the second part on the gradients of all three weights, with
    that of one that is added to them."""
    one, own = gate.num_bytes, weight * (shape.weight_grads_dtype or shape.dtype).itemsize
    if shape.use_liger_kernel:  # gate, up and product; their gradients are written over them
        return 3 * one + (3 * own if parts > 1 else 0)
    if parts == 1:
        return 5 * one
    return max(5 * one + 2 * own, 4 * one + 3 * own)
