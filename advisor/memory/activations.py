"""Activation peak of one pipeline stage: what is in flight, and the pass that needs most."""

from dataclasses import dataclass

from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory.chunk import ChunkFootprint, Peak
from advisor.schedule import Moment, moments


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPeak:
    """Bytes of activations of one rank at its peak.

    kept: saved tensors of all microbatches in flight. transient: what the running pass has beyond
    them, and tensors received or sent. phase says pass, chunk, operator.
    """

    kept: int
    transient: int
    in_flight: tuple[int, ...]
    phase: str

    @property
    def total(self) -> int:
        """kept + transient."""
        return self.kept + self.transient


def activation_peak(
    shape: RankShape,
    chunks: tuple[ChunkFootprint, ...],
    pp: int,
    stage: int,
    microbatches: int,
) -> ActivationPeak:
    """The worst moment of one step on `stage`, whose model chunks are `chunks`."""
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    best: tuple[int, int, Moment, Peak] | None = None
    for moment in moments(pp, len(chunks), microbatches, stage):
        chunk = chunks[moment.chunk]
        peak = chunk.backward if moment.backward else chunk.forward
        kept = sum(
            count * chunk.kept for count, chunk in zip(moment.in_flight, chunks, strict=True)
        )
        total = kept - chunk.kept + peak.num_bytes + moment.held * hidden
        if best is None or total > best[0]:
            best = (total, kept, moment, peak)
    assert best is not None
    total, kept, moment, peak = best
    direction = "backward" if moment.backward else "forward"
    return ActivationPeak(
        kept=kept,
        transient=total - kept,
        in_flight=moment.in_flight,
        phase=f"{direction} of chunk {moment.chunk}: {peak.point}",
    )
