"""Who leads, how sure that is, and when a trial is slower."""

import math

import pytest

pytest.importorskip("scipy")

from harness.sweeps.history import History, Outcome
from harness.sweeps.priority import Standing
from harness.sweeps.space import Point
from harness.trial.result import TrialStatus
from tests.harness.sweeps.conftest import measured

A, B, C = (Point(layout="dp1", micro_batch_size=n, recompute="none") for n in (1, 2, 4))
T4_ONE_SIDED_95 = 2.1318  # Student's t, 4 degrees of freedom, any table


def standing(
    *rows: tuple[Point, float, int], budget: int | None = None, noise: float = 0.01
) -> Standing:
    """Processes as (point, seconds, peak)."""
    finished: dict[Point, dict[int, Outcome]] = {}
    for point, seconds, peak in rows:
        repeats = finished.setdefault(point, {})
        repeats[len(repeats)] = measured(point, seconds, peak)
    return Standing(History(finished=finished), budget, noise)


def test_the_leader_is_the_fastest_within_the_budget() -> None:
    rows = ((A, 1.0, 20), (B, 2.0, 10), (C, 3.0, 10))
    assert standing(*rows).leader == A
    assert standing(*rows, budget=10).leader == B
    assert standing().leader is None
    assert list(standing(*rows, budget=10).observed()) == [A, B, C], "all times teach"


def test_what_ran_out_of_memory_once_cannot_lead_and_what_failed_says_nothing() -> None:
    once = {0: measured(A), 1: Outcome(name="a1", status=TrialStatus.OOM)}
    failed = {0: measured(B), 1: Outcome(name="b1", status=TrialStatus.FAILED)}
    found = Standing(History(finished={A: once, B: failed}), None, 0.01)
    assert list(found.seconds) == [B]


def test_the_probability_to_be_faster_is_student_s_with_the_pooled_noise() -> None:
    """One process each, 1 % assumed with four degrees of freedom: a gap of t x 1 % x sqrt(2) leaves
    5 %; half of that at the margin moves it there."""
    gap = T4_ONE_SIDED_95 * 0.01 * math.sqrt(2)
    found = standing((A, 1.0, 1), (B, math.exp(gap), 1))
    assert found.faster(B, 0.0) == pytest.approx(0.05, abs=1e-4)
    assert found.faster(B, 0.01) < 0.05
    assert found.rivals(0.0, 0.95) == [] or found.faster(B, 0.0) > 0.05
    assert found.rivals(0.0, 0.96) == [B]


def test_repeats_replace_the_assumed_noise() -> None:
    """Two points, two processes each, ln apart by d: squares d^2 / 2 each, two degrees of freedom
    besides the four assumed ones."""
    rows = ((A, 1.0, 1), (A, math.exp(0.04), 1), (B, 1.5, 1), (B, 1.5 * math.exp(0.04), 1))
    expected = math.sqrt((4 * 0.01**2 + 2 * 0.04**2 / 2) / 6)
    assert standing(*rows).noise == pytest.approx(expected)
    assert standing(*rows, noise=0.05).noise > expected


def test_rivals_are_those_that_overlap_together() -> None:
    rows = [(A, 1.0, 1), (B, 1.005, 1), (C, 1.5, 1)]
    assert standing(*rows).rivals(0.01, 0.975) == [B]
    assert standing(*rows, *rows[:2] * 40).rivals(0.01, 0.975) == [], "as fast, within the margin"


def test_leaders_are_tied_while_the_noise_does_not_tell_them_apart() -> None:
    rows = [(A, 1.0, 1), (B, 1.005, 1), (C, 1.5, 1)]
    assert standing(*rows).tied == (A, B)
    assert standing(*rows, *rows[:2] * 40).tied == (), "0.5 % is a difference after 41 processes"
    assert standing(rows[0]).tied == standing().tied == ()


def test_a_trial_is_pruned_above_what_noise_explains() -> None:
    limit = standing((A, 1.0, 1)).limit_seconds
    assert limit == pytest.approx(math.exp(T4_ONE_SIDED_95 * 0.01 * math.sqrt(2)), rel=1e-4)
    assert standing().limit_seconds is None
