"""The graph that torch.compile partitions.

Its nodes are the aten operators of the forward, and those of the backward that depend on the
forward's values alone; two more, which read, stand for the rest of the backward.

Source: torch 2.13 _functorch/partitioners.py (get_default_op_list, classify_nodes).
"""

from collections import Counter
from enum import StrEnum

from msgspec import Struct, field

from advisor.layers.operators import Tensor

FAR = 10**9
"""Distance of what no backward needs."""


class Kind(StrEnum):
    """What the partitioner makes of an operator.

    input: a weight, or what the block is called with. view: free, never banned. fusible: pointwise
    work and reductions, on torch's list of what may be computed again. pick: one output of several.
    cat: others fuse into it, it into none. costly: matmuls and flash attention, which no setting
    but a budget computes again. other: neither on that list nor costly (cuDNN's attention).
    """

    INPUT = "input"
    VIEW = "view"
    FUSIBLE = "fusible"
    PICK = "pick"
    CAT = "cat"
    COSTLY = "costly"
    OTHER = "other"


_FUSIBLE = frozenset({Kind.VIEW, Kind.FUSIBLE, Kind.PICK})


class Node(Struct, eq=False):
    """One operator of the graph.

    num_bytes: of all its outputs; several: whether they are more than one, so that it cannot itself
    be kept. weight: kept by the optimizer, free to save. storage: the node whose memory it lies in.
    owner: name of the layer's operator that it belongs to. distance: steps to the first reader in
    the backward, 0 where only the backward computes it. tensor: what the layer calls it.
    """

    name: str
    kind: Kind
    num_bytes: int
    inputs: tuple["Node", ...] = ()
    flops: int = 0
    several: bool = False
    weight: bool = False
    backward: bool = False
    owner: str = ""
    base: "Node | None" = None
    tensor: Tensor | None = None
    users: list["Node"] = field(default_factory=list)
    forward: bool = False
    distance: int = FAR

    @property
    def storage(self) -> "Node":
        """The node whose memory it lies in."""
        return self.base or self

    @property
    def computed(self) -> bool:
        """Whether it is no input."""
        return self.kind is not Kind.INPUT


def fuses(writer: Node, reader: Node) -> bool:
    """Whether inductor would write `reader` into the kernel of `writer`."""
    return reader.kind is Kind.CAT or (writer.kind in _FUSIBLE and reader.kind in _FUSIBLE)


class Graph:
    """Nodes in the order in which they run; `owner` is given to the nodes that are added."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.owner = ""
        self._fused = Node("fused backward", Kind.FUSIBLE, 0, backward=True, distance=0)
        self._kernel = Node("backward kernel", Kind.OTHER, 0, backward=True, distance=0)
        self._names: Counter[tuple[str, str]] = Counter()
        self._views: dict[tuple[Node, str], Node] = {}

    def add(
        self,
        name: str,
        kind: Kind,
        num_bytes: int,
        *inputs: Node,
        flops: int = 0,
        several: bool = False,
        weight: bool = False,
        base: Node | None = None,
    ) -> Node:
        """A new node that reads `inputs`; a second one of the same name and owner is numbered."""
        earlier = self._names[self.owner, name]
        self._names[self.owner, name] += 1
        name = f"{name}_{earlier}" if earlier else name
        node = Node(
            name,
            kind,
            num_bytes,
            inputs,
            flops,
            several,
            weight,
            owner=self.owner,
            base=base and base.storage,
        )
        self.nodes.append(node)
        for source in inputs:
            source.users.append(node)
        return node

    def fused(self, name: str, num_bytes: int, *inputs: Node) -> Node:
        """Pointwise work or a reduction."""
        return self.add(name, Kind.FUSIBLE, num_bytes, *inputs)

    def view(self, source: Node, how: str, num_bytes: int | None = None) -> Node:
        """A view of `source`; equal views are one node (torch's CSE)."""
        key = source, how
        if key not in self._views:
            size = source.num_bytes if num_bytes is None else num_bytes
            self._views[key] = self.add(how, Kind.VIEW, size, source, base=source)
        return self._views[key]

    def read(self, *nodes: Node) -> None:
        """Pointwise work of the backward reads `nodes`."""
        for node in nodes:
            node.users.append(self._fused)

    def read_by_kernel(self, *nodes: Node) -> None:
        """A matmul or attention of the backward reads `nodes`."""
        for node in nodes:
            node.users.append(self._kernel)

    def finish(self, output: Node) -> None:
        """Tell what the forward needs for `output` from what only the backward needs, and how far
        each node is from the backward."""
        self.nodes = sorted(self.nodes, key=lambda node: node.computed)
        needed = [output]
        while needed:
            node = needed.pop()
            if not node.forward:
                node.forward = True
                needed.extend(node.inputs)
        for node in reversed(self.nodes):
            reached = min((user.distance + 1 for user in node.users), default=FAR)
            node.distance = min(reached, FAR) if node.forward else 0
