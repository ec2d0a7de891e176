"""The rule, on shifts given by hand."""

import pytest

from harness.judge.metrics import METRICS, STEP_TIME, TFLOPS
from harness.judge.stats import Interval, Noise, Seen, Shift, Spread
from harness.judge.verdict import Verdict, Worsening, judge

MIB = 2**20


def shift(ratio: float, half: float, noise: float = 0.01) -> Shift:
    seen = Seen(variance=noise**2, freedom=8)
    assumed = Noise(process=noise, session=noise)
    spread = Spread(within=seen, between=seen, noise=assumed, repeats=3.0)
    near, wide = (Interval(ratio - width, ratio + width) for width in (half, 1.5 * half))
    sizes = {"processes": 3, "golden_processes": 5}
    return Shift(ratio=ratio, interval=near, strict=wide, spread=spread, **sizes)


@pytest.mark.parametrize(
    ("ratio", "half", "verdict"),
    [
        (1.00, 0.010, Verdict.PASS),
        (1.03, 0.010, Verdict.PASS),  # a real slowdown, and surely less than the limit
        (1.045, 0.010, Verdict.REGRESSION),  # the limit is within the noise
        (1.08, 0.010, Verdict.REGRESSION),
        (1.03, 0.025, Verdict.OPEN),  # less than two thirds of the limit
        (1.04, 0.035, Verdict.OPEN),  # no change is not excluded
        (1.00, 0.060, Verdict.OPEN),
        (0.93, 0.010, Verdict.STALE),
        (0.97, 0.030, Verdict.PASS),
    ],
)
def test_step_time_against_five_percent(ratio: float, half: float, verdict: Verdict) -> None:
    assert judge(shift(ratio, half), METRICS[STEP_TIME], 0.05, 1.0).verdict is verdict


def test_throughput_worsens_downwards() -> None:
    worse = Worsening.of(shift(0.93, 0.01), -1)
    assert worse.estimate == pytest.approx(0.07)
    assert (worse.interval.low, worse.interval.high) == pytest.approx((0.06, 0.08))
    assert Worsening.of(shift(0.93, 0.01), 1).interval.low == pytest.approx(-0.08)
    assert judge(shift(0.93, 0.01), METRICS[TFLOPS], 0.05, -40.0).verdict is Verdict.REGRESSION
    assert judge(shift(1.07, 0.01), METRICS[TFLOPS], 0.05, 40.0).verdict is Verdict.STALE


def test_a_certain_regression_says_so() -> None:
    metric = METRICS[STEP_TIME]
    assert "whole interval" in judge(shift(1.08, 0.01), metric, 0.05, 1.0).reason
    assert "may be as large as the limit" in judge(shift(1.05, 0.01), metric, 0.05, 1.0).reason
    hopeless = judge(shift(1.0, 0.9, noise=0.9), metric, 0.05, 1.0)
    assert hopeless.needed is None
    assert "too noisy" in hopeless.reason


def test_what_may_be_no_change_or_less_than_the_limit_is_not_beyond() -> None:
    rows = ((0.0, 0.1, False), (1e-9, 0.1, True), (1e-9, 0.10001, False), (1e-9, 0.08, True))
    for low, limit, is_beyond in rows:
        interval, strict = Interval(low=0.02, high=0.1), Interval(low=low, high=0.12)
        worse = Worsening(estimate=0.09, interval=interval, strict=strict)
        assert worse.beyond(limit) is is_beyond
