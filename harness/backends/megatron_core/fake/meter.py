"""Counts the bytes of live fake storages, operation by operation."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from harness.measure.memory import StorageMeter


class LiveBytes(StorageMeter):  # type: ignore[no-untyped-call]
    """Live and peak bytes of fake storages while active, except for those that are excluded. What a
    GPU runs as one kernel counts only as far as it outlives the kernel."""

    def __init__(self) -> None:
        super().__init__("meta")
        self._results = _Results()
        self._excluded: set[int] = set()
        self._in_kernel = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: torch need not guard every operation against it."""
        return False

    def exclude(self, tensors: Iterable[torch.Tensor]) -> None:
        """Never count these storages; the caller keeps them alive."""
        self._excluded.update(tensor.untyped_storage()._cdata for tensor in tensors)

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Operations inside are one kernel: only storages that outlive it count."""
        if self._in_kernel:
            yield
            return
        self._in_kernel = True
        try:
            yield
        finally:
            self._in_kernel = False
            self._tick()

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._results.result_of(func, args, kwargs)

    def _see_storage(self, storage: Any) -> None:
        if storage._cdata not in self._excluded and storage._cdata not in _BORROWED:
            super()._see_storage(storage)

    def _tick(self) -> None:
        if not self._in_kernel:
            super()._tick()


_BORROWED: set[int] = set()
"""Storages that look at the bytes of another one, which counts."""


def borrow(borrower: torch.Tensor, lender: torch.Tensor) -> None:
    """`borrower` looks at the storage of `lender` (Megatron's share_storage, from 0.17 on)."""
    storage, lent = borrower.untyped_storage(), lender.untyped_storage()
    _BORROWED.add(storage._cdata)
    storage.resize_(lent.nbytes())
    weakref.finalize(storage, _give_back, storage._cdata, lent)


def _give_back(borrower: int, lent: Any) -> None:
    """`lent` is let go of with the arguments of this call."""
    _BORROWED.discard(borrower)


class _Results:
    """Runs an operation, or makes its result as it was for like operands before. Only of operations
    that compute element by element, or concatenate, into one new tensor: their result is told by
    shape, strides and dtype of the operands. torch infers it in Python, a quarter of a millisecond
    each, and a schedule repeats the same ones for every microbatch."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any, torch.dtype]] = {}
        self._pure: dict[Any, bool] = {}

    def result_of(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        pure = self._pure.get(func)
        if pure is None:
            pure = self._pure[func] = _makes_one_tensor(func)
        if not pure:
            return func(*args, **kwargs)
        key = (
            func,
            *map(_key_of, args),
            *((name, _key_of(value)) for name, value in kwargs.items()),
        )
        if key in self._known:
            shape, strides, dtype = self._known[key]
            return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        result = func(*args, **kwargs)
        if result.is_meta:
            self._known[key] = result.shape, result.stride(), result.dtype
        return result


def _makes_one_tensor(func: Any) -> bool:
    schema = func._schema
    aliases = any(one.alias_info is not None for one in (*schema.arguments, *schema.returns))
    known = torch.Tag.pointwise in func.tags or func is torch.ops.aten.cat.default
    return known and not aliases and [str(one.type) for one in schema.returns] == ["Tensor"]


def _key_of(value: Any) -> Any:
    """What of an operand the result depends on: of a number its type as well, 1 is not 1.0."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(map(_key_of, value))
    return type(value), value
