"""What the lowering of a layer to aten shares: the graph, and a node for each tensor."""

from enum import StrEnum
from typing import Final

from advisor.base.dtypes import DType
from advisor.frameworks.torch.partitioner.graph import Graph, Kind, Node
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape

WIDE: Final = DType.FP32.itemsize


class AttentionKernel(StrEnum):
    """Which of a GPU's kernels scaled_dot_product_attention takes. The flash kernel is on torch's
    list of costly operators, cuDNN's is not."""

    FLASH = "flash"
    CUDNN = "cuDNN"


class Block:
    """A layer on its way to aten."""

    def __init__(self, shape: RankShape, kernel: AttentionKernel) -> None:
        self.shape = shape
        self.kernel = kernel
        self.graph = Graph()
        self._nodes: dict[str, Node] = {}
        self._inputs: dict[str, Node] = {}
        self._in_front: set[str] = set()
        self._seeds: Node | None = None

    def node(self, tensor: Tensor) -> Node:
        """The node that a tensor is; an input of the layer where no operator has made it."""
        if tensor.name not in self._nodes:
            self.define(tensor, self.input(tensor.name, tensor.num_bytes))
        return self._nodes[tensor.name]

    def by_head(self, tensor: Tensor) -> Node:
        """`tensor` as [micro_batch_size, seq_length, heads, kv_channels]."""
        return self.graph.view(self.node(tensor), "heads")

    def heads_first(self, tensor: Tensor) -> Node:
        """`tensor` as [micro_batch_size, heads, seq_length, kv_channels]."""
        if tensor.name in self._in_front:
            return self.node(tensor)
        cut = len(tensor.shape) == 4
        return self.graph.view(self.node(tensor) if cut else self.by_head(tensor), "heads_first")

    def define(self, tensor: Tensor, node: Node, *, heads_first: bool = False) -> None:
        """`node` is what `tensor` is for the operators after it; heads_first: in that layout."""
        self._nodes[tensor.name] = node
        if heads_first:
            self._in_front.add(tensor.name)
        if node.storage.tensor is None and node.storage.num_bytes == tensor.num_bytes:
            node.storage.tensor = tensor

    def input(self, name: str, num_bytes: int) -> Node:
        """What the layer is called with, once by name."""
        if name not in self._inputs:
            self._inputs[name] = self.graph.add(name, Kind.INPUT, num_bytes)
        return self._inputs[name]

    def in_fp32(self, node: Node) -> Node:
        """A copy in fp32 of a 16-bit node."""
        size = node.num_bytes // self.shape.dtype.itemsize * WIDE
        return self.graph.fused(f"{node.name}.fp32", size, node)

    def read_slope_of_tanh(self, output: Tensor) -> None:
        """The backward of tanh squares its output in fp32 (torch/_decomp/decompositions.py,
        tanh_backward)."""
        graph, wide = self.graph, output.num_elements * WIDE
        copy = graph.fused("fp32", wide, self.node(output))
        graph.read(graph.fused("rest", wide, graph.fused("squared", wide, copy, copy)))

    @property
    def seeds(self) -> Node:
        """The seeds of all dropouts, which inductor makes at once: a layer has two."""
        if self._seeds is None:
            self._seeds = self.graph.add("seeds", Kind.OTHER, 2 * DType.INT64.itemsize)
        return self._seeds

    def weights(self, operator: Operator) -> list[Node]:
        """A node for each weight of `operator`, in 16 bit."""
        return [
            self.graph.add(
                weight.name,
                Kind.INPUT,
                weight.num_elements * self.shape.dtype.itemsize,
                weight=True,
            )
            for weight in operator.weights
        ]
