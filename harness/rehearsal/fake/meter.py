"""Counts the bytes of live storages, operation by operation."""

import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.rehearsal.fake.autograd_graph import ModulePaths, graph_nodes, saved_tensors
from harness.rehearsal.fake.inferred_results import Results
from harness.rehearsal.fake.storage_lives import Event, PeakTrace, StorageRecord

MEGATRON = os.path.join("megatron", "core") + os.sep
# frames that only say "somewhere in the backward pass"
UNINFORMATIVE = {"custom_backward", "backward_step"}


def _megatron_line() -> str:
    """`file:function:line` of the innermost running Megatron frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if MEGATRON in code.co_filename:
            known = code.co_name in UNINFORMATIVE
            name = os.path.basename(code.co_filename)
            return "" if known else f"{name}:{code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Live and peak bytes of storages allocated while active.

    A storage counts from the operation that returns it until it is freed; temporaries inside an
    operation do not. `round_to_bytes=512` imitates the caching allocator's block size. Without
    `trace`, only the peak is kept.
    """

    def __init__(self, paths: ModulePaths, *, round_to_bytes: int = 1, trace: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self.phase = "setup"
        self.result = PeakTrace()
        self._paths = paths
        self._round_to_bytes = round_to_bytes
        self._trace = trace
        self._results = Results()
        self._clock = 0
        self._kernel = ""
        self._alive: dict[int, StorageRecord] = {}
        self._excluded: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: torch need not guard every operation against it."""
        return False

    def exclude(self, tensors: Iterable[torch.Tensor]) -> None:
        """Never count these storages; the caller keeps them alive."""
        self._excluded.update(tensor.untyped_storage()._cdata for tensor in tensors)

    @contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Operations inside are one kernel: only storages that outlive it count."""
        if self._kernel:
            yield
            return
        self._kernel = name
        try:
            yield
        finally:
            self._tick(name)
            self._kernel = ""

    def mark_saved(self, output: torch.Tensor) -> None:
        """Note on every live record which node of `output`'s graph saved it."""
        for node in graph_nodes(output):
            for tensor in saved_tensors(node):
                record = self._alive.get(tensor.untyped_storage()._cdata)
                if record is not None and not record.saved_by:
                    record.saved_by = f"{node.name()} {self._paths.of_node(node)}"

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Follow `storage.resize_`, which bypasses the dispatcher (discarded outputs)."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: Any, nbytes: int) -> Any:
            result = original(storage, nbytes)
            self._resized(storage, nbytes)
            return result

        with mock.patch.object(torch.UntypedStorage, "resize_", resize_):
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = self._results.of(func, args, kwargs or {})
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, func)
        if not self._kernel and func.namespace != "prim":  # prim: questions such as "which device?"
            self._tick(func)
        return result

    def end(self) -> None:
        """Record what the step left behind, as a last event."""
        self.phase = "end of step"
        self._tick("end")

    def _see(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive and key not in self._excluded:
            record = self._new_record(tensor, self._kernel or str(func))
            self._add(key, record)
            weakref.finalize(storage, self._free, key)

    def _add(self, key: int, record: StorageRecord) -> None:
        self._alive[key] = record
        self.live_bytes += record.nbytes
        if self._trace:
            self.result.records.append(record)

    def _free(self, key: int) -> None:
        record = self._alive.pop(key)
        record.died = self._clock + 1
        self.live_bytes -= record.nbytes

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._round_to_bytes) * self._round_to_bytes

    def _where(self) -> tuple[str, str, str]:
        """Module, autograd node and Megatron line that run now."""
        if not self._trace:
            return "", "", ""
        node = torch._C._current_autograd_node()
        module = self._paths.running
        if node is not None and not module:
            module = self._paths.of_node(node)
        return module, node.name() if node is not None else "", _megatron_line()

    def _new_record(self, tensor: torch.Tensor, op: str) -> StorageRecord:
        module, node, site = self._where()
        return StorageRecord(
            nbytes=self._rounded(tensor.untyped_storage().nbytes()),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            op=op,
            module=module,
            node=node,
            site=site,
            phase=self.phase,
            born=self._clock + 1,
        )

    def _resized(self, storage: Any, nbytes: int) -> None:
        """A resize ends one record and starts another with the same shape."""
        old = self._alive.get(storage._cdata)
        if old is None:
            return
        self._free(storage._cdata)
        module, node, site = self._where()
        record = StorageRecord(
            nbytes=self._rounded(nbytes),
            shape=old.shape,
            dtype=old.dtype,
            op="storage.resize_",
            module=module,
            node=node,
            site=site,
            phase=self.phase,
            born=self._clock + 1,
        )
        self._add(storage._cdata, record)
        self._tick("storage.resize_")

    def _tick(self, op: Any) -> None:
        """One operation (or kernel) is over: what it returned is live now."""
        self._clock += 1
        raises_peak = self.live_bytes > self.peak_bytes
        if raises_peak:
            self.peak_bytes = self.result.peak_bytes = self.live_bytes
            self.result.peak_clock = self._clock
        if self._trace:
            module, node, site = self._where()
            self.result.events.append(
                Event(
                    clock=self._clock,
                    live_bytes=self.live_bytes,
                    op=str(op),
                    module=module,
                    node=node,
                    site=site,
                    phase=self.phase,
                    raises_peak=raises_peak,
                )
            )
