"""The warm-up rule on synthetic series."""

import itertools
from collections.abc import Sequence

import pytest

from harness.measure.warmup import is_warm, settled
from harness.trial.trial import MeasurementPlan

PLAN = MeasurementPlan(min_warmup_steps=3, max_warmup_steps=6, warmup_tolerance=0.05)


def steps_until_warm(series: Sequence[float], plan: MeasurementPlan = PLAN) -> int:
    return next(n for n in itertools.count() if is_warm(series[:n], plan))


@pytest.mark.parametrize(
    ("series", "steps"),
    [
        pytest.param([1.0] * 9, 3, id="calm from the start: the least"),
        pytest.param([53.0, 1.0, 1.0, 1.0, 1.0], 4, id="a compiling first step is waited out"),
        pytest.param([9.0, 4.0, 1.04, 1.0, 1.02, 1.0], 5, id="within 5 % of their median"),
        pytest.param([9.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0], 6, id="a late slow step, then the most"),
        pytest.param([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0], 6, id="never calm: the most"),
    ],
)
def test_the_warm_up_ends_by_rule(series: list[float], steps: int) -> None:
    assert steps_until_warm(series) == steps


def test_the_least_is_always_run() -> None:
    plan = MeasurementPlan(min_warmup_steps=5, max_warmup_steps=9)
    assert steps_until_warm([1.0] * 9, plan) == 5


def test_a_most_below_the_least_gives_the_least() -> None:
    plan = MeasurementPlan(min_warmup_steps=4, max_warmup_steps=2)
    assert steps_until_warm([9.0, 5.0, 3.0, 2.0, 1.0], plan) == 4


def test_one_step_can_be_a_whole_warm_up() -> None:
    plan = MeasurementPlan(min_warmup_steps=1, max_warmup_steps=1)
    assert steps_until_warm([9.0, 1.0], plan) == 1


@pytest.mark.parametrize(("last", "calm"), [(1.05, True), (1.06, False)])
def test_agreement_is_range_over_median(last: float, calm: bool) -> None:
    assert settled([7.0, 1.0, 1.0, last], 0.05 + 1e-9) is calm


def test_two_steps_never_agree() -> None:
    assert not settled([1.0, 1.0], 0.05)
