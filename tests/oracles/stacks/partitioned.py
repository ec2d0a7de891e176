"""What torch.compile's partitioner keeps of a block under a memory budget, on fake tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import _recursive_joint_graph_passes
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import Library

from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.layers.shape import RankShape

from .blocks import block

aten: Final = torch.ops.aten
_COUNTED: Final = ("aten.mm", "aten.addmm", "aten.bmm", "aten._scaled_dot_product")


def under_budgets(
    shape: RankShape, budgets: tuple[float, ...], kernel: AttentionKernel | None
) -> tuple[int, ...]:
    """For each budget the bytes that the forward graph of the shape's block hands to its backward
    graph, its input among them, weights and what else it is called with not; then the FLOPs of
    matmuls and attention that the backward runs again. With a GPU's kernels, or the CPU's."""
    found: list[int] = []
    size = _hidden_size(shape)

    def partition(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        choose = partitioners.choose_saved_values_set

        def at_each_budget(joint: fx.Graph, info: Any, memory_budget: float = 1) -> Any:
            saved = [choose(joint, info, budget) for budget in budgets]
            called_with = info.inputs[:]
            (hidden,) = (node for node in called_with if tuple(node.meta["val"].shape) == size)
            called_with.remove(hidden)
            found.extend(_num_bytes(nodes, called_with) for nodes in saved)
            found.extend(_flops_again(joint, info, nodes) for nodes in saved)
            return choose(joint, info, memory_budget)

        with patch.object(partitioners, "choose_saved_values_set", at_each_budget):
            return partitioners.min_cut_rematerialization_partition(graph, inputs, **options)

    _compiled(shape, partition, kernel)
    return tuple(found)


def kept_when_compiled(
    shape: RankShape, wrap: Callable[[nn.Module], nn.Module], kernel: AttentionKernel | None
) -> tuple[int, ...]:
    """Bytes that the forward graph of the shape's block, wrapped in a checkpoint, hands to its
    backward graph, its input among them, weights, states of random numbers and what else it is
    called with not."""
    found: list[int] = []
    size = _hidden_size(shape)

    def partition(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        forward, backward = partitioners.min_cut_rematerialization_partition(
            graph, inputs, **options
        )
        called_with = [
            node
            for node in forward.graph.find_nodes(op="placeholder")
            if tuple(node.meta["val"].shape) != size
        ]
        handed = backward.graph.find_nodes(op="placeholder")
        saved = [
            node
            for node in handed
            if "tangents" not in node.name and node.meta["val"].dtype is not torch.uint8
        ]
        found.append(_num_bytes(saved, called_with))
        return forward, backward

    _compiled(shape, partition, kernel, wrap)
    return tuple(found)


def loss_handed_on(shape: RankShape) -> tuple[int, int]:
    """Bytes that the forward graph of torchtitan's loss hands to its backward graph, labels not
    among them, and those that the backward graph returns."""
    from .titan import import_titan

    loss = import_titan("components.loss").cross_entropy_loss
    found: list[tuple[int, int]] = []

    def partition(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        forward, backward = partitioners.min_cut_rematerialization_partition(
            graph, inputs, **options
        )
        handed = [node.meta["val"] for node in backward.graph.find_nodes(op="placeholder")]
        (returned,) = backward.graph.find_nodes(op="output")
        gradients = [node.meta["val"] for node in returned.args[0] if node is not None]
        found.append(
            (
                sum(t.nbytes for t in handed if t.dtype is not torch.int64 and t.numel() > 1),
                sum(t.nbytes for t in gradients),
            )
        )
        return forward, backward

    size = (shape.micro_batch_size, shape.seq_length)
    logits = (*size, shape.model.vocab_size)
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        compiled = torch.compile(loss, backend=_backend(partition, select_decomp_table()))
        compiled(
            torch.empty(logits, dtype=torch.bfloat16, requires_grad=True),
            torch.empty(size, dtype=torch.int64),
        )
    return found[0]


def _backend(partition: Callable[..., Any], decompositions: dict[Any, Any]) -> Any:
    """Graphs as `partition` leaves them, not compiled."""

    def run(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        return graph.forward

    return aot_autograd(
        fw_compiler=run, bw_compiler=run, partition_fn=partition, decompositions=decompositions
    )


def _hidden_size(shape: RankShape) -> tuple[int, ...]:
    return (shape.micro_batch_size, shape.seq_length, shape.model.hidden_size)


def _compiled(
    shape: RankShape,
    partition: Callable[..., Any],
    kernel: AttentionKernel | None,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> None:
    """Compile the shape's block, so that its joint graph is given to `partition`."""

    def prepared(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        with V.set_fake_mode(detect_fake_mode()):
            graph = _recursive_joint_graph_passes(graph)
        return partition(graph, inputs, **options)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch._dynamo.reset()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _kernels_of(kernel) as decompositions:
            backend = _backend(prepared, decompositions)
            made, rest, named = block(shape)
            compiled = torch.compile(wrap(made) if wrap else made, backend=backend, dynamic=False)
            hidden = torch.empty(_hidden_size(shape), requires_grad=True)
            compiled(hidden, *rest, **named)
    finally:
        torch.set_default_dtype(before)


def _num_bytes(saved: list[fx.Node], called_with: list[fx.Node]) -> int:
    """Of all storages but those of `called_with`."""
    others = {node.meta["val"].untyped_storage()._cdata for node in called_with}
    storages = {}
    for node in saved:
        storage = node.meta["val"].untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(size for key, size in storages.items() if key not in others)


def _flops_again(joint: fx.Graph, info: Any, saved: list[fx.Node]) -> int:
    """Of what the backward needs and can get from `saved` alone by computing it again."""
    known = {*saved, *info.inputs, *info.tangents_closure}
    readers = [node for node in joint.nodes if node in info.tangents_closure]
    waiting = [source for node in readers if node.op != "output" for source in node.all_input_nodes]
    flops = 0
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            waiting.extend(node.all_input_nodes)
            if str(node.target).startswith(_COUNTED):
                flops += int(partitioners.estimate_runtime(node))
    return flops


@contextmanager
def _kernels_of(kernel: AttentionKernel | None) -> Iterator[dict[Any, Any]]:
    """Inductor's decompositions; with `kernel` those of a GPU, where attention and RMSNorm are
    operators of their own and LayerNorm keeps its statistics in fp32."""
    table = dict(select_decomp_table())
    if kernel is None:
        yield table
        return
    table[aten.native_layer_norm.default] = _layer_norm
    attention = _flash if kernel is AttentionKernel.FLASH else _cudnn
    library = Library("aten", "IMPL")
    try:
        # with a kernel of its own torch traces the operator, which its table decomposes
        library.impl("_fused_rms_norm", _never, "CPU")
        with patch.object(F, "scaled_dot_product_attention", attention):
            yield table
    finally:
        library._destroy()


def _never(*_: Any) -> Any:
    raise AssertionError("fake tensors run no kernel")


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """torch._refs.native_layer_norm without its branch for the CPU."""
    dims = list(range(x.ndim - len(shape), x.ndim))
    out, mean, rstd = torch._refs._normalize(x, dims, eps)
    return (out * weight + bias).to(x.dtype), mean, rstd


def _flash(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """As on a GPU, the memory-efficient kernel where there is a mask."""
    if attn_mask is None:
        return aten._scaled_dot_product_flash_attention(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
    bias = _bias(attn_mask).expand(*q.shape[:2], -1, -1)
    return aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, dropout_p, is_causal, scale=scale
    )[0]


def _cudnn(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    bias = None if attn_mask is None else _bias(attn_mask)
    return aten._scaled_dot_product_cudnn_attention(
        q, k, v, bias, True, dropout_p, is_causal, False, scale=scale
    )[0]


def _bias(mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, torch.full((), 0.0), torch.full((), float("-inf")))
