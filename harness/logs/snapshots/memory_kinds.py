"""What an allocation of a snapshot is for: by the category that it has, or by its stack."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

BEFORE: Final = "alive before the recording"
UNKNOWN: Final = "without a stack"
_OTHER: Final = "allocated in other code"
_MOST_FRAMES: Final = 128
_LONGEST: Final = 300
CATEGORIES: Final = {
    "parameter": "weights",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
    "activation": "activations",
    "temporary": "temporary tensors",
    "buffer": "buffers",
    "input": "inputs",
    "autograd_detail": "autograd's own",
}
"""Names of torch 2.13 profiler/_memory_profiler.py, which `advise` writes too (with buffers)."""
_OPTIMIZER: Final = ("/torch/optim/", "optimizer")
_BACKWARD: Final = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
"""Parts of file names."""


class Kinds:
    """Words for `alloc` events. A stack tells in which phase the allocation was made: a replay runs
    in the backward. Events share stacks, each of which is looked at once."""

    def __init__(self) -> None:
        self._of_stacks: dict[int, str] = {}

    def of(self, event: Mapping[Any, Any]) -> str:
        """The kind of one, which must outlive this object."""
        category, frames = event.get("category"), event.get("frames")
        if isinstance(category, str) and category in CATEGORIES:
            return CATEGORIES[category]
        if not isinstance(frames, list) or not frames:
            return UNKNOWN
        if id(frames) not in self._of_stacks:
            self._of_stacks[id(frames)] = _by_stack(frames)
        return self._of_stacks[id(frames)]


def _by_stack(frames: list[Any]) -> str:
    found = _OTHER
    for frame in islice(frames, _MOST_FRAMES):
        if not isinstance(frame, dict):
            continue
        file, name = _text(frame.get("filename")), _text(frame.get("name"))
        if any(part in file for part in _OPTIMIZER):
            return "allocated in the optimizer"
        if file.endswith(_BACKWARD) or name.startswith("torch::autograd::Engine"):
            found = "allocated in the backward"
        elif name == "forward" and found == _OTHER:
            found = "allocated in the forward"
    return found


def _text(value: object) -> str:
    """The end of a string, an empty one for anything else."""
    return value[-_LONGEST:] if isinstance(value, str) else ""
