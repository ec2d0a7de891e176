"""When the passes of a step run, and what each stage holds then."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from advisor.plan.schedule import Pass, held_tensors, passes
from advisor.step.predicted_step import PassSeconds, StageStep, TrainingStep

TAIL: Final = ("accumulated", "reduced", "optimizer")
"""Parts of StepTail in the order in which they run."""


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
    by = step.pipeline_seconds / last if last else 1.0
    stretched = (
        tuple(one._replace(start=one.start * by, end=one.end * by) for one in found)
        for found in stages
    )
    return Timeline(tuple(stretched), by)


def seconds_of(stage: StageStep, one: TimedPass) -> PassSeconds:
    """What a pass of `stage` is made of, before it is stretched."""
    chunk = stage.chunks[one.chunk]
    return chunk.backward if one.backward else chunk.forward


def tail_parts(step: TrainingStep) -> Iterator[tuple[str, float, float]]:
    """What comes after the pipeline of every stage: name in TAIL, start, end."""
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
            start = max(arrived, found[stage][-1].end if found[stage] else 0.0)
            own = step.stages[stage].chunks[chunk]
            end = start + (own.backward if backward else own.forward).total
            ends[backward, place, number] = end
            found[stage].append(TimedPass(backward, chunk, number, start, end))
            blocked = 0
        blocked += 1
        stage = (stage + 1) % pp
    return found


class Level(NamedTuple):
    """Allocated bytes of a rank before one pass, the most within it, and after it."""

    before: int
    highest: int
    after: int


class LiveMemory(Struct, frozen=True, kw_only=True):
    """Levels of a stage's passes in order, and the most while the optimizer runs.

    peak: the highest of all, that of StageMemory.peak_allocated_bytes; peak_pass: the number of
    the first pass that reaches it, None where the optimizer does; point: the operator, in words.
    """

    levels: tuple[Level, ...]
    optimizer: int
    peak: int
    peak_pass: int | None
    point: str


def live_memory(step: TrainingStep, stage: int) -> LiveMemory:
    """Levels of one stage."""
    held, order = step.stages[stage], list(passes(*step.schedule, stage))
    levels = _levels(held, order, held_tensors(*step.schedule, stage))
    highest = max(range(len(levels)), key=lambda number: levels[number].highest)
    optimizer = held.static_bytes + held.optimizer.num_bytes
    backward, chunk = order[highest]
    passed = held.chunks[chunk]
    in_pass = optimizer <= levels[highest].highest
    most = passed.most_backward if backward else passed.most_forward
    return LiveMemory(
        levels=tuple(levels),
        optimizer=optimizer,
        peak=max(optimizer, levels[highest].highest),
        peak_pass=highest if in_pass else None,
        point=(most if in_pass else held.optimizer).point,
    )


class Moment(NamedTuple):
    """Allocated bytes of a rank from `seconds` on: static ones, those that microbatches in flight
    keep (with hidden states that the schedule holds), and those of the pass that runs, or of the
    optimizer."""

    seconds: float
    static: int
    kept: int
    running: int

    @property
    def num_bytes(self) -> int:
        """Sum of all."""
        return self.static + self.kept + self.running


def moments(step: TrainingStep, line: Timeline, stage: int, live: LiveMemory) -> list[Moment]:
    """Levels of a stage against time. Where within a pass it is highest is not predicted: in its
    middle."""
    static = step.stages[stage].static_bytes
    levels = [(0.0, live.levels[0].before - static, 0)]
    for one, level in zip(line.stages[stage], live.levels, strict=True):
        before, after = level.before - static, level.after - static
        middle = (one.start + one.end) / 2
        levels += [(one.start, before, 0), (middle, before, level.highest - level.before)]
        levels.append((one.end, after, 0))
    begin, end, most = step.seconds - step.tail.optimizer, step.seconds, live.optimizer - static
    levels += [(begin, levels[-1][1], 0), (begin, 0, most), (end, 0, most), (end, 0, 0)]
    return [Moment(seconds, static, kept, running) for seconds, kept, running in levels]


def _levels(stage: StageStep, order: list[Pass], held: list[int]) -> list[Level]:
    """`held`: hidden states during each pass. What a chunk's last backward left is part of its
    next pass's own need."""
    found = []
    kept, left = stage.static_bytes, [0] * len(stage.chunks)
    for (backward, chunk), states in zip(order, held, strict=True):
        own = stage.chunks[chunk]
        others = kept - own.kept * backward + states * stage.sent
        most = (own.most_backward if backward else own.most_forward).num_bytes
        left[chunk] = 0
        before = kept + states * stage.sent + sum(left)
        highest = others + most + sum(left)
        kept += -own.kept if backward else own.kept
        left[chunk] = own.left if backward else 0
        found.append(Level(before, highest, kept + states * stage.sent + sum(left)))
    return found
