"""Norms as torch.compile sees them, forward and backward.

Source: torch 2.13 _decomp/decompositions.py (_fused_rms_norm, native_layer_norm_backward),
_refs (native_layer_norm) for a GPU; transformers 5.23.0 for norms in Python.
"""

from advisor.frameworks.torch.partitioner.graph import Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import WIDE, Block
from advisor.layers.operators import Operator
from advisor.models.options import Normalization, TransformerImpl


def lower_norm(block: Block, operator: Operator, source: Node) -> Node:
    """The norm of `source`, which may be a view of the operator's input."""
    model = block.shape.model
    if model.normalization is Normalization.LAYER_NORM:
        return _layer_norm(block, operator, source)
    if model.transformer_impl is TransformerImpl.TRANSFORMERS:
        return _python_rms_norm(block, operator, source)
    return _fused_rms_norm(block, operator, source)


def _sizes(operator: Operator) -> tuple[int, int, int]:
    """Bytes of the output, of it in fp32, and of one fp32 figure a row."""
    output = operator.outputs[0]
    elements = output.num_elements
    return output.num_bytes, elements * WIDE, elements // output.shape[-1] * WIDE


def _normalized(
    block: Block, operator: Operator, source: Node, statistic: str
) -> tuple[Node, Node, Node]:
    """The fp32 copy of `source`, 1/rms of its rows, which is called `statistic`, their product."""
    graph = block.graph
    _, wide, rows = _sizes(operator)
    copy = graph.fused("fp32", wide, source)
    mean = graph.fused("mean", rows, graph.fused("square", wide, copy))
    inverse = graph.fused(statistic, rows, graph.fused("add_eps", rows, mean))
    return copy, inverse, graph.fused("normalized.fp32", wide, copy, inverse)


def _fused_rms_norm(block: Block, operator: Operator, source: Node) -> Node:
    graph = block.graph
    size, wide, _ = _sizes(operator)
    (weight,) = block.weights(operator)
    _, inverse, normalized = _normalized(block, operator, source, "rstd")
    output = graph.fused("out", size, graph.fused("scaled", wide, normalized, weight))
    mean = graph.fused("over_width", wide, normalized)
    graph.read(normalized, mean, inverse, block.in_fp32(weight))
    return output


def _layer_norm(block: Block, operator: Operator, source: Node) -> Node:
    graph = block.graph
    size, wide, rows = _sizes(operator)
    weight, bias = block.weights(operator)
    copy = graph.fused("fp32", wide, source)
    moments = graph.add("var_mean", Kind.FUSIBLE, 2 * rows, copy, several=True)
    variance, mean = (graph.add(n, Kind.PICK, rows, moments) for n in ("variance", "mean"))
    inverse = graph.fused("rstd", rows, graph.fused("add_eps", rows, variance))
    normalized = graph.fused("normalized", wide, graph.fused("centred", wide, copy, mean), inverse)
    shifted = graph.fused("shifted", wide, graph.fused("scaled", wide, normalized, weight), bias)
    output = graph.fused("out", size, shifted)
    graph.read(normalized, graph.fused("rstd_over_width", rows, inverse), block.in_fp32(weight))
    return output


def _python_rms_norm(block: Block, operator: Operator, source: Node) -> Node:
    """Llama multiplies in 16 bit, OLMo 2 and Gemma in fp32, Gemma by 1 + weight."""
    graph, model = block.graph, block.shape.model
    size, wide, _ = _sizes(operator)
    (weight,) = block.weights(operator)
    copy, inverse, factor = _normalized(block, operator, source, "rsqrt")
    if model.layernorm_zero_centered_gamma:
        raised = block.in_fp32(weight)
        weight = graph.fused("one_plus_weight", raised.num_bytes, raised)
    if model.layernorm_zero_centered_gamma or not model.norm_placement.before:
        output = graph.fused("out", size, graph.fused("scaled", wide, factor, weight))
    else:
        factor = graph.fused("normalized", size, factor)
        output = graph.fused("out", size, weight, factor)
    cubed = graph.fused("cubed", inverse.num_bytes, inverse)
    doubled = graph.fused("doubled", wide, graph.fused("power_one", wide, copy))
    graph.read(weight, factor, copy, inverse, cubed, doubled)
    return output
