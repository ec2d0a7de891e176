from harness.measure.phase_peaks import PhasePeaks
from harness.trial.result import Phase


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
