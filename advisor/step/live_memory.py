"""The live memory of a stage through a step: a fold over the order of its passes.

Before, in and after every pass: what is there throughout, what the microbatches in flight keep,
the running pass's own need, what spent chunks leave, and hidden states that the schedule holds. As
memory.activations.activation_peak, which looks at the moments alone that can be the highest.
"""

from typing import NamedTuple

from msgspec import Struct

from advisor.plan.schedule import Pass, held_tensors, passes
from advisor.step.step_parts import StageStep, TrainingStep
from advisor.step.timeline import Timeline


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
    held = step.stages[stage]
    pp, vpp, microbatches = step.schedule
    order = list(passes(pp, vpp, microbatches, stage))
    levels = _levels(held, order, held_tensors(pp, vpp, microbatches, stage))
    highest = max(range(len(levels)), key=lambda number: levels[number].highest)
    optimizer = held.static_bytes + held.optimizer.num_bytes
    if optimizer > levels[highest].highest:
        place: int | None = None
        peak, point = optimizer, held.optimizer.point
    else:
        place, peak = highest, levels[highest].highest
        backward, chunk = order[highest]
        passed = held.chunks[chunk]
        point = (passed.most_backward if backward else passed.most_forward).point
    return LiveMemory(
        levels=tuple(levels), optimizer=optimizer, peak=peak, peak_pass=place, point=point
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
    kept = live.levels[0].before - static
    found = [Moment(0.0, static, kept, 0)]
    for one, level in zip(line.stages[stage], live.levels, strict=True):
        before = level.before - static
        running = level.highest - level.before
        found.append(Moment(one.start, static, before, 0))
        found.append(Moment((one.start + one.end) / 2, static, before, running))
        kept = level.after - static
        found.append(Moment(one.end, static, kept, 0))
    begin = step.seconds - step.tail.optimizer
    found.append(Moment(begin, static, kept, 0))
    found.append(Moment(begin, static, 0, live.optimizer - static))
    found.append(Moment(step.seconds, static, 0, live.optimizer - static))
    found.append(Moment(step.seconds, static, 0, 0))
    return found


def _levels(stage: StageStep, order: list[Pass], held: list[int]) -> list[Level]:
    """`held`: hidden states beside each pass. What a chunk's last backward left is part of its
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
