"""What torch.compile's partitioner keeps of a block under a memory budget, on fake tensors."""

from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import fx
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from advisor.layers.shape import RankShape

from .blocks import block


def kept_under_budget(shape: RankShape, budget: float) -> int:
    """Bytes that the forward graph of the shape's block hands to its backward graph, its input
    among them, weights and their views not."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _kept(_forward_graph(shape, budget), shape)
    finally:
        torch.set_default_dtype(before)


def _forward_graph(shape: RankShape, budget: float) -> fx.Graph:
    made, rest, named = block(shape)
    names, weights = zip(*made.named_parameters(), strict=True)
    graphs: list[fx.GraphModule] = []
    # what is no tensor may be no input of the graph
    flat, form = pytree.tree_flatten((rest, named))
    tables = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]

    def run(weights: Any, hidden: torch.Tensor, *tables: torch.Tensor) -> Any:
        left = list(tables)
        leaves = [left.pop(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        others, keywords = pytree.tree_unflatten(leaves, form)
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(made, given, (hidden, *others), keywords)

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    size = (shape.micro_batch_size, shape.seq_length, shape.model.hidden_size)
    with functorch_config.patch(activation_memory_budget=budget):
        compiled = aot_function(
            run, fw_compiler=keep, bw_compiler=keep,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )  # fmt: skip
        compiled(weights, torch.empty(size, requires_grad=True), *tables)
    return graphs[0].graph


def _kept(graph: fx.Graph, shape: RankShape) -> int:
    (output,) = graph.find_nodes(op="output")
    saved: dict[Any, int] = {}
    activations = _made_from_hidden(graph, shape)
    for node in output.args[0][1:]:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and node in activations:
            storage = value.untyped_storage()
            saved[storage._cdata] = max(saved.get(storage._cdata, 0), storage.nbytes())
    return sum(saved.values())


def _made_from_hidden(graph: fx.Graph, shape: RankShape) -> set[fx.Node]:
    """Nodes that depend on the hidden states."""
    size = (shape.micro_batch_size, shape.seq_length, shape.model.hidden_size)
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and tuple(value.shape) == size:
                found.add(node)
        elif any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
