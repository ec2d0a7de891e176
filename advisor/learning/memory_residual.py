"""How far measured peaks are off the predicted ones: what lives from step to step, activations,
what torch's allocator leaves unused, and what lies outside of it.

Each relative to its own prediction (what is unused: to the allocated bytes), normally distributed
around 0 before any run with the width that the shipped prediction states.
"""

from functools import cached_property
from math import sqrt
from typing import Final

from msgspec import Struct

from advisor.learning.conditioning import Posterior, prior, scatter

_ROW_SIGMA: Final = 0.001
"""Of allocated bytes from setting to setting: 38 peaks of results/measured are off by 0.03 % in the
mean, the worst by 0.4 %."""
_OUTSIDE_ROW_SIGMA: Final = 0.05
"""Of context and communicators, from job to job: a judgement."""


class MemoryRow(Struct, frozen=True, kw_only=True):
    """Predicted and measured bytes of the fullest rank of one setting; None: not measured.

    fixed: of `allocated`, what no recompute changes. unused: what the simulated allocator holds
    besides. outside: what the card gives besides that.
    """

    fixed: int
    allocated: int
    unused: int
    outside: int
    measured_allocated: int | None
    measured_unused: int | None
    measured_outside: int | None


class Width(Struct, frozen=True):
    """Standard deviations that the shipped predictions state, as the rows are relative."""

    allocated: float
    unused: float
    outside: float


class Shift(Struct, frozen=True):
    """What is expected to be measured beyond what is predicted, as a share of it, and the standard
    deviation of one more row."""

    mean: float
    sigma: float


class MemoryResidual(Struct, frozen=True, kw_only=True, dict=True):
    """Rows of jobs of the same kinds."""

    rows: tuple[MemoryRow, ...]
    width: Width

    @cached_property
    def states(self) -> Posterior:
        """Relative errors of what lives from step to step, and of activations."""
        found = prior((self.width.allocated, self.width.allocated))
        for row in self.rows:
            if row.measured_allocated is not None:
                share = row.fixed / row.allocated
                error = row.measured_allocated / row.allocated - 1
                found.add((share, 1 - share), error, 1 / _ROW_SIGMA**2)
        return found.posterior()

    @property
    def measures_unused(self) -> bool:
        """Whether any row says what the allocator leaves unused."""
        return any(row.measured_unused is not None for row in self.rows)

    @cached_property
    def unused(self) -> Shift:
        """Of what the allocator leaves unused, as a share of the allocated bytes."""
        errors = [
            (row.measured_unused - row.unused) / row.allocated
            for row in self.rows
            if row.measured_unused is not None
        ]
        # families of runs scatter as the rows of one do (memory/allocator.py)
        half = self.width.unused / sqrt(2)
        return _shift(errors, half, half)

    @cached_property
    def outside(self) -> Shift:
        """Of context and communicators."""
        errors = [
            row.measured_outside / row.outside - 1
            for row in self.rows
            if row.measured_outside is not None
        ]
        return _shift(errors, self.width.outside, _OUTSIDE_ROW_SIGMA)

    @cached_property
    def scatter(self) -> float:
        """How many times as far allocated bytes lie off one prediction as its width says."""
        rows = sum(row.measured_allocated is not None for row in self.rows)
        return scatter(self.states.misfit, rows)

    def allocated(self, fixed: int, allocated: int) -> Shift:
        """Of allocated bytes of which so many are `fixed`."""
        share = fixed / allocated
        mean, variance = self.states.mean_and_variance((share, 1 - share))
        return Shift(mean, self.scatter * sqrt(variance + _ROW_SIGMA**2))


def _shift(errors: list[float], width: float, row_sigma: float) -> Shift:
    """Of a quantity with an error common to all rows, and one of each."""
    precision = 1 / width**2 + len(errors) / row_sigma**2
    mean = sum(errors) / row_sigma**2 / precision
    return Shift(mean, sqrt(1 / precision + row_sigma**2))
