"""The lower bound of a running median."""

import random

import pytest

from harness.measure.pruning import median_at_least


def test_the_bound_is_an_order_statistic_of_the_binomial() -> None:
    """P(all n above the median) = 2^-n: 1/16 of four steps, 1/32 of five; of eight, 9/256 that at
    most one is below it."""
    assert median_at_least([3.0, 1.0, 2.0, 4.0]) is None
    assert median_at_least([5.0, 3.0, 1.0, 2.0, 4.0]) == 1.0
    assert median_at_least([float(n) for n in range(8, 0, -1)]) == 2.0
    assert median_at_least([3.0, 1.0, 2.0, 4.0], level=0.9) == 1.0


def test_it_holds_with_the_stated_probability() -> None:
    chance = random.Random(0)
    draws = [[chance.expovariate(1.0) for _ in range(10)] for _ in range(2000)]
    above = sum((median_at_least(draw) or 0.0) > 0.6931 for draw in draws)  # ln 2
    # of ten: P(at most one below) = 11/1024; five standard errors of 2,000 draws
    assert above / 2000 == pytest.approx(11 / 1024, abs=5 * (0.0107 * 0.99 / 2000) ** 0.5)
