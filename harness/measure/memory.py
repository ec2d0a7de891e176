"""Peaks of one rank (the caching allocator's, or exact accounting), and bytes against time."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from harness.trial.result import Phase, TimelinePoint

_RETRIES: Final = "num_alloc_retries"
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class CudaAllocator:
    """Peaks of the caching allocator of one device between `reset` and `peaks`."""

    def __init__(self) -> None:
        self._device = torch.cuda.current_device()
        self._before: Mapping[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Peaks start from what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = self._stats()

    def peaks(self) -> dict[str, int]:
        """Since the last reset, as fields of MemoryPeak. active: blocks in use, and freed ones that
        a stream still reads. allocator_retries: allocations that first had to give cached blocks
        back, which stops the device."""
        stats = self._stats()
        kinds = ("allocated", "active", "reserved")
        peaks = {kind: stats.get(f"{kind}_bytes.all.peak", 0) for kind in kinds}
        return peaks | {"allocator_retries": stats.get(_RETRIES, 0) - self._before.get(_RETRIES, 0)}

    def allocated(self) -> int:
        """Bytes of blocks in use now."""
        return torch.cuda.memory_allocated(self._device)

    def _stats(self) -> Mapping[str, int]:
        stats: Mapping[str, int] = torch.cuda.memory_stats(self._device)
        return stats


def cap_memory(memory_bytes: int | None) -> None:
    """No more than the target GPU has; what its CUDA context takes is not the allocator's."""
    free, here = torch.cuda.mem_get_info()
    if memory_bytes is not None and memory_bytes < here:
        context = here - free
        torch.cuda.set_per_process_memory_fraction((memory_bytes - context) / here)


class _Alive(weakref.ref[Any]):
    """A storage that counts, with the key and the bytes it counts as."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class StorageMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Live and peak bytes of tensor storages, exact to the byte, while active. A storage counts
    from the operation that returns it until it is freed, at the size it has, and once however many
    tensors look at it. `count_existing` adds what is alive when the meter starts (weights,
    optimizer states), as a GPU's allocator would. Not counted: temporaries inside one operation,
    memory that no operator returned (torch.from_numpy), devices other than `device`. A view brings
    its whole storage in, also one that was there before. `changed` is called with the live bytes
    after every operation that changed them."""

    def __init__(self, device: str = "cpu", changed: Callable[[int], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._device = device
        self._changed = changed
        self._reported = 0
        self._alive: dict[int, _Alive] = {}

    def count_existing(self) -> None:
        """Count every tensor that Python knows now, with its gradient."""
        for candidate in gc.get_objects():
            if issubclass(type(candidate), torch.Tensor):
                self._see(candidate)
                gradient = candidate.grad if candidate.is_leaf else None
                if gradient is not None:
                    self._see(gradient)
        self._tick()

    @contextmanager
    def measuring(self) -> Iterator["StorageMeter"]:
        """Count operations, and `storage.resize_`, which does not go through the dispatcher."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: Any, nbytes: int) -> Any:
            result = original(storage, nbytes)
            self._see_storage(storage)
            self._tick()
            return result

        with patch.object(torch.UntypedStorage, "resize_", resize_), self:
            yield self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(kind.__module__.startswith("torch.distributed") for kind in types):
            return NotImplemented  # a DTensor first becomes operations on its local tensors
        result = self._result(func, args, kwargs or {})
        if isinstance(result, torch.Tensor):
            self._see(result)
        elif isinstance(result, tuple | list):
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._see(leaf)
        self._tick()
        return result

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device or tensor.layout is not torch.strided:
            return
        # tensors with a shape and no memory (DTensor asks such ones first)
        kind = type(tensor)
        if kind not in _PLAIN and kind.__module__.startswith("torch._subclasses"):
            return
        if kind not in _PLAIN and is_traceable_wrapper_subclass(tensor):
            for name in tensor.__tensor_flatten__()[0]:
                part = getattr(tensor, name)
                if isinstance(part, torch.Tensor):
                    self._see(part)
            return
        self._see_storage(tensor.untyped_storage())

    def _see_storage(self, storage: Any) -> None:
        key = storage._cdata
        known = self._alive.get(key)
        nbytes: int = storage.nbytes()
        if known is None:
            known = _Alive(storage, self._free)
            known.key, known.nbytes = key, 0
            self._alive[key] = known
        self.live_bytes += nbytes - known.nbytes
        known.nbytes = nbytes

    def _free(self, reference: weakref.ref[Any]) -> None:
        assert isinstance(reference, _Alive)
        del self._alive[reference.key]
        self.live_bytes -= reference.nbytes

    def _tick(self) -> None:
        """An operation is over: what it returned is live."""
        live = self.live_bytes
        self.peak_bytes = max(self.peak_bytes, live)
        if self._changed is not None and live != self._reported:
            self._reported = live
            self._changed(live)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages of `tensors`."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


MOST_POINTS: Final = 2000
SAMPLE_SECONDS: Final = 1e-3


class Timeline:
    """Points of one step; seconds since its creation. A Recorder: `phase` marks where one begins,
    with the bytes that `allocated` tells then."""

    def __init__(
        self, allocated: Callable[[], int], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._allocated, self._now = allocated, now
        self._began = now()
        self._phase = Phase.FORWARD
        self._points: list[TimelinePoint] = []

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self._phase = phase
        self.sample()

    def replay(self, begins: bool) -> None:
        """A stretch of the backward in which something is computed again."""
        self.phase(Phase.REPLAY if begins else Phase.BACKWARD)

    def sample(self) -> None:
        """Ask for the allocated bytes now."""
        self.add(self._allocated())

    def add(self, allocated: int) -> None:
        """`allocated` bytes are live now."""
        seconds = self._now() - self._began
        self._points.append(TimelinePoint(seconds=seconds, allocated=allocated, phase=self._phase))

    def points(self, most: int = MOST_POINTS) -> tuple[TimelinePoint, ...]:
        """In order of time (a sampler's points may come late), thinned to about `most`."""
        return thinned(sorted(self._points, key=lambda point: point.seconds), most)


def thinned(points: Sequence[TimelinePoint], most: int) -> tuple[TimelinePoint, ...]:
    """At most `most` points and the ends of phases: each stretch keeps its lowest and highest."""
    if len(points) <= most:
        return tuple(points)
    keep = {0, len(points) - 1}
    for index in range(1, len(points)):
        if points[index].phase is not points[index - 1].phase:
            keep |= {index - 1, index}
    stretch = -(-len(points) * 2 // most)
    for start in range(0, len(points), stretch):
        indices = range(start, min(start + stretch, len(points)))
        keep.add(min(indices, key=lambda i: points[i].allocated))
        keep.add(max(indices, key=lambda i: points[i].allocated))
    return tuple(points[index] for index in sorted(keep))


@contextmanager
def sampled(take: Callable[[], None], interval: float = SAMPLE_SECONDS) -> Iterator[None]:
    """Call `take` at once and then every `interval` seconds from a thread, until the block ends."""
    done = threading.Event()

    def loop() -> None:
        take()
        while not done.wait(interval):
            take()

    thread = threading.Thread(target=loop, name="sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
