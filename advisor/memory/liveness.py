"""Bytes alive while one layer runs forward and backward: a walk over its operators.

The walk frees a saved storage after the backward of the first operator that keeps it, holds the
residual's gradient across a branch, and re-creates what a replay re-creates, as torch's autograd
and Megatron's checkpoints do (checked against Megatron Core in tests/oracles).
"""

from collections.abc import Container, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Operator, Tensor
from advisor.memory.arena import Arena, Gradients
from advisor.memory.events import Event, Peak, fold
from advisor.plan.recompute_plan import (
    Checkpoint,
    ReplayRun,
    assign_runs,
    computed_again,
    kept_tensors,
    run_members,
)


class LayerFootprint(Struct, frozen=True, kw_only=True):
    """Bytes of one group of operators, one microbatch, above what was alive before its forward.

    kept: alive from forward to backward. forward and backward: the most alive in either pass, kept
    tensors and gradients included. held_backward: the same where the caller keeps the incoming
    gradient to the end. there, back: the events of either pass, from taking what comes from outside
    it to giving back all but what stays.
    """

    kept: int
    forward: Peak
    backward: Peak
    held_backward: Peak
    there: tuple[Event, ...]
    back: tuple[Event, ...]


@lru_cache(maxsize=8192)
def footprint(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> LayerFootprint:
    """Footprint of `operators` run once forward and once backward under `runs`, bytes of one rank
    and one microbatch.

    Kept are the tensors that operators save for the backward, in their own shapes and types (a
    layer's input is [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]); of a
    replayed run only what plan.recompute_plan.kept_tensors leaves. Weights and their gradient
    buffer are left out, and so is what the caching allocator rounds up."""
    kept = kept_tensors(operators, runs)
    enters, leaves = handed(operators)
    there, back = (_arena_with(sum(run.extra_kept_bytes for run in runs)) for _ in range(2))
    walk_forward(operators, kept, there).keep_only({*kept, _ARGUMENTS, leaves})
    walk_backward(operators, runs, kept, back).keep_only({f"gradient of {enters}"})
    return LayerFootprint(
        kept=layer_kept_bytes(operators, runs),
        forward=fold(there.events).peak,
        backward=fold(back.events).peak,
        held_backward=fold(back.events, holds_spent=True).peak,
        there=tuple(there.events),
        back=tuple(back.events),
    )


_ARGUMENTS: Final = "arguments of checkpoints"


def _arena_with(small: int) -> Arena:
    arena = Arena()
    arena.add(_ARGUMENTS, small)
    return arena


def handed(operators: Sequence[Operator]) -> tuple[str, str]:
    """Names of the storage that comes from the unit before, and of that which the next one gets."""
    first, last = operators[0].inputs, operators[-1].outputs
    return (first[0].storage.name if first else ""), (last[0].storage.name if last else "")


@lru_cache(maxsize=8192)
def events_without_grad(operators: tuple[Operator, ...]) -> tuple[Event, ...]:
    """The events of a forward that keeps nothing."""
    alone = [
        one
        if one.workspace_without_grad is None
        else replace(one, forward_workspace=one.workspace_without_grad)
        for one in operators
    ]
    arena = walk_forward(alone, {})
    arena.keep_only({handed(operators)[1]})
    return tuple(arena.events)


@lru_cache(maxsize=8192)
def layer_kept_bytes(operators: tuple[Operator, ...], runs: tuple[ReplayRun, ...]) -> int:
    """Bytes of one microbatch that stay from the forward of `operators` to their backward."""
    small = sum(run.extra_kept_bytes for run in runs)
    return sum(tensor.num_bytes for tensor in kept_tensors(operators, runs).values()) + small


def walk_forward(
    operators: Sequence[Operator], kept: Container[str], into: Arena | None = None
) -> Arena:
    """Live bytes through a forward that leaves `kept`, storages by name; the input is alive until
    its last reader. into: the arena to walk in, a new one where none is given."""
    arena = into or Arena()
    for tensor in operators[0].inputs:
        arena.store(tensor)
    _run_forward(arena, operators, kept)
    return arena


def _run_forward(
    arena: Arena, operators: Sequence[Operator], stays: Container[str], which: str = ""
) -> None:
    """What each operator writes comes, and of what it saves that which `stays`; an operator's
    workspace is alive while it runs; other tensors go after the last operator that reads them.
    which: put before operators' names."""
    last_reader = {
        tensor.storage.name: index
        for index, operator in enumerate(operators)
        for tensor in (*operator.inputs, *operator.forward_holds)
    }
    for index, operator in enumerate(operators):
        for tensor in (*operator.outputs, *operator.saved):
            if tensor.storage.name in stays or tensor in operator.outputs:
                arena.store(tensor)
        arena.mark(which + operator.name, operator.forward_workspace)
        for tensor in (*operator.inputs, *operator.forward_holds):
            name = tensor.storage.name
            if last_reader[name] <= index and name not in stays:
                arena.drop(name)


def walk_backward(
    operators: tuple[Operator, ...],
    runs: tuple[ReplayRun, ...],
    kept: dict[str, Tensor],
    into: Arena | None = None,
) -> Arena:
    """Live bytes through the backward of operators that kept `kept`, replays included. into: as in
    walk_forward."""
    arena = into or Arena()
    for tensor in kept.values():
        arena.store(tensor)
    gradients = Gradients(arena)
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
            if _is_nested(ready):
                gradients.keep(members[-1].outputs)
        if run is not None and run.discards_output:
            members = run_members(operators, run)
            if operator is members[-1]:
                gradients.keep(operator.outputs)
        names = (tensor.storage.name for tensor in operator.saved)
        gradients.step(operator, [name for name in names if first_keeper[name] >= index])
        if run is not None and operator is run_members(operators, run)[0]:
            _end_run(arena, run, operators, kept, index)
            gradients.let_go()
    return arena


def gradients_before_replay(operators: tuple[Operator, ...]) -> int:
    """Bytes of gradients when the first tensor that `operators` saved is asked for: those after
    it have gone back. Each gradient has shape and type of its activation. Source: torch 2.13
    utils/checkpoint.py, whose hooks replay at that moment."""
    arena = Arena()
    gradients = Gradients(arena)
    for tensor in operators[-1].outputs:
        gradients.receive(tensor)
    for operator in reversed(operators):
        if operator.saved:
            break
        gradients.step(operator)
    return arena.live


def _first_keepers(operators: tuple[Operator, ...]) -> dict[str, int]:
    """Index of the earliest operator that needs a storage in its backward."""
    first: dict[str, int] = {}
    for index, operator in enumerate(operators):
        for tensor in operator.saved:
            first.setdefault(tensor.storage.name, index)
    return first


def _due_replays(
    runs: tuple[ReplayRun, ...], operator: Operator, run: ReplayRun | None, replayed: set[ReplayRun]
) -> list[ReplayRun]:
    """Runs to replay before the backward of `operator`. A reentrant checkpoint replays when its
    last operator is reached, one by hooks when a saved tensor is asked for, an output-discarding
    one before the module that it names."""
    hooked = [r for r in runs if r.discards_output and r.replayed_before is operator.module]
    plain = []
    if run is not None and not run.discards_output and (_is_nested(run) or operator.saved):
        plain = [run]
    return [r for r in hooked + plain if r not in replayed]


def _is_nested(run: ReplayRun) -> bool:
    """Whether the backward of a replay runs inside that of its checkpoint, which holds the output
    and its gradient to the end."""
    return run.checkpoint is Checkpoint.REENTRANT and not run.discards_output


def _replay(arena: Arena, members: tuple[Operator, ...], run: ReplayRun) -> None:
    """Run the forward of `members` again; what they save stays, and a nested run's last outputs.
    Outputs that were kept are let go as the replay comes to them; after an early stop they stay."""
    outputs, reached = members[-1].outputs, computed_again(members, run)
    stays = {tensor.storage.name for operator in members for tensor in operator.saved}
    if run.checkpoint is Checkpoint.REENTRANT:
        stays |= {tensor.storage.name for tensor in outputs} | arena.sizes.keys()
    else:
        written = {tensor.storage.name for operator in reached for tensor in operator.outputs}
        stays |= arena.sizes.keys() - written
    _run_forward(arena, reached, stays, "replay of ")
    for operator in reached:
        for tensor in operator.outputs:
            if tensor.storage.name not in stays:
                arena.drop(tensor.storage.name)
    if run.discards_output:
        for tensor in outputs:
            if run.copies_output:
                arena.add(_second_copy(tensor), tensor.num_bytes)
            else:
                arena.held.add(tensor.storage.name)


def _second_copy(tensor: Tensor) -> str:
    """The replay's own output, next to the storage that it fills again."""
    return f"replayed {tensor.name}"


def _end_run(
    arena: Arena,
    run: ReplayRun,
    operators: tuple[Operator, ...],
    kept: dict[str, Tensor],
    first: int,
) -> None:
    """Free the replayed output, and what the checkpoint kept that no earlier operator needs."""
    members = run_members(operators, run)
    earlier = {t.storage.name for operator in operators[:first] for t in operator.saved}
    for tensor in members[-1].outputs:
        arena.drop(_second_copy(tensor))
        arena.held.discard(tensor.storage.name)
        if tensor.storage.name not in earlier:
            arena.drop(tensor.storage.name)
    for operator in members:
        written = operator.outputs if operator.name in run.keeps else ()
        for tensor in (*operator.inputs, *written):
            if tensor.storage.name in kept and tensor.storage.name not in earlier:
                arena.drop(tensor.storage.name)
    for tensor in run.kept or ():
        arena.drop(tensor.storage.name)
