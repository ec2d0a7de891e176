"""What the allocator reserves on one rank: two steps of it, request by request.

Requests are the events that a chunk's fold adds up. Left out: those up to NEGLIGIBLE bytes, what a
chunk holds itself (a gradient that waits, a mask, the copies of autocast, graphs), and what a
checkpoint does with its input.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice

from msgspec import Struct

from advisor.base.units import MIB
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.memory.caching_allocator import Block, CachingAllocator
from advisor.memory.chunk_units import Row, end_operators, rows_of
from advisor.memory.events import SPENT, TAKE, WORK, Event
from advisor.memory.liveness import events_without_grad, footprint, handed
from advisor.memory.static import StaticMemory, stage_weights
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.plan.recompute_plan import (
    Checkpoint,
    RecomputePlan,
    ReplayRun,
    Segment,
    kept_tensors,
    offloaded_names,
)
from advisor.plan.schedule import Pass, num_warmup_passes, passes

NEGLIGIBLE = MIB
"""Requests up to here come of the small pool, whose segments of 2 MiB leave little."""
_STEPS = 2
"""The optimizer's states are made in the first step, in what its passes have left free; the passes
of the second find that taken."""
_STEADY_PASSES = 4
"""Passes after the warm-up: two forwards with all microbatches in flight, and their backwards."""

Request = tuple[int, int]
"""The number of a name, and the bytes requested for it; 0 gives them back, and negative bytes are
requested and given back at once. A name that is live is not requested again, and one that is not is
not given back."""
Requests = tuple[tuple[int, tuple[Request, ...]], ...]
"""Those of each unit in order, with what its place adds to the numbers of names."""
_Name = tuple[int, int, str]
"""0, or 1 of what a unit hands to the next; the layer of the unit; the storage's own name."""
_Named = tuple[_Name, int]
_INPUT, _GRADIENT, _STRIDE = 0, 1, 1 << 20
"""Numbers of a unit's input and its gradient; those of the next unit lie a stride after."""


class ChunkTrace(Struct, frozen=True):
    """Requests of one microbatch through one chunk. stays: bytes of the parameters among them that
    static memory has throughout."""

    forward: Requests
    backward: Requests
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
    embedding, `last` norm, head and loss. working_set: what is gathered and reduced next to each
    unit, as one request a pass, what stays of it between the passes, and what it leaves (of a
    checkpoint around several layers, those of its replay)."""
    rows = [row for row, n in rows_of(shape, plan, first, last) for _ in range(n)]
    overheads = (working_set or WorkingSet()).of_each(rows)
    units = [_unit(shape, row, overhead) for row, overhead in zip(rows, overheads, strict=True)]
    hidden, end = shape.hidden(LAYER_INPUT).num_bytes, len(units) * _STRIDE
    return ChunkTrace(
        (
            (0, ((_INPUT, 0 if first else hidden),)),
            *((index * _STRIDE, forward) for index, (forward, _) in enumerate(units)),
            (end, ((_INPUT, 0),)),
        ),
        (
            (end, ((_GRADIENT, 0 if last else hidden),)),
            *((index * _STRIDE, units[index][1]) for index in range(len(units) - 1, -1, -1)),
            (end, ((_GRADIENT, 0),)),
            (0, ((_GRADIENT, 0),)),
        ),
        sum(_num_layers(row) * one.stays for row, one in zip(rows, overheads, strict=True)),
    )


def _num_layers(row: Row) -> int:
    return 1 if isinstance(row, str) else row.num_layers


@lru_cache(maxsize=4096)
def _unit(
    shape: RankShape, row: Row, overhead: ShardingOverhead
) -> tuple[tuple[Request, ...], tuple[Request, ...]]:
    """Forward and backward of one unit, the numbers of its names as if it were the first."""
    if isinstance(row, str):
        forward, backward = _passes((end_operators(shape, row),), ())
    elif row.whole:
        forward, backward = _checkpoint(shape, row)
    else:
        layer = transformer_layer(shape, row.layers[0])
        forward, backward = _passes((layer,), row.runs, row.offloaded)
    layers, gathered = _num_layers(row), overhead.backward
    if layers > 1:
        gathered += layers * overhead.again - overhead.ahead
    gathering, stays, left = ((0, -1, name) for name in ("gathered", "stays", "left"))
    forward = [
        (gathering, overhead.forward),
        (stays, layers * overhead.stays),
        *forward,
        (gathering, 0),
    ]
    backward = [(gathering, gathered), *backward, (gathering, 0), (stays, 0)]
    backward.append((left, layers * overhead.left))
    numbers = {
        (0, 0, "input"): _INPUT,
        (0, 0, "gradient"): _GRADIENT,
        (1, 0, "input"): _STRIDE + _INPUT,
        (1, 0, "gradient"): _STRIDE + _GRADIENT,
    }
    there, back = (
        tuple([(numbers.setdefault(name, len(numbers)), size) for name, size in requests])
        for requests in (forward, backward)
    )
    return there, back


def _passes(
    layers: Sequence[tuple[Operator, ...]],
    runs: tuple[ReplayRun, ...],
    offloaded: frozenset[Module] = frozenset(),
) -> tuple[list[_Named], list[_Named]]:
    """Layers that run forward one after another, and back; what `offloaded` modules save waits on
    the host between the passes."""
    forward: list[_Named] = []
    backward: list[_Named] = []
    for index, operators in enumerate(layers):
        named, found = _names(operators, index, len(layers)), footprint(operators, runs)
        forward += _requests(found.there, named)
        away = offloaded_names(operators, runs, offloaded)
        forward += ((named(name), 0) for name in kept_tensors(operators, runs) if name in away)
        backward[:0] = _requests(found.back, named)
    return forward, backward


def _checkpoint(shape: RankShape, segment: Segment) -> tuple[list[_Named], list[_Named]]:
    """One checkpoint around all layers of `segment`: its forward keeps the input alone, and its
    backward begins with the forward again; a reentrant one holds output and gradient to the end."""
    layers = [transformer_layer(shape, kind) for kind in segment.layers]
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
    return forward, [*again, *backward, *leaves, enters]


def _names(operators: Sequence[Operator], index: int, layers: int) -> Callable[[str], _Name]:
    enters, leaves = handed(operators)
    after = (1, 0) if index == layers - 1 else (0, index + 1)
    ends = {
        enters: (0, index, "input"),
        f"gradient of {enters}": (0, index, "gradient"),
        leaves: (*after, "input"),
        f"gradient of {leaves}": (*after, "gradient"),
    }
    return lambda name: ends.get(name) or (0, index, name)


def _requests(events: Iterable[Event], named: Callable[[str], _Name]) -> Iterator[_Named]:
    """What the allocator is asked for: an operator's own bytes are requested and given back."""
    for kind, name, num_bytes in events:
        if num_bytes > NEGLIGIBLE and kind != SPENT:
            yield named(name), num_bytes if kind == TAKE else -num_bytes if kind == WORK else 0


class Held(Struct, frozen=True, kw_only=True):
    """What a rank holds between steps, and how it is laid out.

    weights: elements of each tensor. in_buffers: weights are made one by one, then copied into one
    buffer next to that of the gradients, and freed (Megatron's distributed optimizer).
    grown_gradients: the first backward makes them (plain torch modules), here when it has ended;
    else they are there before.
    resident: bytes of each buffer that comes with the first step. step: bytes that the optimizer's
    step takes and gives back, of all weights; stepped_together: of so many elements at a time, 0 of
    all.
    """

    weights: tuple[int, ...]
    static: StaticMemory
    in_buffers: bool
    resident: tuple[int, ...]
    step: int
    stepped_together: int = 0
    grown_gradients: bool = False


class GraphTraces(Struct, frozen=True, kw_only=True):
    """What CUDA graphs change from the second step on: `pool` runs in a pool of its own, that its
    first run fills and nothing empties, `outside` next to it; `inputs`: bytes that stay."""

    pool: tuple[ChunkTrace, ...]
    outside: tuple[ChunkTrace, ...]
    inputs: int


class SimulatedPeaks(Struct, frozen=True):
    """Peaks of what the allocator counts, bytes; allocated is that of the steps, without what was
    alive only while the model was made. requests: how many were simulated."""

    allocated: int
    reserved: int
    requests: int

    @property
    def unused(self) -> int:
        """Bytes reserved beyond the allocated peak."""
        return self.reserved - self.allocated


@lru_cache(maxsize=1024)
def weight_sizes(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> tuple[int, ...]:
    """Elements of every tensor of weights of a stage, in the order of the layers' kinds; the
    experts of a rank as one."""
    found = stage_weights(shape, chunks)
    return tuple(weight.num_elements for weight, layers in found for _ in range(layers))


class Rank:
    """One rank's tensors on a caching allocator."""

    def __init__(self, *, expandable_segments: bool, capacity: int | None = None) -> None:
        self.allocator = CachingAllocator(
            expandable_segments=expandable_segments, capacity=capacity
        )

    @property
    def peaks(self) -> tuple[int, int]:
        """Most bytes allocated, and reserved."""
        return self.allocator.peak_allocated, self.allocator.peak_reserved

    def take(self, sizes: Iterable[int]) -> list[Block]:
        """Blocks for requests of `sizes`."""
        return [self.allocator.allocate(size) for size in sizes if size > 0]

    def run(self, units: Requests, live: dict[int, Block]) -> None:
        """One pass of one microbatch, whose live blocks are `live`."""
        allocate, release = self.allocator.allocate, self.allocator.release
        touch = self.allocator.touch
        for place, requests in units:
            for number, size in requests:
                name = number + place
                if size > 0:
                    if name not in live:
                        live[name] = allocate(size)
                elif (block := live.pop(name, None)) is not None:
                    release(block)
                elif size:
                    touch(-size)

    def passes(self, chunks: Sequence[ChunkTrace], order: Iterable[Pass]) -> None:
        """Forwards and backwards of `chunks` in `order`; what is kept then goes."""
        live: dict[tuple[int, int], dict[int, Block]] = {}
        numbers = {False: [0] * len(chunks), True: [0] * len(chunks)}
        for backward, chunk in order if chunks else ():
            key = chunk, numbers[backward][chunk]
            numbers[backward][chunk] += 1
            if backward:
                self.run(chunks[chunk].backward, live[key])
                self.allocator.release_all(live.pop(key).values())
            else:
                self.run(chunks[chunk].forward, live.setdefault(key, {}))
        self.allocator.release_all(chain.from_iterable(kept.values() for kept in live.values()))


def simulate(
    held: Held,
    traces: tuple[ChunkTrace, ...],
    classes: tuple[int, ...],
    pp: int,
    stage: int,
    microbatches: int,
    *,
    expandable_segments: bool,
    capacity: int | None = None,
    graphs: GraphTraces | None = None,
) -> SimulatedPeaks:
    """Peaks of a rank of `stage` whose chunk k runs as traces[classes[k]]. OutOfMemoryError where
    it does not get by with `capacity` bytes, what lies free returned to the driver when needed.

    Main parameters are made with the model, Adam's two moments when it first steps, after the
    copies that its step makes; weights that the traces have by `stays` come and go with them.
    Microbatches beyond those that fill the pipeline repeat what was.
    graphs: captured after the first step, when what lies free is returned to the driver (torch
    2.13 cuda/graphs.py, __enter__).
    """
    rank = Rank(expandable_segments=expandable_segments, capacity=capacity)
    found, order = rank.allocator, _order(pp, len(classes), min(microbatches, 2 * pp), stage)
    _make_model(rank, held, sum(traces[each].stays for each in classes))
    requests, before, pool = 0, (0, 0), (0, 0)
    for step in range(_STEPS):
        if step and graphs is not None:
            before = rank.peaks
            found.empty_cache()
            rank.take((graphs.inputs,))
            own = Rank(expandable_segments=expandable_segments, capacity=capacity)
            own.passes([graphs.pool[each] for each in classes if graphs.pool], order)
            pool, requests = own.peaks, own.allocator.requests
            found.restart(pool[1])
            traces = graphs.outside
        rank.passes([traces[each] for each in classes if traces], order)
        _optimizer_step(rank, held, first=step == 0)
    allocated, reserved = (
        max(first, second + own_pool)
        for first, second, own_pool in zip(before, rank.peaks, pool, strict=True)
    )
    return SimulatedPeaks(allocated, reserved, found.requests + requests)


def _order(pp: int, vpp: int, microbatches: int, stage: int) -> tuple[Pass, ...]:
    """A forward and a backward where one microbatch is in flight at a time, else the passes up to
    the second backward."""
    warmup = num_warmup_passes(pp, vpp, microbatches, stage)
    filled = warmup + _STEADY_PASSES if warmup else 2
    return tuple(islice(passes(pp, vpp, microbatches, stage), filled))


def _make_model(rank: Rank, held: Held, stays: int) -> None:
    """What is there before the first step, weights except those of `stays` bytes."""
    static, sizes = held.static, held.weights
    weights = rank.take(_cut(static.weights - stays, sizes))
    if held.in_buffers:
        rank.take((static.weights - stays, static.gradients))
        rank.allocator.release_all(weights)
    elif not held.grown_gradients:
        rank.take(_cut(static.gradients, sizes))
    rank.take(_cut(static.optimizer // 3, sizes))
    rank.take(held.resident)
    rank.allocator.peak_allocated = rank.allocator.allocated


def _optimizer_step(rank: Rank, held: Held, *, first: bool) -> None:
    """Copies come and go, group by group; the first one makes Adam's moments, two of each size."""
    if first and held.grown_gradients:
        rank.take(reversed(_cut(held.static.gradients, held.weights)))
    moments = held.static.optimizer - held.static.optimizer // 3
    for share, sizes in _groups(held):
        copies = rank.take(_cut(int(held.step * share), sizes))
        if first:
            halves = _cut(int(moments * share / 2), sizes)
            rank.take(half for size in halves for half in (size, size))
        rank.allocator.release_all(copies)


def _groups(held: Held) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Weights that the optimizer steps together, with their share of all."""
    whole, group = sum(held.weights), 0
    members: list[int] = []
    for size in held.weights:
        if held.stepped_together and members and group + size > held.stepped_together:
            yield group / whole, tuple(members)
            members, group = [], 0
        members.append(size)
        group += size
    if members:
        yield group / whole, tuple(members)


def _cut(total: int, sizes: tuple[int, ...]) -> list[int]:
    """`total` bytes in the proportions of `sizes`, what is negligible in one."""
    whole = sum(sizes)
    pieces = [total * size // whole for size in sizes] if whole else []
    large = [piece for piece in pieces if piece > NEGLIGIBLE]
    return [*large, total - sum(large)]
