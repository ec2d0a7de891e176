"""The probability to fit, after what was measured of others."""

import pytest

pytest.importorskip("numpy")

from harness.sweeps.fitting import fit_chances
from harness.sweeps.history import Expected, History, Outcome
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import measured

SMALL, EDGE, LARGE = (Point(layout="dp1", micro_batch_size=n, recompute="none") for n in (1, 2, 4))
ROOM = 1000
EXPECTED = {
    SMALL: Expected(rank=1, step_seconds=1.0, peak_bytes=900, fit_probability=0.99),
    EDGE: Expected(rank=2, step_seconds=1.0, peak_bytes=990, fit_probability=0.6),
    LARGE: Expected(rank=3, step_seconds=1.0, peak_bytes=1100, fit_probability=0.01),
}


def test_before_anything_is_measured_it_is_the_advisor_s() -> None:
    found = fit_chances(EXPECTED, History(), ROOM)
    assert found[EDGE] == pytest.approx(0.6)
    unknown = EXPECTED | {EDGE: Expected()}
    assert fit_chances(unknown, History(), ROOM)[EDGE] == 1.0


def test_peaks_above_the_predicted_ones_make_others_less_likely() -> None:
    def after(peak: int) -> float:
        seen = History(finished={SMALL: {0: measured(SMALL, 1.0, peak)}})
        return fit_chances(EXPECTED, seen, ROOM)[EDGE]

    assert after(930) < 0.5 < 0.6 < after(870)


def test_what_runs_out_of_memory_counts_as_needing_all_the_room() -> None:
    oom = History(finished={SMALL: {0: Outcome(name="x", status=TrialStatus.OOM)}})
    found = fit_chances(EXPECTED, oom, ROOM)
    assert found[EDGE] < 0.05
    assert fit_chances(EXPECTED, oom, None)[EDGE] == pytest.approx(0.6), "room for everything"
