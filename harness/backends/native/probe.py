"""Counts what the layers of a stage keep for the backward, and the FLOPs of their replays. Bytes
are those of distinct storages, parameters excluded, as autograd's hooks see them when the forward
has run: dropped outputs count nothing, what went to the host is not seen. FLOPs are torch's
FlopCounterMode's, with attention as the causal half that a flash kernel computes."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from harness.backends.native.modules.kernels import ATTENTION_BACKWARD, ATTENTION_FORWARD
from harness.backends.native.regions import Watchers, replays_marked
from harness.measure.memory import storage_bytes


class Counted(Struct, frozen=True):
    """Of all layers of a stage and one microbatch: bytes kept, FLOPs replayed."""

    saved_bytes: int
    replayed_flops: int


class _Holder:
    """One saved tensor; alive as long as the graph that needs it, to which it must not refer."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()


class SavedMeter:
    """Inside `scope`, notes what autograd and policies keep; `num_bytes` is read after it."""

    def __init__(self) -> None:
        self._seen: list[weakref.ref[_Holder]] = []
        self._policy_outputs: list[_Holder] = []
        self.num_bytes = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Count what is kept of the code inside."""
        Watchers.kept = lambda tensor: self._policy_outputs.append(self._note(tensor))
        try:
            with saved_tensors_hooks(self._note, lambda holder: holder.tensor):
                yield
        finally:
            Watchers.kept = None
        alive = (holder() for holder in self._seen)
        self.num_bytes = storage_bytes(one.tensor for one in alive if one is not None)
        self._policy_outputs.clear()

    def _note(self, tensor: Tensor) -> _Holder:
        holder = _Holder(tensor)
        owner = tensor if tensor._base is None else tensor._base
        if not isinstance(owner, nn.Parameter):
            self._seen.append(weakref.ref(holder))
        return holder


class ReplayMeter:
    """Adds up what a FlopCounterMode counts while a replay runs."""

    def __init__(self) -> None:
        self.flops = 0
        self._counter = FlopCounterMode(display=False, custom_mapping=_ATTENTION_FLOPS)
        self._before = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Count the replays of the code inside, which runs a whole forward and backward."""
        with replays_marked(self._switch), self._counter:
            yield

    def _switch(self, begins: bool) -> None:
        total = self._counter.get_total_flops()
        if begins:
            self._before = total
        else:
            self.flops += total - self._before


def _causal_half(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """q k^T and p v over half of the square: 2 x b x heads x s x s/2 x channels of each."""
    b, heads, s, channels = query
    return int(b) * int(heads) * int(s) * int(key[2]) * (int(channels) + int(value[3]))


_ATTENTION_FLOPS: Final[dict[Any, Callable[..., int]]] = {
    **dict.fromkeys(ATTENTION_FORWARD, _causal_half),
    # only replays are counted, and a replay is a forward; torch's own formula (2.11) refuses keys
    # and values with fewer heads than the queries
    **dict.fromkeys(ATTENTION_BACKWARD, lambda *_, **__: 0),
}


def count(layers: nn.Module, run: Callable[[], None]) -> Counted:
    """What `layers` (with a `layer_scope`) keeps and replays in `run`, a forward and backward.
    Random states are as before afterwards; gradients are the caller's to drop."""
    saved, replayed = SavedMeter(), ReplayMeter()
    usual = layers.layer_scope
    layers.layer_scope = saved.scope  # type: ignore[assignment]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices), replayed.scope():
            run()
    finally:
        layers.layer_scope = usual
    return Counted(saved.num_bytes, replayed.flops)
