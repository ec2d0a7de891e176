"""Regression with priors: against the closed form in one unknown, and against numpy in several."""

from random import Random

import numpy as np
import pytest

from advisor.learning.conditioning import prior


def test_one_unknown_is_the_mean_weighed_with_the_prior() -> None:
    found = prior([2.0])
    for value in (1.0, 3.0):
        found.add([1.0], value, weight=4.0)  # of variance 1/4 each
    after = found.posterior()
    assert after.mean == pytest.approx((16.0 / 8.25,))
    assert after.covariance == ((pytest.approx(1 / 8.25),),)
    assert after.mean_and_variance([2.0]) == (pytest.approx(32.0 / 8.25), pytest.approx(4 / 8.25))


def test_nothing_seen_is_the_prior() -> None:
    after = prior([0.5, 2.0]).posterior()
    assert after.mean == (0.0, 0.0)
    assert after.sigma(0) == pytest.approx(0.5)
    assert after.mean_and_variance([1.0, 1.0])[1] == pytest.approx(0.25 + 4.0)


def test_several_unknowns_as_numpy_solves_them() -> None:
    random, sigmas = Random(1), (0.1, 0.5, 2.0, 1.0)
    found, matrix, vector = prior(sigmas), np.diag([s**-2 for s in sigmas]), np.zeros(4)
    for _ in range(9):
        design = [random.gauss(0, 1) for _ in sigmas]
        value, weight = random.gauss(0, 1), random.uniform(1, 100)
        found.add(design, value, weight)
        matrix += weight * np.outer(design, design)
        vector += weight * value * np.array(design)
    after = found.posterior()
    assert np.allclose(after.covariance, np.linalg.inv(matrix))
    assert np.allclose(after.mean, np.linalg.solve(matrix, vector))
