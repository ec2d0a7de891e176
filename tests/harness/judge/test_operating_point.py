"""The gate on made-up sessions with a known slowdown: what it catches, what it lets pass, and what
it cries wolf over. scripts/simulate_gate.py has the whole grid.

The bars: at no change at most 2 % of comparisons are regressions; of slowdowns of 5 %, the limit,
at most 5 % pass, whatever the noise; from three sessions on at least 95 % are caught where 1 % of
noise is within sessions. Each rate is of 300 comparisons: its standard error is 0.8 % at the first
bar.
"""

import pytest

from harness.judge.metrics import METRICS, STEP_TIME
from harness.judge.stats import Seen, relative_shift
from harness.judge.verdict import Verdict, judge
from harness.trial.trial import Device

pytest.importorskip("numpy")

from scripts.simulate_gate import LIMIT, Cell

NOISE = METRICS[STEP_TIME].assumed_noise(Device.CUDA)


@pytest.mark.parametrize("sessions", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["normal", "t3", "outliers", "drift", "drift down"])
def test_no_false_alarm_and_nothing_missed_at_two_percent_between(sessions: int, kind: str) -> None:
    cell = Cell(sessions=sessions, between=0.02, within=0.01, kind=kind)
    assert cell.rates(0.0, 300)[Verdict.REGRESSION] <= 0.02
    assert cell.rates(LIMIT, 300)[Verdict.PASS] <= 0.05


@pytest.mark.parametrize(("between", "within"), [(0.0, 0.03), (0.02, 0.01), (0.02, 0.03)])
def test_one_process_a_side(between: float, within: float) -> None:
    cell = Cell(sessions=1, between=between, within=within, repeats=1)
    assert cell.rates(0.0, 300)[Verdict.REGRESSION] <= 0.02
    assert cell.rates(LIMIT, 300)[Verdict.PASS] <= 0.05
    assert cell.rates(0.2 if not between else 0.3, 300)[Verdict.REGRESSION] >= 0.7


def test_a_slowdown_as_large_as_the_limit_is_caught_from_three_sessions_on() -> None:
    for sessions in (3, 4, 5):
        rates = Cell(sessions=sessions, between=0.0, within=0.01).rates(LIMIT, 300)
        assert rates[Verdict.REGRESSION] >= 0.95


def test_no_change_usually_passes_from_the_second_session_on() -> None:
    for sessions, least in ((2, 0.8), (3, 0.9), (5, 0.95)):
        rates = Cell(sessions=sessions, between=0.007, within=0.007).rates(0.0, 300)
        assert rates[Verdict.PASS] >= least
        assert rates[Verdict.REGRESSION] == 0.0


def test_half_the_limit_is_seldom_a_regression_and_twice_the_limit_always() -> None:
    cell = Cell(sessions=5, between=0.003, within=0.01)
    assert cell.rates(LIMIT / 2, 300)[Verdict.REGRESSION] <= 0.10
    assert cell.rates(2 * LIMIT, 300)[Verdict.REGRESSION] >= 0.999


def test_goldens_of_the_folder_let_one_session_pass() -> None:
    """Nine degrees of freedom that say 0.5 %: what they do not say is still held at 2 %."""
    golden, new = [[[1.0], [1.01], [0.99]]], [[[1.015], [1.02], [1.01]]]
    past = Seen(variance=0.005**2, freedom=9)
    known = type(NOISE)(process=NOISE.process, session=NOISE.session, history=past)
    verdicts = [
        judge(relative_shift(new, golden, noise), METRICS[STEP_TIME], LIMIT, 1.0).verdict
        for noise in (NOISE, known)
    ]
    assert verdicts == [Verdict.OPEN, Verdict.PASS]
