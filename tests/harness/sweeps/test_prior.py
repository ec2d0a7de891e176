"""Predictions corrected by what was measured: in closed form on two and three points."""

import math

import pytest

from harness.sweeps.history import Expected, History, Outcome
from harness.sweeps.prior import (
    SECONDS,
    UNKNOWN_SPREAD,
    Belief,
    Observed,
    beliefs,
    fit_chances,
    kind_of,
)
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import measured

pytest.importorskip("numpy")

NONE, MLP, FULL = (
    Point(layout="dp1", micro_batch_size=1, recompute=spec)
    for spec in ("none", "selective:mlp", "full:uniform:1")
)
PREDICTED = {NONE: 1.0, MLP: 1.1, FULL: 1.3}
SHARED = sum(SECONDS[name] ** 2 for name in ("sweep", "layout", "micro_batch_size"))
TOTAL = sum(spread**2 for spread in SECONDS.values())


def test_before_anything_is_measured_it_is_the_prediction() -> None:
    found = beliefs(PREDICTED, {}, SECONDS)
    assert found[MLP].log == pytest.approx(math.log(1.1))
    assert found[MLP].spread == pytest.approx(math.sqrt(TOTAL))


def test_one_measurement_moves_the_others_by_what_they_share() -> None:
    """Two normal variables of variance v with covariance c, the one seen with noise n: the other's
    mean moves by c / (v + n) of the difference, its variance falls by c^2 / (v + n)."""
    noise = 0.01**2
    found = beliefs(PREDICTED, {NONE: Observed(math.log(1.05), noise)}, SECONDS)
    moved = SHARED / (TOTAL + noise) * math.log(1.05)
    assert found[FULL].log == pytest.approx(math.log(1.3) + moved)
    assert found[FULL].spread == pytest.approx(math.sqrt(TOTAL - SHARED**2 / (TOTAL + noise)))
    assert found[NONE].spread < noise**0.5


def test_points_of_the_same_kind_move_more() -> None:
    block = Point(layout="dp1", micro_batch_size=1, recompute="full:block:2")
    seen = {FULL: Observed(math.log(1.3 * 1.05), 1e-6)}
    found = beliefs(PREDICTED | {block: 1.2}, seen, SECONDS)
    assert found[block].log - math.log(1.2) > found[NONE].log > 0


def test_errors_of_each_point_alone_teach_to_trust_no_prediction() -> None:
    points = [
        Point(layout="dp1", micro_batch_size=1, recompute=f"full:block:{n}") for n in range(1, 10)
    ]
    predicted = dict.fromkeys(points, 1.0)
    seen = {p: Observed(0.15 * (-1) ** k, 1e-4) for k, p in enumerate(points[:8])}
    rough = beliefs(predicted, seen, SECONDS)[points[8]]
    smooth = beliefs(predicted, {p: Observed(0.15, 1e-4) for p in seen}, SECONDS)[points[8]]
    assert rough.spread > 0.08, "what was seen lies 15 % apart"
    assert smooth.log == pytest.approx(0.15, abs=0.01)
    assert smooth.spread < 0.03


def test_what_nobody_predicts_is_taken_for_the_median_point_and_hardly_trusted() -> None:
    own = Point(layout="dp1", micro_batch_size=1, recompute="op:save_attention")
    found = beliefs(PREDICTED | {own: None}, {}, SECONDS)[own]
    assert found.log == pytest.approx(math.log(1.1))
    assert found.spread > UNKNOWN_SPREAD
    nothing = beliefs(dict.fromkeys(PREDICTED), {NONE: Observed(math.log(3.0), 0.0)}, SECONDS)
    assert nothing[FULL].log == pytest.approx(math.log(3.0))


def test_expected_improvement_probability_and_kind() -> None:
    even = Belief(0.0, 0.1)
    assert even.below(0.0) == pytest.approx(0.5)
    assert even.improvement(0.0) == pytest.approx(0.1 / math.sqrt(2 * math.pi))
    assert Belief(-1.0, 0.01).improvement(0.0) == pytest.approx(1.0)
    kinds = {"none": "none", "full:block:4": "full", "selective:core_attn,mlp": "selective"}
    kinds["selective:mlp+offload=attn_norm"] = "selective+offload"
    assert {spec: kind_of(spec) for spec in kinds} == kinds


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
    for unknown in (Expected(), Expected(fit_probability=0.6), Expected(peak_bytes=990)):
        assert fit_chances(EXPECTED | {EDGE: unknown}, History(), ROOM)[EDGE] == 1.0


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
