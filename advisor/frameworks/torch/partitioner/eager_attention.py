"""Attention in Python, whose scores are capped, and keys and values of all heads, as torch.compile
sees them, forward and backward.

Source: transformers 5.23.0 modeling_gemma2.py (eager_attention_forward), repeat_kv; torch 2.13
_decomp/decompositions.py (softmax, tanh_backward).
"""

from advisor.frameworks.torch.partitioner.graph import Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import Block
from advisor.layers.operators import Operator, Tensor


def _repeat(block: Block, operator: Operator) -> None:
    """Copies, where keys and values are fewer than queries."""
    graph = block.graph
    for source, output in zip(operator.inputs, operator.outputs, strict=True):
        if source.name == output.name:
            continue
        heads = graph.view(block.heads_first(source), "groups")
        every = graph.view(heads, "all", output.num_bytes)
        copy = graph.fused(output.name, output.num_bytes, every)
        block.define(output, graph.view(copy, "all_heads"), heads_first=True)


def _product(block: Block, left: Node, right: Node, output: Tensor, flops: int) -> None:
    graph = block.graph
    product = graph.add("bmm", Kind.COSTLY, output.num_bytes, left, right, flops=flops)
    graph.read_by_kernel(left, right)
    block.define(output, graph.view(product, "heads"), heads_first=True)


def _batched(block: Block, node: Node, copy: str = "") -> Node:
    """`node`, or a copy of that name, with batch and heads as one dimension."""
    graph = block.graph
    node = graph.view(node, "expanded")
    if copy:
        node = graph.fused(copy, node.num_bytes, node)
    return graph.view(node, "batch_of_heads")


def _scores(block: Block, operator: Operator) -> None:
    """A matmul wants what lies as a projection wrote it copied: repeated keys do not."""
    query, key = (block.heads_first(tensor) for tensor in operator.inputs)
    left = _batched(block, query, "query_copy")
    copy = "" if operator.inputs[1].name == "key_all" else "key_copy"
    right = _batched(block, block.graph.view(key, "turned"), copy)
    _product(block, left, right, operator.outputs[0], operator.attention_flops)


def _context(block: Block, operator: Operator) -> None:
    probs, value = (block.heads_first(tensor) for tensor in operator.inputs)
    copy = "" if operator.inputs[1].name == "value_all" else "value_copy"
    left, right = _batched(block, probs), _batched(block, value, copy)
    _product(block, left, right, operator.outputs[0], operator.attention_flops)


def _pointwise(block: Block, operator: Operator) -> None:
    (source,), (output,) = operator.inputs, operator.outputs
    node = block.graph.fused("out", output.num_bytes, block.heads_first(source))
    block.define(output, node, heads_first=True)


def _tanh(block: Block, operator: Operator) -> None:
    _pointwise(block, operator)
    (output,) = operator.outputs
    block.read_slope_of_tanh(output)


def _mask(block: Block, operator: Operator) -> None:
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    mask = block.input("attention_mask", output.num_bytes // block.shape.local_heads)
    masked = graph.fused("out", output.num_bytes, block.heads_first(source), mask)
    block.define(output, masked, heads_first=True)


def _softmax(block: Block, operator: Operator) -> None:
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    wide, rows = output.num_bytes, output.num_bytes // output.shape[-1]
    copy = graph.fused("fp32", wide, block.heads_first(source))
    shifted = graph.fused("shifted", wide, copy, graph.fused("largest", rows, copy))
    exponential = graph.fused("exp", wide, shifted)
    probs = graph.fused("out", wide, exponential, graph.fused("sum", rows, exponential))
    block.define(output, probs, heads_first=True)
    graph.read(probs, graph.fused("neg", wide, probs))


def _transpose(block: Block, operator: Operator) -> None:
    graph, (source,), (output,) = block.graph, operator.inputs, operator.outputs
    turned = graph.view(block.heads_first(source), "tokens_first")
    block.define(output, graph.view(graph.fused("copy", output.num_bytes, turned), "joined"))


EAGER_ATTENTION = {
    "repeat_kv": _repeat,
    "attention_scores": _scores,
    "attention_scale": _pointwise,
    "attention_scores_scaled": _pointwise,
    "attention_scores_tanh": _tanh,
    "attention_scores_capped": _pointwise,
    "attention_mask": _mask,
    "attention_softmax": _softmax,
    "attention_probs": _pointwise,
    "attention_context": _context,
    "attention_transpose": _transpose,
}
