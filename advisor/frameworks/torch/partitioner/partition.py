"""What torch.compile keeps of a graph for its backward, under a memory budget or a policy.

Source: torch 2.13 _functorch/partitioners.py (choose_saved_values_set, solve_min_cut), with its
default options. Two more of its bans, of what is read far apart and of long chains, change nothing
within a layer and are left out.
"""

from collections.abc import Container, Iterable
from typing import Final

from msgspec import Struct

from advisor.frameworks.torch.partitioner.graph import FAR, Graph, Kind, Node, fuses
from advisor.frameworks.torch.partitioner.min_cut import INFINITE, Network, dp_knapsack

FASTEST: Final = 1.0
"""torch's default budget: what is computed again costs the backward's kernels nothing."""
_GIGA: Final = 1e9
_SMALLER: Final = 4
"""A reduction, which is not computed again, makes less than its input's bytes over this."""
_NEARER: Final = 1.1
"""What is kept is the dearer, the further it is from the backward: by this factor a step."""


class Bans(Struct, frozen=True):
    """Why nodes of the forward are not computed again, besides being a reduction.

    unlisted: they are not on the list of cheap operators; else the costly ones alone are out.
    materialized: a kernel of the backward reads them from memory.
    """

    unlisted: bool
    materialized: bool


_FOR_SPEED: Final = Bans(unlisted=True, materialized=True)
_MORE_AGGRESSIVE: Final = Bans(unlisted=True, materialized=False)
_AGGRESSIVE: Final = Bans(unlisted=False, materialized=False)


class Partition(Struct, frozen=True):
    """Nodes that are kept, and nodes of the forward that the backward computes again."""

    kept: tuple[Node, ...]
    computed_again: tuple[Node, ...]


def partition(graph: Graph, budget: float) -> Partition:
    """What `budget`, from 0 to 1, keeps. 1 is the fastest choice, 0 the inputs alone; between them
    whichever comes first and fits: two cuts that compute more again, or of what these do not
    compute again the most FLOPs."""
    inputs = [node for node in graph.nodes if not node.computed]
    if budget == 0:
        again = (n for n in graph.nodes if n.forward and n.computed and n.distance < FAR)
        return Partition(tuple(inputs), tuple(again))
    fastest = _cut(graph, _banned(graph, _FOR_SPEED))
    least, most = _gigabytes(inputs), _gigabytes(fastest.kept)
    if budget == FASTEST or most <= least:
        return fastest
    for bans in (_MORE_AGGRESSIVE, _AGGRESSIVE):
        banned = _banned(graph, bans)
        found = _cut(graph, banned)
        if (_gigabytes(found.kept) - least) / (most - least) < budget:
            return found
    candidates = sorted(
        (node for node in banned if node.computed and node.distance < FAR),
        key=lambda node: -node.num_bytes,
    )
    memory = [node.num_bytes / _GIGA / (most - least) for node in candidates]
    saved = dp_knapsack(memory, [float(max(node.flops, 1)) for node in candidates], budget)
    dropped = {node for index, node in enumerate(candidates) if index not in saved}
    return _cut(graph, {node: None for node in banned if node not in dropped})


def partition_by_policy(graph: Graph, saved: Container[str]) -> Partition:
    """What a selective checkpoint inside the graph keeps: matmuls and attention of the operators
    `saved` are tagged MUST_SAVE, all else PREFER_RECOMPUTE, which compels torch to (solve_min_cut);
    of what is tagged, what the backward does not come to is dropped (_extract_fwd_bwd_modules)."""

    def stays(node: Node) -> bool:
        source = node.inputs[0] if node.kind is Kind.PICK else node
        return source.kind in (Kind.COSTLY, Kind.OTHER) and source.owner in saved

    kept: dict[Node, None] = {}
    again: dict[Node, None] = {}
    needed = [node for node in graph.nodes if any(user.backward for user in node.users)]
    while needed:
        node = needed.pop()
        if node in kept or node in again:
            continue
        if not node.computed or stays(node):
            kept[node] = None
        else:
            again[node] = None
            needed.extend(node.inputs)
    return Partition(tuple(kept), tuple(again))


def _gigabytes(nodes: Iterable[Node]) -> float:
    return sum(node.num_bytes for node in nodes) / _GIGA


def _banned(graph: Graph, bans: Bans) -> dict[Node, None]:
    """Nodes that are not computed again, in order."""
    return {node: None for node in graph.nodes if _is_banned(node, bans)}


def _is_banned(node: Node, bans: Bans) -> bool:
    if node.kind is Kind.INPUT:
        return True
    if not node.forward or node.kind in (Kind.VIEW, Kind.PICK):
        return False
    return (
        node.kind is Kind.COSTLY
        or (bans.unlisted and node.kind is not Kind.FUSIBLE)
        or (bans.materialized and _is_materialized_in_backward(node))
        or node.num_bytes * _SMALLER < sum(source.num_bytes for source in node.inputs)
    )


def _is_materialized_in_backward(node: Node) -> bool:
    """Whether something after the forward reads the node, or a view of it, from memory."""
    views = [node]
    while views:
        seen = views.pop()
        for user in seen.users:
            if not user.forward and not fuses(seen, user):
                return True
            if user.kind is Kind.VIEW:
                views.append(user)
    return False


def _cut(graph: Graph, banned: dict[Node, None]) -> Partition:
    """The cheapest nodes to keep, if those of `banned` are not computed again."""
    nodes = [node for node in graph.nodes if node.distance < FAR]
    number = {node: 2 + 2 * place for place, node in enumerate(nodes)}
    network = Network(2 + 2 * len(nodes))
    for node in nodes:
        entry = number[node]
        if node in banned:
            network.connect(0, entry, INFINITE)
        network.connect(entry, entry + 1, _price(node))
        for user in node.users:
            if user.backward:
                network.connect(entry + 1, 1, INFINITE)
            elif user in number:
                network.connect(entry + 1, number[user], INFINITE)
    after_cut = network.after_cut()
    kept = (n for n in nodes if after_cut[number[n] + 1] and not after_cut[number[n]])
    return Partition(tuple(kept), tuple(n for n in nodes if n.forward and after_cut[number[n]]))


def _price(node: Node) -> int:
    """What keeping a node costs; twice as much where all its readers would be fused with it."""
    if node.weight:
        return 0
    if node.several:
        return INFINITE
    price = int(node.num_bytes * _NEARER ** max(min(node.distance, 100), 1))
    in_memory = not node.computed or not all(fuses(node, user) for user in node.users)
    return price if in_memory else 2 * price
