"""What a memory budget of torch.compile keeps of a layer, as a plan."""

from functools import lru_cache

from advisor.base.dtypes import DType
from advisor.base.units import human_bytes
from advisor.frameworks.torch.partitioner.aten_layer import UnknownGraphError, aten_graph
from advisor.frameworks.torch.partitioner.graph import Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.partitioner.partition import Partition, partition
from advisor.layers.operators import LAYER_INPUT, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import Checkpoint, ReplayRun


@lru_cache(maxsize=256)
def budget_run(
    shape: RankShape, kind: LayerKind, budget: float, kernel: AttentionKernel
) -> ReplayRun:
    """The layer as one run, of which `budget` keeps some tensors.

    Attention may take the other kernel than `kernel`: what the layer keeps then tells how unsure
    this is.
    """
    operators = transformer_layer(shape, kind)
    chosen = _partition(shape, operators, budget, kernel)
    kept = _kept(operators, chosen)
    others = _kept(operators, _partition(shape, operators, budget, _other(kernel)))
    again = {node.owner for node in chosen.computed_again if node.tensor is not None}
    return ReplayRun(
        modules=frozenset(operator.module for operator in operators),
        keeps=frozenset(operator.name for operator in operators if operator.name not in again),
        checkpoint=Checkpoint.EARLY_STOP,
        kept=kept,
        kept_bytes_sigma=abs(_num_bytes(kept) - _num_bytes(others)),
    )


def kernels_note(
    shape: RankShape, kind: LayerKind, budget: float, kernel: AttentionKernel
) -> str | None:
    """How much a block keeps with either kernel, where that differs in print."""
    other = _other(kernel)
    here, there = (
        human_bytes(_num_bytes(budget_run(shape, kind, budget, one).kept or ()))
        for one in (kernel, other)
    )
    if here == there:
        return None
    return (
        f"a block keeps {here} with {kernel} attention, which is assumed, {there} where torch "
        f"takes {other}'s"
    )


def unknown_operator(shape: RankShape, kinds: tuple[LayerKind, ...]) -> str | None:
    """An operator of the layers whose graph is not known, if there is one."""
    for kind in dict.fromkeys(kinds):
        try:
            aten_graph(shape, transformer_layer(shape, kind), AttentionKernel.FLASH)
        except UnknownGraphError as unknown:
            return str(unknown)
    return None


def _other(kernel: AttentionKernel) -> AttentionKernel:
    (other,) = (one for one in AttentionKernel if one is not kernel)
    return other


def _partition(
    shape: RankShape, operators: tuple[Operator, ...], budget: float, kernel: AttentionKernel
) -> Partition:
    return partition(aten_graph(shape, operators, kernel), budget)


def _num_bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _kept(operators: tuple[Operator, ...], chosen: Partition) -> tuple[Tensor, ...]:
    """The storages that a partition keeps: the layer's input, and what it made. Weights and tables
    are the model's."""
    named = {tensor.name: tensor for operator in operators for tensor in operator.saved}
    storages = dict.fromkeys(node.storage for node in chosen.kept)
    return tuple(
        _tensor(storage, named)
        for storage in storages
        if storage.kind is not Kind.INPUT or storage.name == LAYER_INPUT
    )


def _tensor(node: Node, named: dict[str, Tensor]) -> Tensor:
    """As the layer knows it; else its bytes, under a name of its own."""
    if node.tensor is not None:
        return node.tensor
    full = f"{node.owner}.{node.name}"
    known = named.get(full) or named.get(node.name)
    return known or Tensor(full, (node.num_bytes,), DType.UINT8)
