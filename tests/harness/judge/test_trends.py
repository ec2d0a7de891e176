"""Steps and drift in short series, drawn from seeds."""

from random import Random

import pytest

from harness.judge.trends import explain, find_steps, find_trend


def series(count: int, step: float = 0.0, slope: float = 0.0, seed: int = 1) -> list[float]:
    """A step in the middle, a slope a place; a scatter of 1."""
    random = Random(seed)
    return [random.gauss(0, 1) + step * (k >= count // 2) + slope * k for k in range(count)]


def test_a_drift_needs_four_and_its_line_is_theil_and_sens() -> None:
    assert find_trend([1.0, 2.0, 3.0]) is None
    found = find_trend([0.0, 1.0, 2.0, 30.0, 4.0])
    assert (found.slope, found.start) == (1.0, 0.0), "one outlier moves nothing"
    four = find_trend([1.0, 2.0, 3.0, 4.0])
    assert four.p == pytest.approx(2 / 24)
    assert find_trend([2.0, 1.0, 4.0, 3.0]) is None
    assert find_trend([1.0] * 6) is None


def test_steps_are_found_where_they_are_and_seldom_elsewhere() -> None:
    places = [[step.at for step in find_steps(series(12, step=4.0, seed=k))] for k in range(20)]
    assert sum(6 in found for found in places) >= 17
    alarms = sum(bool(find_steps(series(12, seed=k))) for k in range(100))
    assert alarms <= 9  # 5 are meant
    assert find_steps([1.0, 1.0, 2.0]) == ()
    first, second = find_steps([0.0, 0.1] * 4 + [5.0, 5.1] * 4 + [1.0, 1.1] * 4)
    assert (first.at, second.at) == (8, 16)


def test_a_drift_is_no_staircase_and_a_step_no_drift() -> None:
    steps, trend, line = explain(series(14, slope=1.0))
    assert steps == ()
    assert line[-1] - line[0] == pytest.approx(13 * trend.slope)
    steps, trend, level = explain(series(14, step=6.0, seed=2))
    assert ([step.at for step in steps], trend) == ([7], None)
    assert 4 < level[7] - level[6] < 8
    assert len(set(level)) == 2
    assert explain([1.0, 1.0])[:2] == ((), None)
