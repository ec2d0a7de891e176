"""Peaks of allocated bytes by phase of a step: fake storages, a CPU's, or the CUDA allocator's."""

from typing import Final, Protocol

import torch

from harness.measure.memory import StorageMeter
from harness.trial.result import Phase

PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Gauge(Protocol):
    """Knows the highest number of bytes since it was last restarted."""

    def peak(self) -> int:
        """The highest since then."""

    def restart(self) -> None:
        """Count from what is allocated now."""


class MeterGauge:
    """Of storages that a dispatch mode follows."""

    def __init__(self, meter: StorageMeter) -> None:
        self._meter = meter

    def peak(self) -> int:
        """The highest number of live bytes."""
        return self._meter.peak_bytes

    def restart(self) -> None:
        """Count from what is live now."""
        self._meter.peak_bytes = self._meter.live_bytes


class CudaGauge:
    """Of the caching allocator: what torch.cuda.max_memory_allocated says."""

    def peak(self) -> int:
        """The highest number of allocated bytes."""
        return torch.cuda.max_memory_allocated()

    def restart(self) -> None:
        """Forget the peak."""
        torch.cuda.reset_peak_memory_stats()


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
