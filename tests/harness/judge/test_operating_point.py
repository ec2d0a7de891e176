"""The gate on synthetic series with a known shift: what it catches, and what it cries wolf over.

The bars: at no shift at most 2 % of comparisons are regressions; of slowdowns of 5 %, the limit, at
least 95 % are caught at 1 % noise with 5 repeats. Each rate is of 500 comparisons, so that its
own standard error is 0.6 % at the first bar, and 1 % at the second.
"""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from harness.judge.metrics import METRICS, STEP_TIME, TFLOPS
from harness.judge.stats import relative_shift
from harness.judge.verdict import Verdict, judge

np = pytest.importorskip("numpy")

COMPARISONS = 500
REPEATS = 5
LIMIT = 0.05


def series(random: Any, centre: float, between: float, within: float, repeats: int) -> Any:
    """[COMPARISONS, repeats, 10]: processes that differ, steps that follow each other (AR(1) with
    coefficient 0.7), relative standard deviations `between` and `within`."""
    processes = random.normal(0.0, between, size=(COMPARISONS, repeats, 1))
    steps = random.normal(0.0, within, size=(COMPARISONS, repeats, 10))
    for step in range(1, 10):
        steps[..., step] = 0.7 * steps[..., step - 1] + (1 - 0.49) ** 0.5 * steps[..., step]
    return centre * np.exp(processes + steps)


@cache
def rates(
    slowdown: float, between: float, within: float = 0.0, repeats: int = REPEATS
) -> dict[Verdict, float]:
    """Share of each verdict on the step time."""
    random = np.random.default_rng(20_260_701)
    golden = series(random, 1.0, between, within, repeats).tolist()
    new = series(random, 1.0 + slowdown, between, within, repeats).tolist()
    metric = METRICS[STEP_TIME]
    counts = Counter(
        judge(relative_shift(now, old, 0.01), metric, LIMIT, 1.0).verdict
        for now, old in zip(new, golden, strict=True)
    )
    return {verdict: counts[verdict] / COMPARISONS for verdict in Verdict}


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.0), (0.0, 0.01), (0.007, 0.007)])
def test_a_slowdown_as_large_as_the_limit_is_caught(between: float, within: float) -> None:
    """1 % noise in all: between processes, within them, and half of each."""
    assert rates(LIMIT, between, within)[Verdict.REGRESSION] >= 0.95


def test_more_noise_than_the_bar_speaks_of_catches_less() -> None:
    """1 % between processes and 1 % within them as well: beyond the bar, and said here."""
    assert 0.90 <= rates(LIMIT, 0.01, 0.01)[Verdict.REGRESSION] <= 0.96


@pytest.mark.parametrize(
    ("between", "repeats"),
    [(0.01, 1), (0.02, 1), (0.02, 2), (0.02, 3), (0.01, 5), (0.03, 5), (0.10, 5)],
)
def test_no_change_is_no_regression_at_any_noise(between: float, repeats: int) -> None:
    """Nor with one process a side at twice the assumed noise; few repeats leave it undecided."""
    assert rates(0.0, between, repeats=repeats)[Verdict.REGRESSION] <= 0.02


def test_one_process_a_side_still_sees_a_large_slowdown() -> None:
    assert rates(0.16, 0.01, repeats=1)[Verdict.REGRESSION] >= 0.99


def test_no_change_passes_at_one_percent_noise() -> None:
    found = rates(0.0, 0.01)
    assert found[Verdict.REGRESSION] == 0.0
    assert found[Verdict.PASS] >= 0.99


def test_half_the_limit_is_seldom_a_regression_and_twice_the_limit_always() -> None:
    """Half the limit: 6 % are called regressions, which is the price of catching the limit."""
    assert rates(LIMIT / 2, 0.01)[Verdict.REGRESSION] <= 0.10
    assert rates(2 * LIMIT, 0.01)[Verdict.REGRESSION] >= 0.999


@pytest.mark.parametrize(("repeats", "least"), [(2, 0.92), (3, 0.92), (5, 0.945)])
def test_the_interval_covers_the_true_shift(repeats: int, least: float) -> None:
    """95 % are meant; a bootstrap of two or three processes cannot quite keep that."""
    random = np.random.default_rng(3)
    pairs = np.exp(random.normal(0.0, 0.01, size=(COMPARISONS, 2, repeats, 1))).tolist()
    shifts = [relative_shift(new, old, 0.01).interval for new, old in pairs]
    covered = sum(one.low <= 1.0 <= one.high for one in shifts) / COMPARISONS
    assert least <= covered <= 0.975


def test_throughput_is_judged_in_its_own_direction() -> None:
    old = [[700.0], [705.0], [695.0], [702.0], [698.0]]
    slow = [[0.9 * value for value in steps] for steps in old]
    worse, better = relative_shift(slow, old, 0.01), relative_shift(old, slow, 0.01)
    assert judge(worse, METRICS[TFLOPS], LIMIT, -70.0).verdict is Verdict.REGRESSION
    assert judge(better, METRICS[TFLOPS], LIMIT, 70.0).verdict is Verdict.STALE
