"""What the allocator reserves on one rank: two steps of it, request by request."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice

from msgspec import Struct

from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.memory.caching_allocator import Block, CachingAllocator, OutOfMemoryError
from advisor.memory.chunk import ChunkTrace, Requests
from advisor.memory.chunk_units import NEGLIGIBLE, OTHER_STREAM
from advisor.memory.static import StaticMemory, stage_weights
from advisor.plan.schedule import Pass, num_warmup_passes, passes

_STEPS = 2
"""The optimizer's states are made in the first step, in what its passes have left free; the passes
of the second find that taken."""
_STEADY_PASSES = 4
"""Passes after the warm-up: two forwards with all microbatches in flight, and their backwards."""


class Held(Struct, frozen=True, kw_only=True):
    """What a rank holds between steps, and how it is laid out.

    weights: elements of each tensor. in_buffers: weights are made one by one, then those that are
    trained copied into one buffer next to that of the gradients, and freed (Megatron's distributed
    optimizer).
    grown_gradients: the first backward makes them (plain torch modules), here when it has ended;
    else they are there before.
    resident: bytes of each buffer that comes with the first step. step: bytes that the optimizer's
    step takes and gives back, of all weights; stepped_together: of so many elements at a time, 0 of
    all. main_params: of the optimizer's bytes, those that come with the model.
    """

    weights: tuple[int, ...]
    static: StaticMemory
    in_buffers: bool
    resident: tuple[int, ...]
    step: int
    main_params: int = 0
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
                        live[name] = allocate(size, int(number & OTHER_STREAM > 0))
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

    Main parameters are made with the model, what else the optimizer has when it first steps, after
    the copies that its step makes; weights that the traces have by `stays` come and go with them.
    Microbatches beyond those that fill the pipeline repeat what was.
    graphs: captured after the first step, when what lies free is returned to the driver (torch 2.13
    cuda/graphs.py, __enter__)."""
    order = _order(pp, len(classes), min(microbatches, 2 * pp), stage)
    found = _peaks(held, traces, classes, order, expandable_segments, capacity, graphs)
    if found is None:
        raise OutOfMemoryError
    return found


@lru_cache(maxsize=256)
def _peaks(
    held: Held,
    traces: tuple[ChunkTrace, ...],
    classes: tuple[int, ...],
    order: tuple[Pass, ...],
    expandable: bool,
    capacity: int | None,
    graphs: GraphTraces | None,
) -> SimulatedPeaks | None:
    """As simulate, once for equal requests in equal order; None where `capacity` is too little."""
    rank = Rank(expandable_segments=expandable, capacity=capacity)
    found = rank.allocator
    requests, before, pool = 0, (0, 0), (0, 0)
    try:
        _make_model(rank, held, sum(traces[each].stays for each in classes))
        for step in range(_STEPS):
            if step and graphs is not None:
                before = rank.peaks
                found.empty_cache()
                rank.take((graphs.inputs,))
                own = Rank(expandable_segments=expandable, capacity=capacity)
                own.passes([graphs.pool[each] for each in classes if graphs.pool], order)
                pool, requests = own.peaks, own.allocator.requests
                found.restart(pool[1])
                traces = graphs.outside
            rank.passes([traces[each] for each in classes if traces], order)
            _optimizer_step(rank, held, first=step == 0)
    except OutOfMemoryError:
        return None
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
    frozen = 0 if stays else static.frozen
    trained = static.weights - stays - frozen
    rank.take(_cut(frozen, sizes))
    weights = rank.take(_cut(trained, sizes))
    if held.in_buffers:
        rank.take((trained, static.gradients))
        rank.allocator.release_all(weights)
    elif not held.grown_gradients:
        rank.take(_cut(static.gradients, sizes))
    rank.take(_cut(held.main_params, sizes))
    rank.take(held.resident)
    rank.allocator.peak_allocated = rank.allocator.allocated


def _optimizer_step(rank: Rank, held: Held, *, first: bool) -> None:
    """Copies come and go, group by group; the first one makes Adam's moments, two of each size."""
    if first and held.grown_gradients:
        rank.take(reversed(_cut(held.static.gradients, held.weights)))
    moments = held.static.optimizer - held.main_params
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
