"""Order of forward and backward passes of one pipeline stage, and what is in flight when.

Source: megatron-core 0.16.1 pipeline_parallel/schedules.py (get_pp_rank_microbatches,
get_schedule_table, the two forward_backward_pipelining functions); microbatch_group_size_per_
vp_stage is left at its default, PP.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_STEADY_ROUNDS = 4
"""Groups of PP microbatches after which the in-flight pattern only repeats (see moments)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward or backward pass of one model chunk of a stage."""

    backward: bool
    chunk: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A pass at its start, and what the stage holds then.

    in_flight counts, per chunk, microbatches whose saved tensors are alive: forwards begun and
    """

    backward: bool
    chunk: int
    in_flight: tuple[int, ...]


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
    order = _chunk_order(pp, vpp, microbatches)
    warmup, total = num_warmup_passes(pp, vpp, microbatches, stage), len(order)
    for k in range(warmup):
        yield Pass(False, order[k])
    for k in range(total - warmup):
        yield Pass(False, order[k + warmup])
        yield Pass(True, vpp - 1 - order[k])
    for k in range(total - warmup, total):
        yield Pass(True, vpp - 1 - order[k])


def _chunk_order(pp: int, vpp: int, microbatches: int) -> tuple[int, ...]:
    """Chunk of each virtual microbatch: groups of PP microbatches go through chunk after chunk."""
    if vpp == 1:
        return (0,) * microbatches
    order: list[int] = []
    for start in range(0, microbatches, pp):
        group = min(pp, microbatches - start)
        order += [chunk for chunk in range(vpp) for _ in range(group)]
    return tuple(order)


@lru_cache(maxsize=16384)
def moments(pp: int, vpp: int, microbatches: int, stage: int) -> tuple[Moment, ...]:
    """The moments of a step at which `stage` can peak.

    Of the passes of the same kind and chunk only those stay whose in-flight counts no other
    exceeds. After `_STEADY_ROUNDS` groups of PP microbatches the counts only repeat, so that
    longer steps need not be walked.
    """
    return _maximal(pp, vpp, min(microbatches, _STEADY_ROUNDS * pp), stage)


def _maximal(pp: int, vpp: int, microbatches: int, stage: int) -> tuple[Moment, ...]:
    seen: dict[Pass, set[tuple[int, ...]]] = {}
    counts = [0] * vpp
    for step in passes(pp, vpp, microbatches, stage):
        if not step.backward:
            counts[step.chunk] += 1
        seen.setdefault(step, set()).add(tuple(counts))
        if step.backward:
            counts[step.chunk] -= 1
    return tuple(
        Moment(step.backward, step.chunk, vector)
        for step, vectors in seen.items()
        for vector in sorted(vectors)
        if not any(vector != other and _covers(other, vector) for other in vectors)
    )


def _covers(larger: tuple[int, ...], smaller: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(larger, smaller, strict=True))


def bubble_passes(pp: int, vpp: int) -> float:
    """Idle time of a balanced pipeline, in units of one microbatch's forward and backward of a
    whole stage: (pp - 1) / vpp (arXiv 2104.04473 sec. 2.2)."""
    return (pp - 1) / vpp
