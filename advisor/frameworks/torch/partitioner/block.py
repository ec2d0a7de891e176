"""What the lowering of a layer's operators to aten shares: the graph, and a node for each tensor."""

from advisor.dtypes import DType
from advisor.frameworks.torch.partitioner.graph import Graph, Kind, Node
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape

WIDE = DType.FP32.itemsize


class Block:
    """A layer on its way to aten.

    listed_attention: whether its attention kernel is on torch's list of costly operators, as the
    flash kernel is and cuDNN's is not.
    """

    def __init__(self, shape: RankShape, listed_attention: bool) -> None:
        self.shape = shape
        self.listed_attention = listed_attention
        self.graph = Graph()
        self._nodes: dict[str, Node] = {}
        self._inputs: dict[str, Node] = {}

    def node(self, tensor: Tensor) -> Node:
        """The node that a tensor is; an input of the layer where no operator has made it."""
        if tensor.name not in self._nodes:
            self._nodes[tensor.name] = self.input(tensor.name, tensor.num_bytes)
        return self._nodes[tensor.name]

    def define(self, tensor: Tensor, node: Node) -> None:
        """`node` is what `tensor` is for the operators behind."""
        self._nodes[tensor.name] = node

    def input(self, name: str, num_bytes: int) -> Node:
        """What the layer is called with, once by name."""
        if name not in self._inputs:
            self._inputs[name] = self.graph.add(name, Kind.INPUT, num_bytes)
        return self._inputs[name]

    def weights(self, operator: Operator) -> list[Node]:
        """A node for each weight of `operator`, in 16 bit."""
        return [
            self.graph.add(weight.name, Kind.INPUT,
                           weight.num_elements * self.shape.dtype.itemsize, weight=True)
            for weight in operator.weights
        ]  # fmt: skip
