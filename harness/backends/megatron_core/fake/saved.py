"""Bytes that autograd saves for the backward pass of one transformer layer."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from msgspec import Struct

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.without_gpu import fake_chunks, megatron_without_gpu
from harness.backends.megatron_core.model import fake_batch


def graph_nodes(root: torch.Tensor) -> Iterator[Any]:
    """Every autograd node reachable from `root`, each once."""
    pending, seen = [root.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(parent for parent, _ in node.next_functions)


def saved_tensors(node: Any) -> list[torch.Tensor]:
    """Tensors the node saved in the forward pass (a Python function's, or C++ `_saved_*`)."""
    if hasattr(node, "saved_tensors"):
        found = list(node.saved_tensors)
    else:
        names = [name for name in dir(node) if name.startswith("_saved_")]
        values = [getattr(node, name) for name in names]
        found = [x for value in values for x in (value if isinstance(value, tuple) else (value,))]
    return [x for x in found if isinstance(x, torch.Tensor)]


class ModulePaths:
    """Module path that a node of the graph comes from, in the forward pass and its replay: autograd
    numbers its nodes, and the number at which each module was entered or left tells."""

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._names: list[str] = []

    def attach(self, model: torch.nn.Module) -> None:
        """Follow the calls of every submodule of `model`."""
        for name, module in model.named_modules():
            path = name or "model"
            module.register_forward_pre_hook(lambda *_, path=path: self._mark([*self._stack, path]))
            module.register_forward_hook(lambda *_: self._mark(self._stack[:-1]))

    def _mark(self, stack: list[str]) -> None:
        self._stack = stack
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._names.append(self._stack[-1] if self._stack else "")

    def of_node(self, node: Any) -> str:
        """Module that created the node; empty outside of modules."""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._names[place] if place >= 0 else ""


class SavedRow(Struct, frozen=True, kw_only=True):
    """One saved storage: `shape` and `dtype` of the tensor, `nbytes` of its whole storage."""

    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


def _rows(root: torch.Tensor, paths: ModulePaths, skip: Iterable[torch.Tensor]) -> list[SavedRow]:
    """Saved storages of the graph in creation order, each once, named by its first saver."""
    seen = {tensor.untyped_storage()._cdata for tensor in skip}
    rows = []
    # a node that accumulates into a parameter saves nothing, and its number is no creation order
    nodes = [node for node in graph_nodes(root) if not hasattr(node, "variable")]
    for node in sorted(nodes, key=lambda node: node._sequence_nr()):
        for tensor in saved_tensors(node):
            storage = tensor.untyped_storage()
            if storage._cdata not in seen and storage.nbytes():
                seen.add(storage._cdata)
                rows.append(
                    SavedRow(
                        module=paths.of_node(node),
                        op=node.name(),
                        shape=tuple(tensor.shape),
                        dtype=str(tensor.dtype).removeprefix("torch."),
                        nbytes=storage.nbytes(),
                    )
                )
    return rows


def saved_rows(case: MegatronCase) -> list[SavedRow]:
    """What one forward pass of the whole model saves; parameters, buffers, inputs excluded."""
    with megatron_without_gpu(case):
        (model,) = fake_chunks(case)
        batch = fake_batch(case)
        paths = ModulePaths()
        paths.attach(model)
        output = batch.forward(model)
        return _rows(output, paths, [*model.parameters(), *model.buffers(), *batch.tensors()])


def saved_bytes_per_layer(case: MegatronCase) -> tuple[int, list[SavedRow]]:
    """Saved bytes of one layer = total of 3 layers - total of 2, and the rows of that difference.
    `num_layers` and the pipeline of the case are ignored. With `block` recomputation the layer
    counted is one that `recompute_num_layers` covers only if that is at least 3. `uniform` over
    several layers has no bytes "per layer": ValueError."""
    if case.recompute_method == "uniform" and case.recompute_num_layers != 1:
        raise ValueError(
            f"recompute_num_layers = {case.recompute_num_layers}: must be 1 with uniform to count "
            "bytes per layer"
        )
    single = case.changed(
        pipeline_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        num_layers_in_first_pipeline_stage=None,
        num_layers_in_last_pipeline_stage=None,
    )
    rows = saved_rows(single.changed(num_layers=3))
    fewer = saved_rows(single.changed(num_layers=2))
    layer = list((Counter(rows) - Counter(fewer)).elements())
    return sum(row.nbytes for row in layer), layer
