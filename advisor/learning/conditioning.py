"""Linear regression with normal priors, for a handful of unknowns, without numpy."""

from collections.abc import Sequence
from math import sqrt
from operator import mul
from typing import Final

from msgspec import Struct

Vector = tuple[float, ...]


class Posterior(Struct, frozen=True):
    """Unknowns after the observations: their means, and the covariance of their errors. misfit: the
    sum of squares by which the observations lie off what was expected of them before any, each in
    its standard deviation given the others; about their number where all is as it was stated."""

    mean: Vector
    covariance: tuple[Vector, ...]
    misfit: float = 0.0

    def mean_and_variance(self, design: Sequence[float]) -> tuple[float, float]:
        """Mean and variance of the sum of the unknowns, weighed by `design`."""
        mean = sum(map(mul, design, self.mean))
        rows = zip(design, self.covariance, strict=True)
        return mean, max(0.0, sum(x * sum(map(mul, row, design)) for x, row in rows))

    def sigma(self, number: int) -> float:
        """Standard deviation of one unknown."""
        return sqrt(self.covariance[number][number])


class Information(Struct):
    """Precision matrix and its product with the means; observations add to both, and their squares
    to `squares`."""

    matrix: list[list[float]]
    vector: list[float]
    squares: float = 0.0

    def add(self, design: Sequence[float], value: float, weight: float) -> None:
        """An observation of the sum of the unknowns weighed by `design`; weight: one over its
        variance, negative to take one away."""
        for x, row in zip(design, self.matrix, strict=True):
            for column, y in enumerate(design):
                row[column] += weight * x * y
        for number, x in enumerate(design):
            self.vector[number] += weight * x * value
        self.squares += weight * value**2

    def posterior(self) -> Posterior:
        """The unknowns; the matrix must be positive definite, as one of proper priors is."""
        covariance = _inverse(self.matrix)
        mean = tuple(sum(map(mul, row, self.vector)) for row in covariance)
        misfit = self.squares - sum(map(mul, mean, self.vector))
        return Posterior(mean, covariance, max(0.0, misfit))


_SURPRISE: Final = 3.09
"""Of one in a thousand, in standard deviations of a normal distribution."""


def scatter(misfit: float, observations: int) -> float:
    """How many times as far the observations lie as was stated, root mean square; 1 where chance
    gives as much in more than one case of a thousand (chi squared; Wilson and Hilferty 1931)."""
    if not observations:
        return 1.0
    spread = 2 / (9 * observations)
    usual = (1 - spread + _SURPRISE * sqrt(spread)) ** 3
    found = misfit / observations
    return sqrt(found) if found > usual else 1.0


def prior(sigmas: Sequence[float]) -> Information:
    """Unknowns around 0, independent of each other."""
    information = Information([[0.0] * len(sigmas) for _ in sigmas], [0.0] * len(sigmas))
    for number, sigma in enumerate(sigmas):
        information.matrix[number][number] = 1.0 / sigma**2
    return information


def _inverse(matrix: Sequence[Sequence[float]]) -> tuple[Vector, ...]:
    """By Gauss and Jordan; positive definite matrices need no pivots."""
    size = len(matrix)
    rows = [
        [*row, *(float(column == number) for column in range(size))]
        for number, row in enumerate(matrix)
    ]
    for number, pivot in enumerate(rows):
        scale = pivot[number]
        pivot[:] = [value / scale for value in pivot]
        for other in rows:
            if other is not pivot and other[number]:
                factor = other[number]
                other[:] = [x - factor * y for x, y in zip(other, pivot, strict=True)]
    return tuple(tuple(row[size:]) for row in rows)
