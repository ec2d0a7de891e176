"""When each pass of a step begins and ends: a fold over the order of passes of every stage.

A pass begins when its stage is through with the one before it and what it starts from has arrived:
a forward from the chunk before, on the stage before or, of the first stage, on the last one; a
backward from the chunk behind. What is sent is part of the pass that sends it. Source:
megatron-core 0.16.1 pipeline_parallel/schedules.py.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from advisor.plan.schedule import passes
from advisor.step.step_parts import PassSeconds, StageStep, TrainingStep

TAIL: Final = ("accumulated", "waiting", "reduced", "optimizer")
"""Parts of StepTail in the order in which they run: the slowest GPU is waited for where gradients
are reduced."""


class TimedPass(NamedTuple):
    """A pass of one microbatch through one chunk: seconds from the step's begin."""

    backward: bool
    chunk: int
    microbatch: int
    start: float
    end: float


class Timeline(Struct, frozen=True):
    """Passes of every stage in order. The step's pipeline time is a closed form; the fold of its
    passes differs from it where stages are of unequal length. Every pass lasts `stretch` times its
    PassSeconds, so that the last one ends at TrainingStep.pipeline_seconds."""

    stages: tuple[tuple[TimedPass, ...], ...]
    stretch: float


def timeline(step: TrainingStep) -> Timeline:
    """Start and end of all passes of a step."""
    stages = _folded(step)
    last = max(found[-1].end for found in stages)
    stretch = step.pipeline_seconds / last if last else 1.0
    return Timeline(
        tuple(
            tuple(one._replace(start=one.start * stretch, end=one.end * stretch) for one in found)
            for found in stages
        ),
        stretch,
    )


def seconds_of(stage: StageStep, one: TimedPass) -> PassSeconds:
    """What a pass of `stage` is made of, before it is stretched."""
    chunk = stage.chunks[one.chunk]
    return chunk.backward if one.backward else chunk.forward


def tail_parts(step: TrainingStep) -> Iterator[tuple[str, float, float]]:
    """What comes behind the pipeline of every stage: name in TAIL, start, end."""
    start = step.pipeline_seconds
    for name in TAIL:
        end = start + getattr(step.tail, name)
        if end > start:
            yield name, start, end
        start = end


def _folded(step: TrainingStep) -> list[list[TimedPass]]:
    """The passes as long as they are."""
    pp, vpp, microbatches = step.schedule
    waiting = [list(passes(pp, vpp, microbatches, stage))[::-1] for stage in range(pp)]
    found: list[list[TimedPass]] = [[] for _ in range(pp)]
    ends: dict[tuple[bool, int, int], float] = {}
    begun = [[[0] * vpp, [0] * vpp] for _ in range(pp)]
    last, stage, blocked = pp * vpp - 1, 0, 0
    while any(waiting):
        assert blocked <= pp, "the order of passes has a cycle"
        while waiting[stage]:
            backward, chunk = waiting[stage][-1]
            number, place = begun[stage][backward][chunk], chunk * pp + stage
            first = place == (last if backward else 0)
            before = place + 1 if backward else place - 1
            arrived = 0.0 if first else ends.get((backward, before, number))
            if arrived is None:
                break
            waiting[stage].pop()
            begun[stage][backward][chunk] += 1
            free = found[stage][-1].end if found[stage] else 0.0
            start = max(arrived, free)
            own = step.stages[stage].chunks[chunk]
            end = start + (own.backward if backward else own.forward).total
            ends[backward, place, number] = end
            found[stage].append(TimedPass(backward, chunk, number, start, end))
            blocked = 0
        blocked += 1
        stage = (stage + 1) % pp
    return found
