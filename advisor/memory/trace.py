"""Requests to the allocator during one rank's step, in order: the events that a chunk's fold adds
up. Left out: what a chunk holds itself (a gradient that waits, a mask,
the copies of autocast, graphs), and what a checkpoint does with its input."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.units import MIB
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import (
    LAYER_INPUT,
    embedding_operators,
    head_groups,
    transformer_layer,
)
from advisor.memory.events import SPENT, TAKE, WORK, Event
from advisor.memory.liveness import events_without_grad, footprint, handed
from advisor.memory.working_set import WorkingSet
from advisor.plan.recompute_plan import (
    Checkpoint,
    RecomputePlan,
    ReplayRun,
    Segment,
    kept_tensors,
    offloaded_names,
)

NEGLIGIBLE = MIB
"""Requests up to here come of the small pool, whose segments of 2 MiB leave little."""

Request = tuple[int, int]
"""The number of a name, and the bytes requested for it; 0 gives them back, and negative bytes are
requested and given back at once. A name that is live is not requested again, and one that is not is
not given back."""
Name = tuple[int, int, str]
"""0, or 1 of what a unit hands to the next; the layer of the unit; the storage's own name."""
_Named = tuple[Name, int]
_INPUT, _GRADIENT, _GATHERED, _LEFT, _STAYS, _OWN, _STRIDE = 0, 1, 2, 3, 4, 5, 1 << 20
"""Numbers of names: of a unit's input, its gradient, of what is next to the unit, of its own ones;
those of the next unit lie a stride after."""


class UnitTrace(Struct, frozen=True):
    """Requests of one unit of a chunk, in either pass: a layer, a checkpoint of `layers`, an end of
    the model; numbers of the names as if the unit were the first of its chunk."""

    forward: tuple[Request, ...]
    backward: tuple[Request, ...]
    layers: int = 1


class ChunkTrace(Struct, frozen=True):
    """Requests of one microbatch through one chunk: those of each unit, with what its place adds to
    the numbers of names. stays: bytes of the parameters among them that static memory has
    throughout."""

    forward: tuple[tuple[int, tuple[Request, ...]], ...]
    backward: tuple[tuple[int, tuple[Request, ...]], ...]
    stays: int = 0


@lru_cache(maxsize=1024)
def chunk_trace(
    shape: RankShape,
    plan: RecomputePlan,
    first: bool,
    last: bool,
    working_set: WorkingSet | None = None,
) -> ChunkTrace:
    """Requests of a chunk under `plan`, as chunk.chunk_footprint adds them up; `first` holds the
    embedding, `last` norm, head and loss. Left out: requests up to NEGLIGIBLE bytes, attention
    masks. working_set: what is gathered and reduced next to each unit, as one request a pass, what
    stays of it between the passes, and what it leaves (of a checkpoint around several layers, those
    of its replay)."""
    units = [
        ("layer", _checkpoint(shape, segment) if segment.whole else _layer(shape, segment))
        for segment in plan.segments
        for _ in range(segment.copies)
    ]
    if first:
        units.insert(0, ("embedding", _plain((embedding_operators(shape),), ())))
    if last:
        units += [(name, _plain((operators,), ())) for name, operators in head_groups(shape)]
    if working_set is not None:
        units = _with_working_set(units, working_set)
    hidden, end = shape.hidden(LAYER_INPUT).num_bytes, len(units) * _STRIDE
    received = () if first else ((_INPUT, hidden),)
    gradient = () if last else ((_GRADIENT, hidden),)
    return ChunkTrace(
        (
            (0, received),
            *((index * _STRIDE, unit.forward) for index, (_, unit) in enumerate(units)),
            (end, ((_INPUT, 0),)),
        ),
        (
            (end, gradient),
            *((i * _STRIDE, units[i][1].backward) for i in range(len(units) - 1, -1, -1)),
            (end, ((_GRADIENT, 0),)),
            (0, ((_GRADIENT, 0),)),
        ),
        sum(size for _, unit in units for number, size in unit.forward if number == _STAYS),
    )


def _with_working_set(
    units: list[tuple[str, UnitTrace]], found: WorkingSet
) -> list[tuple[str, UnitTrace]]:
    """`units` with what is alive next to each."""
    named = {"embedding": found.embedding, "head": found.head, "loss": found.loss}
    layers = [index for index, (name, _) in enumerate(units) if name not in named]
    ends = {layers[-1]: found.last_layer, layers[0]: found.first_layer}
    raised = []
    for index, (name, unit) in enumerate(units):
        beside = named.get(name) or ends.get(index, found.layer)
        gone, left = (_GATHERED, 0), (_LEFT, beside.left * unit.layers)
        gathered = beside.backward
        if unit.layers > 1:
            gathered += unit.layers * beside.again - beside.ahead
        stays = (_STAYS, beside.stays * unit.layers)
        forward = ((_GATHERED, beside.forward), stays, *unit.forward, gone)
        backward = ((_GATHERED, gathered), *unit.backward, gone, (_STAYS, 0), left)
        raised.append((name, UnitTrace(forward, backward)))
    return raised


def _numbered(forward: Iterable[_Named], backward: Iterable[_Named]) -> UnitTrace:
    numbers = {
        (0, 0, "input"): _INPUT,
        (0, 0, "gradient"): _GRADIENT,
        (1, 0, "input"): _STRIDE + _INPUT,
        (1, 0, "gradient"): _STRIDE + _GRADIENT,
    }

    def requests(events: Iterable[_Named]) -> tuple[Request, ...]:
        return tuple((numbers.setdefault(name, _OWN + len(numbers)), size) for name, size in events)

    return UnitTrace(requests(forward), requests(backward))


def _layer(shape: RankShape, segment: Segment) -> UnitTrace:
    (kind,) = segment.layers
    return _plain((transformer_layer(shape, kind),), segment.runs, segment.offloaded)


@lru_cache(maxsize=4096)
def _plain(
    layers: tuple[tuple[Operator, ...], ...],
    runs: tuple[ReplayRun, ...],
    offloaded: frozenset[Module] = frozenset(),
) -> UnitTrace:
    """Layers that run forward one after another, and back; what `offloaded` modules save waits on
    the host between the passes."""
    return _numbered(*_passes(layers, runs, offloaded))


def _passes(
    layers: tuple[tuple[Operator, ...], ...],
    runs: tuple[ReplayRun, ...],
    offloaded: frozenset[Module] = frozenset(),
) -> tuple[list[_Named], list[_Named]]:
    forward: list[_Named] = []
    backward: list[_Named] = []
    for index, operators in enumerate(layers):
        named, found = _names(operators, index, len(layers)), footprint(operators, runs)
        forward += _requests(found.there, named)
        away = offloaded_names(operators, runs, offloaded)
        forward += ((named(name), 0) for name in kept_tensors(operators, runs) if name in away)
        backward[:0] = _requests(found.back, named)
    return forward, backward


@lru_cache(maxsize=4096)
def _checkpoint(shape: RankShape, segment: Segment) -> UnitTrace:
    """One checkpoint around all layers of `segment`: its forward keeps the input alone, and its
    backward begins with the forward again; a reentrant one holds output and gradient to the end."""
    layers = tuple(transformer_layer(shape, kind) for kind in segment.layers)
    enters: _Named = ((0, 0, "input"), 0)
    leaves: list[_Named] = [((1, 0, "input"), 0), ((1, 0, "gradient"), 0)]
    forward: list[_Named] = []
    for index, operators in enumerate(layers):
        named = _names(operators, index, len(layers))
        forward += _requests(events_without_grad(operators), named)
    again, backward = _passes(layers, ())
    held = leaves if segment.checkpoint is Checkpoint.REENTRANT else leaves[:1]
    backward = [event for event in backward if event not in held]
    if segment.input.offloaded:
        forward.append(enters)
    else:
        forward = [event for event in forward if event != enters]
    found = _numbered(forward, (*again, *backward, *leaves, enters))
    return replace(found, layers=segment.num_layers)


def _names(operators: Sequence[Operator], index: int, layers: int) -> Callable[[str], Name]:
    enters, leaves = handed(operators)
    after = (1, 0) if index == layers - 1 else (0, index + 1)
    ends = {
        enters: (0, index, "input"),
        f"gradient of {enters}": (0, index, "gradient"),
        leaves: (*after, "input"),
        f"gradient of {leaves}": (*after, "gradient"),
    }
    return lambda name: ends.get(name) or (0, index, name)


def _requests(events: Iterable[Event], named: Callable[[str], Name]) -> Iterator[_Named]:
    """What the allocator is asked for: an operator's own bytes are requested and given back."""
    for kind, name, num_bytes in events:
        if num_bytes > NEGLIGIBLE and kind != SPENT:
            yield named(name), num_bytes if kind == TAKE else -num_bytes if kind == WORK else 0
