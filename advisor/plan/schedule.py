"""Order of forward and backward passes of one pipeline stage, and what is in flight when.

Source: megatron-core 0.16.1 pipeline_parallel/schedules.py (get_pp_rank_microbatches,
get_schedule_table, the two forward_backward_pipelining functions); microbatch_group_size_per_
vp_stage is left at its default, PP, and the interleaved schedule overlaps its communication.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import ge
from typing import NamedTuple

_STEADY_ROUNDS = 4
"""Groups of PP microbatches after which what several chunks have in flight repeats (see
schedule_points)."""


class Pass(NamedTuple):
    """One forward or backward pass of one model chunk of a stage."""

    backward: bool
    chunk: int


class SchedulePoint(NamedTuple):
    """A pass, and what the stage holds while it runs.

    in_flight counts, per chunk, microbatches whose saved tensors are alive: forwards begun and
    backwards not finished, the running pass included; by_class counts them per class of like
    chunks. `held` counts hidden-state tensors that the schedule's variables keep next to them (see
    held_tensors). spent counts, per class, the other chunks whose last pass was a backward.
    """

    backward: bool
    chunk: int
    in_flight: tuple[int, ...]
    by_class: tuple[int, ...]
    held: int = 0
    spent: tuple[int, ...] = ()


def num_warmup_passes(pp: int, vpp: int, microbatches: int, stage: int) -> int:
    """Forward passes that `stage` runs before its first backward."""
    total = microbatches * vpp
    if pp == 1:
        return 0
    if vpp == 1:
        return min(pp - stage - 1, total)
    return min((pp - stage - 1) * 2 + (vpp - 1) * pp, total)


def passes(pp: int, vpp: int, microbatches: int, stage: int) -> Iterator[Pass]:
    """All passes of one step on `stage`, in order."""
    order = chunk_order(pp, vpp, microbatches)
    warmup = num_warmup_passes(pp, vpp, microbatches, stage)
    there = [Pass(False, chunk) for chunk in range(vpp)]
    back = [Pass(True, chunk) for chunk in reversed(range(vpp))]
    yield from (there[chunk] for chunk in order[:warmup])
    for chunk, earlier in zip(order[warmup:], order, strict=False):
        yield there[chunk]
        yield back[earlier]
    yield from (back[chunk] for chunk in order[len(order) - warmup :])


@lru_cache(maxsize=4096)
def chunk_order(pp: int, vpp: int, microbatches: int) -> tuple[int, ...]:
    """Chunk of each virtual microbatch: groups of PP microbatches go through chunk after chunk."""
    if vpp == 1:
        return (0,) * microbatches
    order: list[int] = []
    for start in range(0, microbatches, pp):
        group = min(pp, microbatches - start)
        order += [chunk for chunk in range(vpp) for _ in range(group)]
    return tuple(order)


@lru_cache(maxsize=4096)
def first_in_flight(pp: int, vpp: int, microbatches: int, stage: int) -> tuple[int, ...]:
    """Microbatches in flight of each chunk in the last forward before the first backward."""
    forwards = 1 + num_warmup_passes(pp, vpp, microbatches, stage)
    whole_groups = pp * (forwards // pp + 1)
    begun = chunk_order(pp, vpp, min(microbatches, whole_groups))[:forwards]
    return tuple(begun.count(chunk) for chunk in range(vpp))


def schedule_points(
    pp: int,
    vpp: int,
    microbatches: int,
    stage: int,
    classes: tuple[int, ...],
    *,
    spent: bool = False,
) -> tuple[SchedulePoint, ...]:
    """The moments of a step at which `stage` can peak.

    `classes` says which chunks are alike: one number a chunk, from 0 without a gap. Of passes of
    the same direction through the same class only those stay whose loads (microbatches in flight by
    class, held tensors, and where `spent` is asked for, spent chunks) no other exceeds. After PP +
    1 microbatches, of several chunks after `_STEADY_ROUNDS` groups of PP, the loads only repeat, so
    that longer steps need not be walked."""
    steady = pp + 1 if vpp == 1 else _STEADY_ROUNDS * pp
    return _walked(pp, vpp, min(microbatches, steady), stage, classes, spent)


@lru_cache(maxsize=16384)
def _walked(
    pp: int, vpp: int, microbatches: int, stage: int, classes: tuple[int, ...], spent: bool
) -> tuple[SchedulePoint, ...]:
    """Loads of classes are sums over chunks: a moment that no other of its class exceeds is among
    those that no other of its chunk exceeds, and these do for all ways to tell classes."""
    by_chunk = _of_chunks(pp, vpp, microbatches, stage, spent)
    alike = max(classes) + 1
    if alike < vpp:
        by_chunk = tuple(_of_classes(moment, classes, alike) for moment in by_chunk)
    return _maximal(by_chunk, classes)


@lru_cache(maxsize=4096)
def _of_chunks(
    pp: int, vpp: int, microbatches: int, stage: int, spent: bool
) -> tuple[SchedulePoint, ...]:
    """The moments to look at where every chunk is a class of its own, in order of time."""
    loads = dict.fromkeys(_every_load(pp, vpp, microbatches, stage, spent))
    every = [
        SchedulePoint(backward, chunk, counts, counts, held, over)
        for backward, chunk, counts, held, over in loads
    ]
    highest = set(_maximal(every, tuple(range(vpp))))
    return tuple(moment for moment in every if moment in highest)


_Load = tuple[bool, int, tuple[int, ...], int, tuple[int, ...]]
"""backward, chunk, in_flight, held and spent of a SchedulePoint where every chunk is a class."""


def _every_load(pp: int, vpp: int, microbatches: int, stage: int, spent: bool) -> Iterator[_Load]:
    counts, went_back = [0] * vpp, [0] * vpp
    over: tuple[int, ...] = ()
    held = held_tensors(pp, vpp, microbatches, stage)
    for (backward, chunk), extra in zip(passes(pp, vpp, microbatches, stage), held, strict=True):
        if not backward:
            counts[chunk] += 1
        if spent:
            went_back[chunk] = 0
            over = tuple(went_back)
            went_back[chunk] = int(backward)
        yield backward, chunk, tuple(counts), extra, over
        if backward:
            counts[chunk] -= 1


def _of_classes(moment: SchedulePoint, classes: tuple[int, ...], alike: int) -> SchedulePoint:
    """`moment`, its loads summed over the chunks of each class."""

    def summed(loads: tuple[int, ...]) -> tuple[int, ...]:
        sums = [0] * alike
        for number, load in zip(classes, loads, strict=True):
            sums[number] += load
        return tuple(sums)

    return moment._replace(
        by_class=summed(moment.in_flight), spent=summed(moment.spent) if moment.spent else ()
    )


def _maximal(every: Iterable[SchedulePoint], classes: tuple[int, ...]) -> tuple[SchedulePoint, ...]:
    """Of passes of one direction through one class, the first of each load that none exceeds;
    classes in the order of their first passes: backwards begin with the last chunk."""
    seen: dict[tuple[bool, int], dict[tuple[int, ...], SchedulePoint]] = {}
    for moment in every:
        kind = seen.setdefault((moment.backward, classes[moment.chunk]), {})
        kind.setdefault((*moment.by_class, moment.held, *moment.spent), moment)
    found: list[SchedulePoint] = []
    last = {alike: chunk for chunk, alike in enumerate(classes)}
    order = sorted(seen, key=lambda of: (True, -last[of[1]]) if of[0] else of)
    for kind in (seen[of] for of in order):
        front: list[tuple[int, ...]] = []
        for load in sorted(kind, reverse=True):
            for other in front:
                if all(map(ge, other, load)):
                    break
            else:
                front.append(load)
                found.append(kind[load])
    return tuple(found)


def held_tensors(pp: int, vpp: int, microbatches: int, stage: int) -> list[int]:
    """Hidden-state tensors that the schedule holds during each pass, in the order of `passes`. The
    running pass's own input (kept by its first layer) and received gradient are not counted."""
    if pp == 1:
        return [0] * (2 * microbatches)
    if vpp == 1:
        return _plain_held(pp, microbatches, stage)
    return _InterleavedBuffers(pp, vpp, microbatches, stage).walk()


def _plain_held(pp: int, microbatches: int, stage: int) -> list[int]:
    """1F1B: variables of the previous backward live on until they are bound again.

    input_tensor_grad stays through the next forward and backward (every stage but the first). In a
    forward of the steady state so do the received gradient (every stage but the last) and, through
    the spent graph, the previous input (every stage but the first)."""
    first, last = stage == 0, stage == pp - 1
    held, backwards = [], 0
    for step in passes(pp, 1, microbatches, stage):
        if step.backward:
            held.append(0 if first or not backwards else 1)
            backwards += 1
        else:
            held.append((0 if last else 1) + (0 if first else 2) if backwards else 0)
    return held


class _InterleavedBuffers:
    """Buffers of the interleaved schedule with overlapped point-to-point communication.

    While a backward runs in the steady state, the stage also holds the output of the forward
    before it, the input received ahead for the next forward, and the gradient that the previous
    backward sent. While a forward runs, the gradient received ahead. A chunk keeps the last input
    it was given (TransformerBlock.set_input_tensor), and the schedule the first input of its
    steady state: once spent, both still hold their gradient.
    """

    def __init__(self, pp: int, vpp: int, microbatches: int, stage: int) -> None:
        self._pp, self._vpp = pp, vpp
        self._first, self._last = stage == 0, stage == pp - 1
        self._has_input = [not (self._first and chunk == 0) for chunk in range(vpp)]
        self._order = chunk_order(pp, vpp, microbatches)
        self._warmup = num_warmup_passes(pp, vpp, microbatches, stage)
        self._forwards_of = [0] * vpp
        self._backwards_of = [0] * vpp
        self._spent_chunks = 0
        self._sticky: tuple[int, int] | None = None
        self._sent: tuple[int, int] | None = None

    def walk(self) -> list[int]:
        total = len(self._order)
        held = [self._forward(k, steady=False) for k in range(self._warmup)]
        for k in range(total - self._warmup):
            held.append(self._forward(k + self._warmup, steady=k > 0))
            held.append(self._backward(k, steady=True))
        held += [self._backward(k, steady=False) for k in range(total - self._warmup, total)]
        return held

    def _forward(self, k: int, *, steady: bool) -> int:
        chunk = self._order[k]
        microbatch = self._forwards_of[chunk]
        # its input takes the place of the chunk's last one
        if microbatch and microbatch == self._backwards_of[chunk] and self._has_input[chunk]:
            self._spent_chunks -= 1
        self._forwards_of[chunk] += 1
        held = self._spent() + (self._sent_gradient() if steady else 0)
        if steady and self._receives(k - self._warmup - 1, at_end=self._last):
            held += 1
        if k == self._warmup and self._has_input[chunk]:
            self._sticky = (chunk, microbatch)
        return held

    def _backward(self, k: int, *, steady: bool) -> int:
        chunk = self._vpp - 1 - self._order[k]
        held = self._spent() + self._sent_gradient()
        if steady:
            forward = k + self._warmup
            held += 0 if self._last and self._order[forward] == self._vpp - 1 else 1
            held += self._receives(forward, at_end=self._first)
        microbatch = self._backwards_of[chunk]
        self._backwards_of[chunk] += 1
        if self._forwards_of[chunk] == microbatch + 1 and self._has_input[chunk]:
            self._spent_chunks += 1
        self._sent = (chunk, microbatch) if self._has_input[chunk] else None
        return held

    def _is_kept(self, sent: tuple[int, int]) -> bool:
        """Whether a spent input is still referred to: its chunk's latest, or the sticky one."""
        chunk, microbatch = sent
        return microbatch == self._forwards_of[chunk] - 1 or sent == self._sticky

    def _spent(self) -> int:
        """Tensors of inputs that are spent but referred to: each with its gradient."""
        inputs = self._spent_chunks
        if self._sticky is not None:
            chunk, microbatch = self._sticky
            latest = self._forwards_of[chunk] - 1
            inputs += microbatch < self._backwards_of[chunk] and microbatch != latest
        return 2 * inputs

    def _sent_gradient(self) -> int:
        return 1 if self._sent is not None and not self._is_kept(self._sent) else 0

    def _receives(self, k: int, *, at_end: bool) -> bool:
        """Whether an input is received after forward k, or a gradient after backward k, by a stage
        that is `at_end` of the pipeline on that side (recv_tensor_from_previous_stage)."""
        if k >= len(self._order) - 1:
            return False
        aligned = k - (self._pp - 1)
        return not at_end or (aligned >= 0 and self._order[aligned] != self._vpp - 1)
