"""By phase of a step: peaks of allocated bytes (of fake storages, a CPU's, or the CUDA
allocator's), where its time goes, and how far the processor is ahead of the GPU.
"""

from collections.abc import Callable
from itertools import accumulate
from operator import sub
from typing import Final

import torch
from msgspec import Struct

from advisor.base.grouping import grouped
from harness.measure.memory import StorageMeter
from harness.measure.timing import Stopwatch
from harness.trial.result import Phase, PhaseTime

PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Gauge(Struct, frozen=True):
    """Knows the highest number of bytes since it was last restarted. `restart` counts from what is
    allocated now."""

    peak: Callable[[], int]
    restart: Callable[[], None]


def meter_gauge(meter: StorageMeter) -> Gauge:
    """Of storages that a dispatch mode follows."""

    def restart() -> None:
        meter.peak_bytes = meter.live_bytes

    return Gauge(lambda: meter.peak_bytes, restart)


CUDA_GAUGE: Final = Gauge(torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)
"""Of the caching allocator."""


class PhasePeaks:
    """A recorder of a step that notes the peak of every phase."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._now = Phase.FORWARD
        self.peaks = dict.fromkeys(PHASES, 0)
        gauge.restart()

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self.close()
        self._now = phase

    def replay(self, begins: bool) -> None:
        """A replay is a part of the backward."""

    def close(self) -> None:
        """The running phase ends now."""
        self.peaks[self._now] = max(self.peaks[self._now], self._gauge.peak())
        self._gauge.restart()


_ORDER: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.REPLAY, Phase.OPTIMIZER)


class PhaseTimes:
    """A recorder of one step that notes when each phase begins, for the GPU and for the processor
    that queues its work. The GPU is idle once it is made."""

    def __init__(self, watch: Stopwatch) -> None:
        watch.laps()
        self._watch = watch
        self._begun: list[Phase] = []

    def phase(self, phase: Phase) -> None:
        """`phase` begins now."""
        self._watch.mark()
        self._begun.append(phase)

    def replay(self, begins: bool) -> None:
        """A stretch of the backward in which something is computed again."""
        self.phase(Phase.REPLAY if begins else Phase.BACKWARD)

    def ended(self) -> tuple[PhaseTime, ...]:
        """The step is over: each phase that it had. Waits for the GPU."""
        self._watch.mark()
        laps, host_laps = self._watch.laps(), self._watch.host_laps()
        ahead = map(sub, accumulate(laps), accumulate(host_laps))
        queued_ahead = [*list(ahead)[:-1], None]  # at its end the processor waits for the loss
        each = zip(laps, host_laps, queued_ahead, strict=True)
        stretches = grouped(zip(self._begun, each, strict=True))
        return tuple(
            PhaseTime(
                phase=phase,
                stretches=len(stretches[phase]),
                seconds=sum(seconds for seconds, _, _ in stretches[phase]),
                host_seconds=sum(seconds for _, seconds, _ in stretches[phase]),
                ahead_seconds=min(
                    (s for _, _, s in stretches[phase] if s is not None), default=None
                ),
            )
            for phase in _ORDER
            if phase in stretches
        )
