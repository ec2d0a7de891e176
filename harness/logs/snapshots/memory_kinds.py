"""What an allocation of a snapshot is for: by the category that it has, or by its stack."""

from collections.abc import Mapping
from typing import Any, Final

BEFORE: Final = "alive before the recording"
UNKNOWN: Final = "without a stack"
_OTHER: Final = "allocated in other code"
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
_OPTIMIZER: Final = ("/torch/optim/", "/optimizer/", "/optimizers/", "optimizer.py", "/fused_adam")
_BACKWARD: Final = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
"""Parts of file names."""
_ENGINE: Final = "torch::autograd::Engine"
"""On CUDA a thread of its own runs the backward, whose stack has no other mark."""
_REPLAYS: Final = ("backward", "unpack_hook")
"""Functions that replay a forward, of any checkpoint: where stacks hold Python alone, the mark of
that thread."""
_IN_OPTIMIZER: Final = "allocated in the optimizer"
_IN_BACKWARD: Final = "allocated in the backward"
_IN_FORWARD: Final = "allocated in the forward"
_PHASES: Final = (_IN_OPTIMIZER, _IN_BACKWARD, _IN_FORWARD)
"""A stack belongs to the first of them that it has."""


class Kinds:
    """Words for `alloc` events. A stack tells in which phase the allocation was made: a replay runs
    in the backward. Events share stacks, and stacks share frames: each is looked at once."""

    def __init__(self) -> None:
        self._of_stacks: dict[int, str] = {}
        self._of_frames: dict[int, str | None] = {}

    def of(self, event: Mapping[Any, Any]) -> str:
        """The kind of one, which must outlive this object."""
        category, frames = event.get("category"), event.get("frames")
        if isinstance(category, str) and category in CATEGORIES:
            return CATEGORIES[category]
        if not isinstance(frames, list) or not frames:
            return UNKNOWN
        if id(frames) not in self._of_stacks:
            self._of_stacks[id(frames)] = self._by_stack(frames)
        return self._of_stacks[id(frames)]

    def _by_stack(self, frames: list[Any]) -> str:
        found = set()
        for frame in frames:
            if id(frame) not in self._of_frames:
                self._of_frames[id(frame)] = _phase(frame)
            found.add(self._of_frames[id(frame)])
        return next((phase for phase in _PHASES if phase in found), _OTHER)


def _phase(frame: object) -> str | None:
    if not isinstance(frame, dict):
        return None
    file, name = _text(frame.get("filename")), _text(frame.get("name"))
    if any(part in file for part in _OPTIMIZER):
        return _IN_OPTIMIZER
    if file.endswith(_BACKWARD) or name.startswith(_ENGINE) or name in _REPLAYS:
        return _IN_BACKWARD
    return _IN_FORWARD if name == "forward" else None


def _text(value: object) -> str:
    """The end of a string, an empty one for anything else."""
    return value[-_LONGEST:] if isinstance(value, str) else ""
