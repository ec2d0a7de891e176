from itertools import pairwise

import pytest

from harness.measure.session import PhasePeaks, PhaseTimes
from harness.trial.result import Phase, PhaseTime


class Levels:
    """A gauge that a test moves."""

    def __init__(self) -> None:
        self.now = self.highest = 5

    def go(self, *levels: int) -> None:
        for self.now in levels:
            self.highest = max(self.highest, self.now)

    def peak(self) -> int:
        return self.highest

    def restart(self) -> None:
        self.highest = self.now


def test_each_phase_has_its_own_peak() -> None:
    gauge = Levels()
    peaks = PhasePeaks(gauge)
    gauge.go(7, 6)
    peaks.phase(Phase.BACKWARD)
    gauge.go(9, 4)
    peaks.phase(Phase.FORWARD)  # 1F1B goes to and fro
    gauge.go(8, 3)
    peaks.phase(Phase.OPTIMIZER)
    gauge.go(2)
    peaks.close()
    assert peaks.peaks == {Phase.FORWARD: 8, Phase.BACKWARD: 9, Phase.OPTIMIZER: 3}


class Clocks:
    """A GPU and a processor whose marks a test sets: seconds of each at every mark."""

    clock = "cuda_event"

    def __init__(self, *moments: tuple[float, float]) -> None:
        self._moments, self._marked = moments, 0

    def mark(self) -> None:
        self._marked += 1

    def laps(self) -> tuple[float, ...]:
        return self._between(0)

    def host_laps(self) -> tuple[float, ...]:
        return self._between(1)

    def _between(self, which: int) -> tuple[float, ...]:
        if not self._marked:
            return ()
        assert self._marked == len(self._moments)
        seconds = [moment[which] for moment in self._moments]
        return tuple(after - before for before, after in pairwise(seconds))


def test_where_a_step_goes() -> None:
    """Ahead after the forward; after a replay the GPU waits; the optimizer waits for the loss."""
    recorder = PhaseTimes(
        Clocks((0, 0), (10, 4), (13, 7), (15, 14.5), (20, 16), (22, 18), (30, 20), (40, 40))
    )
    recorder.phase(Phase.FORWARD)
    recorder.phase(Phase.BACKWARD)
    recorder.replay(True)
    recorder.replay(False)
    recorder.replay(True)
    recorder.replay(False)
    recorder.phase(Phase.OPTIMIZER)
    found = {one.phase: one for one in recorder.ended()}
    assert list(found) == [Phase.FORWARD, Phase.BACKWARD, Phase.REPLAY, Phase.OPTIMIZER]
    assert found[Phase.FORWARD] == PhaseTime(
        phase=Phase.FORWARD, stretches=1, seconds=10, host_seconds=4, ahead_seconds=6
    )
    assert found[Phase.BACKWARD] == PhaseTime(
        phase=Phase.BACKWARD, stretches=3, seconds=16, host_seconds=6.5, ahead_seconds=4
    )
    replay = found[Phase.REPLAY]
    assert (replay.stretches, replay.seconds, replay.host_seconds) == (2, 4, 9.5)
    assert replay.ahead_seconds == pytest.approx(0.5)
    assert found[Phase.OPTIMIZER].ahead_seconds is None


def test_a_step_without_replays_has_no_such_phase() -> None:
    recorder = PhaseTimes(Clocks((0, 0), (1, 1), (2, 2)))
    recorder.phase(Phase.FORWARD)
    recorder.phase(Phase.BACKWARD)
    assert [one.phase for one in recorder.ended()] == [Phase.FORWARD, Phase.BACKWARD]
