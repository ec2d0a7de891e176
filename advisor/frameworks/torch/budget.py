"""What torch.compile keeps of a layer, by itself, under a memory budget or a policy, as a plan."""

from functools import lru_cache

from advisor.base.dtypes import DType
from advisor.base.units import human_bytes
from advisor.frameworks.torch.partitioner.aten_layer import UnknownGraphError, aten_graph
from advisor.frameworks.torch.partitioner.graph import Kind, Node
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.partitioner.partition import (
    FASTEST,
    Partition,
    partition,
    partition_by_policy,
)
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
    graph = aten_graph(shape, operators, kernel)
    chosen = partition(graph, budget)
    others = partition(aten_graph(shape, operators, _other(kernel)), budget)
    sigma = abs(_num_bytes(_kept(operators, chosen)) - _num_bytes(_kept(operators, others)))
    return _run(operators, chosen, partition(graph, FASTEST), sigma)


@lru_cache(maxsize=256)
def policy_run(
    shape: RankShape, kind: LayerKind, saved: frozenset[str], kernel: AttentionKernel
) -> ReplayRun:
    """The layer as one run, compiled, of whose operators those of the names `saved` are not
    computed again; what no other operator needs of them is not kept."""
    operators = transformer_layer(shape, kind)
    graph = aten_graph(shape, operators, kernel)
    return _run(operators, partition_by_policy(graph, saved), partition(graph, FASTEST))


def is_known(shape: RankShape, kind: LayerKind) -> bool:
    """Whether the graph of a layer is known: not with casts of autocast."""
    plain = shape.tuning.trains_all and not shape.autocast
    return plain and unknown_operator(shape, (kind,)) is None


def _run(
    operators: tuple[Operator, ...], chosen: Partition, free: Partition, sigma: int = 0
) -> ReplayRun:
    """What is computed again of `chosen` and not of `free` is work of its own; the rest is done
    within the backward's kernels."""
    fused = {*free.computed_again}
    again = {n.owner for n in chosen.computed_again if n.tensor is not None and n not in fused}
    return ReplayRun(
        modules=frozenset(operator.module for operator in operators),
        keeps=frozenset(operator.name for operator in operators if operator.name not in again),
        checkpoint=Checkpoint.EARLY_STOP,
        kept=_kept(operators, chosen),
        kept_bytes_sigma=sigma,
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
        f"a block keeps {here} with {kernel} attention (assumed), or {there} if torch chooses "
        f"{other} attention"
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


def _num_bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _kept(operators: tuple[Operator, ...], chosen: Partition) -> tuple[Tensor, ...]:
    """The storages that a partition keeps: the layer's input, and what it made. Weights and tables
    are the model's."""
    named = {tensor.name: tensor for operator in operators for tensor in operator.saved}
    return tuple(
        _tensor(storage, named)
        for storage in dict.fromkeys(node.storage for node in chosen.kept)
        if storage.kind is not Kind.INPUT or storage.name == LAYER_INPUT
    )


def _tensor(node: Node, named: dict[str, Tensor]) -> Tensor:
    """As the layer knows it; else its bytes, under a name of its own."""
    if node.tensor is not None:
        return node.tensor
    full = f"{node.owner}.{node.name}"
    return named.get(full) or named.get(node.name) or Tensor(full, (node.num_bytes,), DType.UINT8)
