"""Rotary embeddings and attention as torch.compile sees them, forward and backward.

Source: torchtitan 0.2.2 models/llama3 and models/qwen3; transformers 5.23.0 modeling_llama.py;
torch 2.13 _meta_registrations.py (flash and cuDNN attention), utils/flop_counter.py (sdpa_flop).
In Python, with capped scores and keys and values of all heads:
transformers 5.23.0 modeling_gemma2.py (eager_attention_forward), repeat_kv; torch 2.13
_decomp/decompositions.py (softmax, tanh_backward).
"""

from advisor.base.dtypes import DType
from advisor.frameworks.torch.partitioner.graph import Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import WIDE, AttentionKernel, Block
from advisor.layers.operators import Operator, Tensor
from advisor.models.options import TransformerImpl

_OFFSET_BYTES = DType.INT64.itemsize
_SEED_BYTES = {AttentionKernel.FLASH: 2 * _OFFSET_BYTES, AttentionKernel.CUDNN: _OFFSET_BYTES}
"""The state of dropout's random numbers, which attention hands out with or without dropout."""
_COMPLEX_BYTES = 2 * WIDE


def lower_rotary(block: Block, operator: Operator) -> None:
    """Complex numbers (torchtitan's Llama), or halves: in transformers with the heads in front, by
    tables of the model's; in torchtitan's Qwen3 by tables that each layer brings to 16 bit."""
    model = block.shape.model
    if model.transformer_impl is TransformerImpl.TRANSFORMERS:
        _rotate_halves(block, operator, *_shared_tables(block))
    elif model.qk_layernorm:
        _rotate_halves(block, operator, *_own_tables(block))
    else:
        _rotate_complex(block, operator)


def _shared_tables(block: Block) -> tuple[Node, Node]:
    model = block.shape.model
    dtype = block.shape.dtype if model.norm_placement.before else DType.FP32
    size = block.shape.local_seq * model.kv_channels * dtype.itemsize
    cos, sin = (
        block.graph.view(block.input(f"rope_{name}", size), "unsqueeze") for name in ("cos", "sin")
    )
    return cos, sin


def _own_tables(block: Block) -> tuple[Node, Node]:
    graph, shape = block.graph, block.shape
    size = shape.local_seq * shape.model.kv_channels
    cache = graph.view(block.input("rope_cache", 2 * size * WIDE), "reshape")
    cos, sin = (
        graph.fused(
            f"rope_{name}", size * shape.dtype.itemsize, graph.view(cache, name, size * WIDE)
        )
        for name in ("cos", "sin")
    )
    return cos, sin


def _rotate_halves(block: Block, operator: Operator, cos: Node, sin: Node) -> None:
    graph = block.graph
    in_front = block.shape.model.transformer_impl is TransformerImpl.TRANSFORMERS
    for source, output in zip(operator.inputs, operator.outputs, strict=True):
        heads = block.heads_first(source) if in_front else block.node(source)
        size = heads.num_bytes
        straight = graph.fused("by_cos", size, heads, cos)
        low, high = (graph.view(heads, name, size // 2) for name in ("low", "high"))
        turned = graph.add("cat", Kind.CAT, size, graph.fused("neg", size // 2, high), low)
        crossed = graph.fused("by_sin", size, turned, sin)
        rotated = graph.fused(output.name, size, straight, crossed)
        block.define(output, rotated, heads_first=in_front)
    graph.read(cos, sin)


def _rotate_complex(block: Block, operator: Operator) -> None:
    """In fp32, as pairs; views as complex numbers are not on torch's list of cheap operators."""
    graph, model = block.graph, block.shape.model
    pairs = block.shape.local_seq * model.kv_channels // 2
    table = graph.view(block.input("freqs_cis", pairs * _COMPLEX_BYTES), "reshape")
    pairs_of = []
    for source in operator.inputs:
        wide = graph.fused("fp32", source.num_elements * WIDE, block.by_head(source))
        pairs_of.append(_other_view(block, graph.view(wide, "pairs"), "view_as_complex"))
    for source, number, output in zip(operator.inputs, pairs_of, operator.outputs, strict=True):
        turned = graph.fused("turned", number.num_bytes, number, table)
        real = graph.view(_other_view(block, turned, "view_as_real"), "joined")
        joined = graph.fused("out", source.num_bytes, real)
        block.define(output, graph.view(joined, "heads_first"), heads_first=True)
    graph.read(graph.fused("clone", table.num_bytes, _other_view(block, table, "conj")))


def _other_view(block: Block, source: Node, name: str) -> Node:
    return block.graph.add(name, Kind.OTHER, source.num_bytes, source, base=source)


def lower_attention(block: Block, operator: Operator) -> None:
    """A fused kernel that keeps its inputs, its output, the log-sum-exp and the random state. Its
    FLOPs are counted as if nothing were masked."""
    graph, output = block.graph, operator.outputs[0]
    inputs = [block.heads_first(tensor) for tensor in operator.inputs]
    lse, *bias = operator.saved[4:]
    masks = [_bias(block, tensor) for tensor in bias]
    sizes = {
        "out": output.num_bytes,
        lse.name: lse.num_bytes,
        "offset": _OFFSET_BYTES,
        "seed": _OFFSET_BYTES if bias else _SEED_BYTES[block.kernel],
    }
    kind = Kind.COSTLY if block.kernel is AttentionKernel.FLASH else Kind.OTHER
    flops = operator.attention_flops * (1 if bias else 2)
    kernel = graph.add(
        "sdpa", kind, sum(sizes.values()), *inputs, *masks, several=True, flops=flops
    )
    made = [graph.add(name, Kind.PICK, size, kernel) for name, size in sizes.items()]
    graph.read_by_kernel(*inputs, *masks, *made)
    block.define(output, graph.view(graph.view(made[0], "tokens_first"), "joined"))


def _bias(block: Block, bias: Tensor) -> Node:
    """The 16-bit bias made of a boolean mask. The memory-efficient kernel, which torch takes where
    flash attention cannot have one, sees it expanded to all heads."""
    graph = block.graph
    made = graph.fused(bias.name, bias.num_bytes, block.input("attention_mask", bias.num_elements))
    if block.kernel is AttentionKernel.CUDNN:
        return made
    return graph.view(made, "expanded", bias.num_bytes * block.shape.local_heads)


def _repeat(block: Block, operator: Operator) -> None:
    """Copies, where keys and values are fewer than queries."""
    graph = block.graph
    for source, output in zip(operator.inputs, operator.outputs, strict=True):
        if source.name == output.name:
            continue
        every = graph.view(graph.view(block.heads_first(source), "groups"), "all", output.num_bytes)
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
