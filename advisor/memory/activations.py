"""Activation peak of one pipeline stage: what is in flight, and the pass that needs most."""

from dataclasses import dataclass
from functools import lru_cache

from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory.chunk import ChunkFootprint
from advisor.schedule import Moment, end_chunk, moments


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
    """The worst moment of one step on `stage`, whose model chunks are `chunks`.

    All chunks but the one at the pipeline's end are alike (advisor.schedule.end_chunk).
    """
    vpp = len(chunks)
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    end = end_chunk(pp, vpp, stage)
    end_kept, other_kept = chunks[end].kept, chunks[end - 1].kept
    best_total, best = -1, None
    for moment, at_end, others in _loads(pp, vpp, microbatches, stage):
        chunk = chunks[moment.chunk]
        peak = chunk.backward if moment.backward else chunk.forward
        kept = at_end * end_kept + others * other_kept
        total = kept - chunk.kept + peak.num_bytes + moment.held * hidden
        if total > best_total:
            best_total, best = total, (kept, moment, peak)
    assert best is not None
    kept, moment, peak = best
    direction = "backward" if moment.backward else "forward"
    return ActivationPeak(
        kept=kept,
        transient=best_total - kept,
        in_flight=moment.in_flight,
        phase=f"{direction} of chunk {moment.chunk}: {peak.point}",
    )


@lru_cache(maxsize=16384)
def _loads(pp: int, vpp: int, microbatches: int, stage: int) -> tuple[tuple[Moment, int, int], ...]:
    """Moments with the microbatches in flight at the pipeline's end and elsewhere."""
    end = end_chunk(pp, vpp, stage)
    return tuple((moment, *moment.split(end)) for moment in moments(pp, vpp, microbatches, stage))
