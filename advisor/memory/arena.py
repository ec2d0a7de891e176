"""Live storages of a walk over operators, and the gradients among them."""

from collections.abc import Container, Iterable

from msgspec import Struct, field

from advisor.base.dtypes import DType
from advisor.layers.operators import Operator, Tensor
from advisor.memory.events import GIVE, SIMULATED_GIVE, SPENT, TAKE, WORK, Event


class Arena(Struct):
    """Live storages by name, and the events that led to them. `held`: storages that are not to be
    dropped yet."""

    sizes: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    @property
    def live(self) -> int:
        """Bytes of all that is alive."""
        return sum(self.sizes.values())

    def add(self, name: str, num_bytes: int) -> None:
        """Take a storage of `num_bytes`, or another one in place of a smaller one of that name."""
        known = self.sizes.get(name, 0)
        if num_bytes > known:
            if known:
                self.events.append((GIVE, name, known))
            self.events.append((TAKE, name, num_bytes))
            self.sizes[name] = num_bytes

    def store(self, tensor: Tensor) -> None:
        """Take a tensor's storage: of a view, its base's, in the base's shape and type."""
        self.add(tensor.storage.name, tensor.storage.num_bytes)

    def drop(self, name: str) -> None:
        """Give a storage back; unknown names are no error."""
        if name in self.held:
            self.events.append((SIMULATED_GIVE, name, self.sizes.get(name, 0)))
        elif size := self.sizes.pop(name, 0):
            self.events.append((GIVE, name, size))

    def keep_only(self, names: Container[str]) -> None:
        """Give back what goes with the end of a pass."""
        for name in [name for name in self.sizes if name not in names]:
            self.drop(name)

    def mark(self, point: str, extra: int = 0) -> None:
        """An operator runs, with `extra` bytes of its own."""
        self.events.append((WORK, point, extra))

    def spend(self, name: str, num_bytes: int) -> None:
        """A gradient that came from outside has been given back."""
        self.events.append((SPENT, name, num_bytes))


class Gradients:
    """Gradients of activations: one storage may serve several tensors (additions hand it on).

    Each has shape and type of its tensor. Weight gradients are the operator's own figure, and live
    for its backward alone: a buffer of all takes them in (memory.static). Source: torch 2.13
    csrc/autograd/engine.cpp; held against Megatron Core's backward in tests/oracles.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._storage_of: dict[str, str] = {}
        self._users: dict[str, int] = {}
        self._incoming: dict[str, int] = {}
        self._kept: list[str] = []

    def receive(self, tensor: Tensor) -> None:
        """A gradient that arrives from the next layer or stage."""
        storage = f"gradient of {tensor.name}"
        self._incoming[storage] = tensor.num_bytes
        self._hold(tensor.name, storage, tensor.num_bytes)

    def _hold(self, name: str, storage: str, num_bytes: int) -> None:
        self._arena.add(storage, num_bytes)
        self._share(name, storage)

    def _share(self, name: str, storage: str) -> None:
        self._storage_of[name] = storage
        self._users[storage] = self._users.get(storage, 0) + 1

    def _release(self, name: str) -> None:
        storage = self._storage_of.pop(name, None)
        if storage is not None:
            self._leave(storage)

    def _leave(self, storage: str) -> None:
        self._users[storage] -= 1
        if not self._users[storage]:
            self._arena.drop(storage)
            if storage in self._incoming:
                self._arena.spend(storage, self._incoming.pop(storage))

    def keep(self, tensors: tuple[Tensor, ...]) -> None:
        """Hold the gradients of `tensors` until let_go: a checkpoint's backward has them as
        arguments while the backward of its replay runs inside."""
        for tensor in tensors:
            storage = self._storage_of[tensor.name]
            self._users[storage] += 1
            self._kept.append(storage)

    def let_go(self) -> None:
        """Release what `keep` holds."""
        while self._kept:
            self._leave(self._kept.pop())

    def step(self, operator: Operator, spent: Iterable[str] = ()) -> None:
        """Backward of one operator: input gradients appear, then output gradients go, and the
        `spent` storages that it kept, before gradients are added up (torch's engine.cpp)."""
        if operator.no_grad:
            return
        passed = [t for t in operator.inputs if t.name in operator.gradient_passed_to]
        for tensor in passed:
            self._share(tensor.name, self._storage_of[operator.outputs[0].name])
        if operator.gathers_gradient:
            self._release_all(operator.outputs)
        without = operator.gradient_free_inputs | operator.gradient_passed_to
        fresh = [t for t in operator.inputs if t.name not in without]
        for tensor in fresh:
            fresh_bytes = 0 if operator.gradient_in_saved else tensor.num_bytes
            self._arena.add(f"new gradient of {tensor.name}", fresh_bytes)
        narrow = operator.narrow_weight_gradient_bytes
        of_weights = f"weight gradients of {operator.name}"
        self._arena.add(of_weights, narrow or operator.weight_gradient_bytes)
        self._arena.mark(f"backward of {operator.name}", operator.backward_workspace)
        self._release_all(operator.outputs)
        for name in spent:
            self._arena.drop(name)
        for tensor in fresh:
            self._accumulate(tensor)
        if narrow:
            self._cast(of_weights, narrow, operator.weight_gradient_bytes)

    def _cast(self, name: str, narrow: int, stays: int) -> None:
        """fp32 gradients are made of 16-bit ones, and stay or are added to others."""
        self._arena.mark(f"cast of {name}", narrow * DType.FP32.itemsize // DType.BF16.itemsize)
        self._arena.drop(name)
        self._arena.add(name, stays)

    def _release_all(self, tensors: tuple[Tensor, ...]) -> None:
        for tensor in tensors:
            self._release(tensor.name)

    def _accumulate(self, tensor: Tensor) -> None:
        """Add a new gradient to the one that the residual brought, into a third storage."""
        arena, new = self._arena, f"new gradient of {tensor.name}"
        if self._storage_of.get(tensor.name) is not None:
            arena.mark(f"gradient sum of {tensor.name}", tensor.num_bytes)
            self._release(tensor.name)
        arena.drop(new)
        self._hold(tensor.name, f"gradient of {tensor.name}", tensor.num_bytes)
