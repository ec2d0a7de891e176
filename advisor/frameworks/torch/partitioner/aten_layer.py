"""A layer's operators as the aten operators that torch.compile partitions, forward and backward.

Source: graphs of torchtitan 0.2.2 and transformers 5.23.0 under torch.compile (torch 2.13), with
the decompositions that inductor has for a GPU.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from advisor.base.dtypes import DType
from advisor.frameworks.torch.partitioner import attention
from advisor.frameworks.torch.partitioner.graph import Graph, Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import WIDE, AttentionKernel, Block
from advisor.frameworks.torch.partitioner.norms import lower_norm
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.models.options import Activation, PositionEmbedding, TransformerImpl


class UnknownGraphError(Exception):
    """The graph of an operator is not known."""


@lru_cache(maxsize=64)
def aten_graph(shape: RankShape, operators: tuple[Operator, ...], kernel: AttentionKernel) -> Graph:
    """The graph of a layer, shared: do not change it. UnknownGraphError, with the operator's name,
    where that of one is not known."""
    block = Block(shape, kernel)
    for operator in operators:
        block.graph.owner = operator.name
        _lowered_by(operator)(block, operator)
    block.graph.finish(block.node(operators[-1].outputs[0]))
    return block.graph


Lower = Callable[[Block, Operator], None]


def _lowered_by(operator: Operator) -> Lower:
    if operator.forward_collectives:
        raise UnknownGraphError(operator.name)
    if operator.gemm:
        return _linear
    if operator.weights:
        return _norm
    if operator.gradient_passed_to and len(operator.inputs) == 2:
        return _residual
    if [tensor.dtype for tensor in operator.saved] == [DType.BOOL]:
        return _dropout
    if operator.name not in _BY_NAME:
        raise UnknownGraphError(operator.name)
    return _BY_NAME[operator.name]


def _linear(block: Block, operator: Operator) -> None:
    """A matmul of two dimensions between views; GPT-2's Conv1D has its weight transposed."""
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    weight, *bias = block.weights(operator)
    rows = graph.view(block.node(source), "rows")
    if not _is_gpt2(block.shape):
        weight = graph.view(weight, "transposed")
    assert operator.gemm is not None
    if operator.gemm.quantized:
        rows, weight = _in_8_bits(block, "rows", rows), _in_8_bits(block, "weight", weight)
    product = graph.add(
        "matmul", Kind.COSTLY, output.num_bytes, *bias, rows, weight, flops=operator.gemm.flops
    )
    if operator.gemm.quantized:
        graph.read(rows, weight)  # copies, by columns
    else:
        graph.read_by_kernel(rows, weight)
    block.define(output, graph.view(product, "batched"))


def _in_8_bits(block: Block, name: str, source: Node) -> Node:
    """`source` divided by its largest element, which is kept, as torchao 0.18.0's tensorwise
    scaling does (float8/float8_linear.py)."""
    elements = source.num_bytes // block.shape.dtype.itemsize
    largest = block.graph.fused(f"{name}.largest", block.shape.dtype.itemsize, source)
    return block.graph.fused(f"{name}.8_bits", elements, source, largest)


def _is_gpt2(shape: RankShape) -> bool:
    learned = shape.model.position_embedding_type is PositionEmbedding.LEARNED
    return learned and shape.model.transformer_impl is TransformerImpl.TRANSFORMERS


def _norm(block: Block, operator: Operator) -> None:
    """Norms of q and k see one head after the other; in Gemma they lie in front by then."""
    (source,), (output,) = operator.inputs, operator.outputs
    if operator.module is not Module.QK_LAYERNORM or len(output.shape) < 4:
        block.define(output, lower_norm(block, operator, block.node(source)))
        return
    in_front = block.shape.model.layernorm_zero_centered_gamma
    node = block.graph.view(block.node(source), "heads")
    node = block.graph.view(node, "heads_first") if in_front else node
    block.define(output, lower_norm(block, operator, node), heads_first=in_front)


def _residual(block: Block, operator: Operator) -> None:
    (output,) = operator.outputs
    branch, skip = (block.node(tensor) for tensor in operator.inputs)
    block.define(output, block.graph.fused("out", output.num_bytes, skip, branch))


def _dropout(block: Block, operator: Operator) -> None:
    """Random numbers of a seed, compared, and the mask."""
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    size, elements = output.num_bytes, output.num_elements
    seed = graph.add("lookup_seed", Kind.OTHER, DType.INT64.itemsize, block.seeds)
    random = graph.add("random", Kind.OTHER, elements * WIDE, seed)
    mask = graph.fused("mask", elements, graph.fused("random.half", size, random))
    masked = graph.fused("masked", size, mask, block.node(source))
    block.define(output, graph.fused("out", size, masked))
    graph.read(graph.fused("scale", size, graph.fused("mask.half", size, mask)))


def _split(block: Block, operator: Operator) -> None:
    graph, (source,) = block.graph, operator.inputs
    mixed = block.node(source)
    parts = graph.add("split", Kind.VIEW, mixed.num_bytes, mixed, several=True, base=mixed)
    for output in operator.outputs:
        block.define(output, graph.add(output.name, Kind.PICK, output.num_bytes, parts, base=mixed))


def _multiply(block: Block, operator: Operator) -> None:
    _pointwise(block, operator)
    block.graph.read(*map(block.node, operator.inputs))


def _activation(block: Block, operator: Operator) -> None:
    (source,), (output,) = operator.inputs, operator.outputs
    wide = output.num_elements * WIDE
    copy = block.graph.fused("fp32", wide, block.node(source))
    activated = _IN_FP32[_formula(block.shape)](block.graph, copy, wide)
    block.define(output, block.graph.fused("out", output.num_bytes, activated))


def _formula(shape: RankShape) -> str:
    """torch's default for gelu is the exact one, that of transformers' Gemma the approximate."""
    model = shape.model
    if model.activation is Activation.SWIGLU:
        return "silu"
    if model.activation is Activation.QUICK_GEGLU:
        raise UnknownGraphError(model.activation)
    return "gelu_tanh" if model.transformer_impl is TransformerImpl.TRANSFORMERS else "gelu"


def _silu(graph: Graph, x: Node, wide: int) -> Node:
    exponential = graph.fused("exp", wide, graph.fused("neg", wide, x))
    output = graph.fused("silu", wide, x, graph.fused("add_one", wide, exponential))
    sigmoid = graph.fused("sigmoid", wide, x)
    product = graph.fused("by_rest", wide, x, graph.fused("rest", wide, sigmoid))
    graph.read(sigmoid, graph.fused("slope", wide, product))
    return output


def _gelu(graph: Graph, x: Node, wide: int) -> Node:
    half = graph.fused("half", wide, x)
    erf = graph.fused("erf", wide, graph.fused("scaled", wide, x))
    raised = graph.fused("add_one", wide, erf)
    output = graph.fused("gelu", wide, half, raised)
    squared = graph.fused("minus_half", wide, graph.fused("squared", wide, x, x))
    density = graph.fused("density", wide, graph.fused("exp", wide, squared))
    product = graph.fused("by_density", wide, x, density)
    graph.read(graph.fused("slope", wide, graph.fused("half_raised", wide, raised), product))
    return output


def _gelu_tanh(graph: Graph, x: Node, wide: int) -> Node:
    squared = graph.fused("squared", wide, x, x)
    cubic = graph.fused("scaled_cube", wide, graph.fused("cubed", wide, squared, x))
    inner = graph.fused("inner", wide, graph.fused("sum", wide, x, cubic))
    half, tanh = graph.fused("half", wide, x), graph.fused("tanh", wide, inner)
    raised = graph.fused("add_one", wide, tanh)
    output = graph.fused("gelu", wide, half, raised)
    rest = graph.fused("rest", wide, graph.fused("tanh_squared", wide, tanh, tanh))
    inside = graph.fused("inside", wide, graph.fused("scaled_square", wide, squared))
    slope = graph.fused("inner_slope", wide, inside)
    right = graph.fused("right", wide, graph.fused("half_rest", wide, half, rest), slope)
    graph.read(graph.fused("slope", wide, graph.fused("half_raised", wide, raised), right))
    return output


_IN_FP32: Final = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}


def _pointwise(block: Block, operator: Operator) -> None:
    (output,) = operator.outputs
    sources = (block.node(tensor) for tensor in operator.inputs)
    block.define(output, block.graph.fused("out", output.num_bytes, *sources))


def _gelu_new_cubic(block: Block, operator: Operator) -> None:
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    x, size = block.node(source), output.num_bytes
    cubic = graph.fused("scaled_cube", size, graph.fused("cubed", size, x))
    block.define(output, graph.fused("out", size, graph.fused("sum", size, x, cubic)))
    graph.read(graph.fused("slope", size, graph.fused("squared", size, x)))


def _gelu_new_tanh(block: Block, operator: Operator) -> None:
    _pointwise(block, operator)
    (output,) = operator.outputs
    block.read_slope_of_tanh(output)


def _relu(block: Block, operator: Operator) -> None:
    """Its backward compares its output with 0."""
    _pointwise(block, operator)
    (output,) = operator.outputs
    block.graph.read(block.graph.fused("mask", output.num_elements, block.node(output)))


def _square(block: Block, operator: Operator) -> None:
    _pointwise(block, operator)
    graph, (source,) = block.graph, operator.inputs
    x = block.node(source)
    graph.read(graph.fused("doubled", x.num_bytes, graph.fused("power_one", x.num_bytes, x)))


_BY_NAME: Final[dict[str, Lower]] = {
    "rotary": attention.lower_rotary,
    "core_attention": attention.lower_attention,
    "split": _split,
    "activation": _activation,
    "multiply": _multiply,
    "relu": _relu,
    "square": _square,
    "gelu.half": _pointwise,
    "gelu.cubic": _gelu_new_cubic,
    "gelu.tanh": _gelu_new_tanh,
    "gelu.one_plus": _pointwise,
    "gelu.multiply": _multiply,
    **attention.EAGER_ATTENTION,
}
