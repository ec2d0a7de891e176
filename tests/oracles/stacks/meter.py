"""Bytes of live storages while a program runs, as torch's own caching allocator would count them
without rounding: every storage that an operator writes, until its last tensor is gone."""

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Inside this mode: `now` and `peak` bytes of storages made since it was entered. Storages of
    `known` tensors (parameters, inputs) are not counted. FSDP2 frees and allocates the parameters
    that it gathered by resizing their storages, which no operator tells."""

    def __init__(self, known: tuple[torch.Tensor, ...] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.point = ""
        self._known: set[int] = set()
        for storage in (tensor.untyped_storage() for tensor in known):
            self._known.add(storage._cdata)
            weakref.finalize(storage, self._known.discard, storage._cdata)  # another may lie there
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> "LiveBytes":
        self._resize = resize = torch.UntypedStorage.resize_

        def tracked(storage: torch.UntypedStorage, size: int) -> Any:
            out = resize(storage, size)
            if storage._cdata in self._sizes:
                self._change(storage._cdata, size)
            return out

        torch.UntypedStorage.resize_ = tracked
        super().__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # comes again with the operators on its local tensors
        waits = func is torch.ops._c10d_functional.wait_tensor.default
        if waits and isinstance(args[0], FakeTensor):
            return args[0]  # itself, of which a fake one makes a copy
        out = func(*args, **(kwargs or {}))
        torch.utils._pytree.tree_map_only(torch.Tensor, self._note, out)
        if self.now > self.peak:
            self.peak, self.point = self.now, str(func)
        return out

    def _note(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, DTensor):
            return  # its local tensor is noted by itself
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes and key not in self._known:
            self._sizes[key] = 0
            self._change(key, storage.nbytes())
            weakref.finalize(storage, self._freed, key)

    def _change(self, key: int, size: int) -> None:
        self.now += size - self._sizes[key]
        self._sizes[key] = size

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def reset_peak(self) -> None:
        """Begin a new phase."""
        self.peak = self.now


class Requests(LiveBytes):
    """As LiveBytes; `asked` has the storages in order, each by a key of its own and with its bytes,
    0 where it is freed."""

    def __init__(self, known: tuple[torch.Tensor, ...] = ()) -> None:
        super().__init__(known)
        self.asked: list[tuple[int, int]] = []

    def _change(self, key: int, size: int) -> None:
        if self._sizes[key]:
            self.asked.append((key, 0))
        if size:
            self.asked.append((key, size))
        super()._change(key, size)

    def _freed(self, key: int) -> None:
        if self._sizes.get(key):
            self.asked.append((key, 0))
        super()._freed(key)
