"""What an autograd graph holds, and which module each of its nodes belongs to."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import torch


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
    """Module path that a node of the graph comes from, in the forward pass and its replay.

    Autograd numbers its nodes as they are created: the number at which each module was entered or
    left says where a node came from.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._names: list[str] = []

    def attach(self, model: torch.nn.Module) -> None:
        """Follow the calls of every submodule of `model`."""
        for name, module in model.named_modules():
            path = name or "model"
            module.register_forward_pre_hook(lambda *_, path=path: self._enter(path))
            module.register_forward_hook(lambda *_: self._leave())

    def _enter(self, path: str) -> None:
        self._stack.append(path)
        self._mark()

    def _leave(self) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._names.append(self._stack[-1] if self._stack else "")

    def of_node(self, node: Any) -> str:
        """Module that created the node; empty outside of modules."""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._names[place] if place >= 0 else ""
