"""Activation peak of one pipeline stage: what is in flight, and the pass that needs most."""

from collections.abc import Sequence
from operator import mul

from msgspec import Struct
from msgspec.structs import replace

from advisor.memory.chunk import ChunkFootprint
from advisor.memory.events import highest
from advisor.memory.static import GRADIENT_COPIES
from advisor.plan.schedule import schedule_points


class ActivationPeak(Struct, frozen=True, kw_only=True):
    """Bytes of one rank at its peak beyond weights, gradients, optimizer states and buffers.

    kept: saved tensors of all microbatches in flight. transient: what the running pass has beyond
    them, and tensors received or sent. phase says pass, chunk, operator. forward, backward: the
    highest total in either pass.
    """

    kept: int
    transient: int
    in_flight: tuple[int, ...]
    phase: str
    forward: int
    backward: int

    @property
    def total(self) -> int:
        """kept + transient."""
        return self.kept + self.transient

    def or_optimizer_step(self, step: int, words: str = GRADIENT_COPIES) -> "ActivationPeak":
        """This peak, or that of the optimizer's `step` where its bytes, of `words` and of what the
        passes left, are more."""
        if step <= self.total:
            return self
        none, phase = (0,) * len(self.in_flight), f"optimizer step: {words}"
        return replace(self, kept=0, transient=step, in_flight=none, phase=phase)


def most_in_flight(
    each: Sequence[int], classes: tuple[int, ...], pp: int, stage: int, microbatches: int
) -> int:
    """The most bytes of all microbatches in flight on `stage`, `each` of one in every chunk."""
    if not any(each):
        return 0
    points = schedule_points(pp, len(each), microbatches, stage, classes)
    loads: list[int] = [sum(map(mul, each, moment.in_flight)) for moment in points]
    return max(loads)


def activation_peak(
    hidden_bytes: int,
    distinct: tuple[ChunkFootprint, ...],
    classes: tuple[int, ...],
    pp: int,
    stage: int,
    microbatches: int,
) -> ActivationPeak:
    """The worst moment of one step on `stage`: chunk k has the footprint distinct[classes[k]].

    At every point of the schedule: the saved tensors of all microbatches in flight, the running
    pass's own need, and tensors received or sent and not yet gone, each a hidden state of
    `hidden_bytes` ([seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]).
    microbatches: of the step. Bytes of one rank; parameters, gradients and optimizer states are
    left out.
    Source: megatron-core 0.16.1 pipeline_parallel/schedules.py, by plan.schedule.schedule_points;
    held against it in tests/oracles."""
    each = [chunk.kept for chunk in distinct]
    left = [chunk.left for chunk in distinct]
    # of one chunk every forward but those of the warm-up follows a backward
    again = len(classes) == 1 and microbatches > pp - stage
    forward = [highest(c.forward, c.forward_again) if again else c.forward for c in distinct]
    running = [
        (there.num_bytes - c.kept, c.backward.num_bytes - c.kept)
        for there, c in zip(forward, distinct, strict=True)
    ]
    best_total, best = -1, None
    most = [-1, -1]  # forward, backward
    for moment in schedule_points(pp, len(classes), microbatches, stage, classes, spent=any(left)):
        backward, number, _, by_class, held, spent = moment
        total = sum(map(mul, by_class, each)) + held * hidden_bytes
        total += running[classes[number]][backward]
        if spent:
            total += sum(map(mul, spent, left))
        if total > most[backward]:
            most[backward] = total
            if total > best_total:
                best_total, best = total, moment
    assert best is not None
    chunk, kept = distinct[classes[best.chunk]], sum(map(mul, best.by_class, each))
    there = forward[classes[best.chunk]]
    peak, direction = (chunk.backward, "backward") if best.backward else (there, "forward")
    return ActivationPeak(
        kept=kept,
        transient=best_total - kept,
        in_flight=best.in_flight,
        phase=f"{direction} of chunk {best.chunk}: {peak.point}",
        forward=most[False],
        backward=most[True],
    )
