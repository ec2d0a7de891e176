"""Loss curves are compared at the training steps that both have."""

import math

import pytest

from harness.judge.goldens.series import Process, Series
from harness.judge.loss import furthest
from harness.judge.metrics import LOSS


def process(*losses: float, first: int = 1) -> Process:
    steps = tuple(range(first, first + len(losses)))
    return Process(name="p", series={LOSS: Series(steps=steps, values=losses)})


def test_the_worst_step_and_how_many_were_compared() -> None:
    found = furthest([process(3.0, 2.2, 1.0)], [process(3.0, 2.0, 1.05)])
    assert found is not None
    assert (found.step, found.golden, found.new, found.steps) == (2, 2.0, 2.2, 3)
    assert found.change == pytest.approx(0.1)


def test_only_shared_steps_count() -> None:
    found = furthest([process(9.0, 2.0, 1.0, first=3)], [process(5.0, 4.0, 9.0, 2.0)])
    assert found is not None
    assert (found.step, found.change, found.steps) == (3, 0.0, 2)
    assert furthest([process(1.0, first=10)], [process(1.0)]) is None
    assert furthest([Process(name="p", series={})], [process(1.0)]) is None
    assert furthest([], []) is None


def test_of_several_processes_the_median_step_by_step() -> None:
    found = furthest([process(3.0, 2.0), process(3.0, 2.1), process(9.0, 2.2)], [process(3.0, 2.0)])
    assert found is not None
    assert (found.step, found.new) == (2, 2.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_process_that_diverged_is_the_worst(bad: float) -> None:
    for new, golden in (
        ([process(3.0, bad), process(3.0, 2.0)], [process(3.0, 2.0)]),
        ([process(3.0, 2.0)], [process(3.0, bad)]),
    ):
        found = furthest(new, golden)
        assert found is not None
        assert (found.step, found.change) == (2, math.inf)


def test_a_golden_of_zero() -> None:
    same, other = furthest([process(0.0)], [process(0.0)]), furthest([process(0.1)], [process(0.0)])
    assert same is not None
    assert other is not None
    assert (same.change, other.change) == (0.0, math.inf)


def test_the_sign_of_a_negative_loss_is_that_of_the_change() -> None:
    found = furthest([process(-1.1)], [process(-1.0)])
    assert found is not None
    assert found.change == pytest.approx(-0.1)
