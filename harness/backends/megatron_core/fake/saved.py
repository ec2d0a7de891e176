"""Bytes that autograd saves for the backward pass of one transformer layer."""

from collections import Counter
from collections.abc import Iterable

import torch
from msgspec import Struct

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake.autograd_graph import (
    ModulePaths,
    graph_nodes,
    saved_tensors,
)
from harness.backends.megatron_core.fake.without_gpu import fake_chunks, megatron_without_gpu
from harness.backends.megatron_core.model import fake_batch


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
    several layers has no bytes "per layer": ValueError.
    """
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
