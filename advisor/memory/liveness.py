"""Bytes alive while one layer runs forward and backward: a walk over its operators.

The walk frees a saved storage after the backward of the first operator that keeps it, holds the
residual's gradient across a branch, and re-creates what a replay re-creates, as torch's autograd
and Megatron's checkpoints do (checked against Megatron Core in tests/oracles).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from advisor.layers.operators import Operator, Tensor
from advisor.recompute import ReplayRun, assign_runs, kept_tensors, run_members


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFootprint:
    """Bytes of one group of operators, one microbatch, above what was alive before its forward.

    kept: alive from forward to backward. forward_peak and backward_peak: the most alive in either,
    kept tensors and gradients included; `forward_point` and `backward_point` name the operator.
    held_backward_peak: the same where the caller keeps the incoming gradient to the end.
    output_bytes: the tensor handed to what follows, which keeps it itself.
    """

    kept: int
    forward_peak: int
    backward_peak: int
    held_backward_peak: int
    forward_point: str
    backward_point: str
    held_backward_point: str
    output_bytes: int


@dataclass(slots=True)
class _Arena:
    """Live storages by name, and the most that were alive at once.

    `spent` counts bytes dropped here that the caller may keep; held_peak is the peak if it does.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    live: int = 0
    spent: int = 0
    peak: int = 0
    held_peak: int = 0
    point: str = ""
    held_point: str = ""

    def add(self, name: str, num_bytes: int) -> None:
        """Allocate a storage, or extend the one of that name."""
        known = self.sizes.get(name, 0)
        if num_bytes > known:
            self.sizes[name] = num_bytes
            self.live += num_bytes - known

    def store(self, tensor: Tensor) -> None:
        """Allocate a tensor's storage."""
        self.add(tensor.storage.name, tensor.storage.num_bytes)

    def drop(self, name: str) -> None:
        """Free a storage; unknown names are no error."""
        self.live -= self.sizes.pop(name, 0)

    def mark(self, point: str, extra: int = 0) -> None:
        """Note the live bytes plus `extra` as a candidate for the peak."""
        alive = self.live + extra
        if alive > self.peak:
            self.peak, self.point = alive, point
        if alive + self.spent > self.held_peak:
            self.held_peak, self.held_point = alive + self.spent, point


@lru_cache(maxsize=8192)
def footprint(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> LayerFootprint:
    """Footprint of `operators` run once forward and once backward under `runs`."""
    kept = kept_tensors(operators, runs)
    small = sum(run.extra_kept_bytes for run in runs)
    forward = walk_forward(operators, kept)
    backward = _walk_backward(operators, runs, kept)
    return LayerFootprint(
        kept=sum(tensor.num_bytes for tensor in kept.values()) + small,
        forward_peak=forward.peak + small,
        backward_peak=backward.peak + small,
        held_backward_peak=backward.held_peak + small,
        forward_point=forward.point,
        backward_point=backward.point,
        held_backward_point=backward.held_point,
        output_bytes=sum(tensor.num_bytes for tensor in operators[-1].outputs),
    )


def walk_forward(operators: Sequence[Operator], kept: dict[str, Tensor]) -> _Arena:
    """Live bytes through a forward that leaves `kept` behind; the input is alive throughout."""
    arena = _Arena()
    last_reader = _last_readers(operators)
    for tensor in operators[0].inputs:
        arena.store(tensor)
    for index, operator in enumerate(operators):
        for tensor in (*operator.outputs, *operator.saved):
            if tensor.storage.name in kept or tensor in operator.outputs:
                arena.store(tensor)
        arena.mark(operator.name, operator.forward_workspace)
        for tensor in (*operator.inputs, *operator.forward_holds):
            name = tensor.storage.name
            if last_reader[name] <= index and name not in kept:
                arena.drop(name)
    return arena


def _last_readers(operators: Sequence[Operator]) -> dict[str, int]:
    """Index of the last operator that reads or holds each storage in the forward."""
    return {
        tensor.storage.name: index
        for index, operator in enumerate(operators)
        for tensor in (*operator.inputs, *operator.forward_holds)
    }


def _walk_backward(
    operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...], kept: dict[str, Tensor]
) -> _Arena:
    arena = _Arena()
    for tensor in kept.values():
        arena.store(tensor)
    gradients = _Gradients(arena)
    for tensor in operators[-1].outputs:
        gradients.receive(tensor)
    assigned = assign_runs(operators, runs)
    first_keeper = _first_keepers(operators)
    replayed: set[ReplayRun] = set()
    for index in range(len(operators) - 1, -1, -1):
        operator, run = operators[index], assigned[index]
        for ready in _due_replays(runs, operator, run, replayed):
            members = run_members(operators, ready)
            _replay(arena, members, ready)
            replayed.add(ready)
            if not ready.discards_output:
                gradients.keep(members[-1].outputs)
        gradients.step(operator)
        for tensor in operator.saved:
            if first_keeper[tensor.storage.name] >= index:
                arena.drop(tensor.storage.name)
        if run is not None and operator is run_members(operators, run)[0]:
            _end_run(arena, run, operators, kept, index)
            gradients.let_go()
    return arena


def _first_keepers(operators: tuple[Operator, ...]) -> dict[str, int]:
    """Index of the earliest operator that needs a storage in its backward."""
    first: dict[str, int] = {}
    for index, operator in enumerate(operators):
        for tensor in operator.saved:
            first.setdefault(tensor.storage.name, index)
    return first


def _due_replays(
    runs: tuple[ReplayRun, ...],
    operator: Operator,
    run: ReplayRun | None,
    replayed: set[ReplayRun],
) -> list[ReplayRun]:
    """Runs to replay before the backward of `operator`.

    A plain checkpoint replays when its last operator is reached, an output-discarding one before
    the module that it names.
    """
    hooked = [r for r in runs if r.discards_output and r.replayed_before is operator.module]
    plain = [run] if run is not None and not run.discards_output else []
    return [r for r in hooked + plain if r not in replayed]


def _replay(arena: _Arena, members: tuple[Operator, ...], run: ReplayRun) -> None:
    """Run the forward of `members` again; what they save and their last output stay."""
    last = members[-1]
    for operator in members:
        for tensor in (*operator.outputs, *operator.saved):
            arena.store(tensor)
        arena.mark(f"replay of {operator.name}", operator.forward_workspace)
    saved = {tensor.storage.name for operator in members for tensor in operator.saved}
    for operator in members[:-1]:
        for tensor in operator.outputs:
            if tensor.base is None and tensor.name not in saved:
                arena.drop(tensor.name)
    if run.discards_output:
        for tensor in last.outputs:
            arena.add(_second_copy(tensor), tensor.num_bytes)


def _second_copy(tensor: Tensor) -> str:
    """The replay's own output, beside the storage that it fills again."""
    return f"replayed {tensor.name}"


def _end_run(
    arena: _Arena,
    run: ReplayRun,
    operators: tuple[Operator, ...],
    kept: dict[str, Tensor],
    first: int,
) -> None:
    """Free the replayed output and the kept inputs that no earlier operator needs."""
    members = run_members(operators, run)
    earlier = {t.storage.name for operator in operators[:first] for t in operator.saved}
    for tensor in members[-1].outputs:
        arena.drop(_second_copy(tensor))
        if tensor.name not in earlier:
            arena.drop(tensor.name)
    for operator in members:
        for tensor in operator.inputs:
            if tensor.storage.name in kept and tensor.storage.name not in earlier:
                arena.drop(tensor.storage.name)


class _Gradients:
    """Gradients of activations: one storage may serve several tensors (additions hand it on)."""

    def __init__(self, arena: _Arena) -> None:
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
            self._arena.spent += self._incoming.pop(storage, 0)

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

    def step(self, operator: Operator) -> None:
        """Backward of one operator: input gradients appear, then output gradients go."""
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
        self._arena.mark(f"backward of {operator.name}", operator.backward_workspace)
        self._release_all(operator.outputs)
        for tensor in fresh:
            self._accumulate(tensor)

    def _release_all(self, tensors: tuple[Tensor, ...]) -> None:
        for tensor in tensors:
            self._release(tensor.name)

    def _accumulate(self, tensor: Tensor) -> None:
        """Add a new gradient to the one that the residual brought, into a third storage."""
        arena, new = self._arena, f"new gradient of {tensor.name}"
        known = self._storage_of.get(tensor.name)
        if known is not None:
            arena.mark(f"gradient sum of {tensor.name}", tensor.num_bytes)
            self._release(tensor.name)
        arena.drop(new)
        self._hold(tensor.name, f"gradient of {tensor.name}", tensor.num_bytes)
