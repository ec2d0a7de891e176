"""Constants that measured times move, and what a fit finds: of kernels, collectives and steps."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import exp
from statistics import fmean
from typing import Any, Final, Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy.optimize import least_squares

from advisor.base.units import significant
from advisor.hardware.calibration import Calibration

_FRACTIONS: Final = ("_efficiency", "_fraction", "_share")
Row = TypeVar("Row")


class Constant(Struct, frozen=True, kw_only=True):
    """A number that a fit moves, a field of Calibration or what the model has beyond it.

    value: where the fit begins; sigma: the relative width of the prior around it. unit, reason: for
    pages. family: the GPUs whose constant it is (a100, h100, b200); empty: one for all.
    """

    field: str
    value: float
    sigma: float
    unit: str = ""
    reason: str = ""
    family: str = ""

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.field} {self.family}".strip()

    def moves(self, family: str | None) -> bool:
        """Whether it may change what is predicted for GPUs of `family`."""
        return self.family in ("", family)

    def at(self, shift: float) -> float:
        """The value so many widths off its prior; what is a part of a whole is 1 at most."""
        value = self.value * exp(self.sigma * shift)
        bounded = self.field.endswith(_FRACTIONS) and not self.field.startswith("quantized")
        return min(1.0, value) if bounded else value


class Fit(Struct, frozen=True, kw_only=True):
    """Constants and how far each was moved, in widths of its prior.

    base: by family, the calibration with all that is not fitted. digits: of every fitted value;
    None for all. Of whole steps alone: widths: how much of each prior's width is left (1: the rows
    say nothing about it); left_out: by way of grouping, of every row the logarithmic error
    by a fit that has not seen its group.
    """

    constants: tuple[Constant, ...]
    shifts: tuple[float, ...]
    base: Mapping[str, Calibration]
    digits: int | None = None
    widths: Mapping[str, float] = {}
    left_out: Mapping[str, tuple[float, ...]] = {}

    def values(self, family: str) -> dict[str, float]:
        """Fitted constants of one family of GPUs, by field."""
        moved = zip(self.constants, self.shifts, strict=True)
        found = {one.field: one.at(shift) for one, shift in moved if one.moves(family)}
        if self.digits is None:
            return found
        return {field: significant(value, self.digits) for field, value in found.items()}

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """By family."""
        made: dict[str, Calibration] = {}
        for family, base in self.base.items():
            values: dict[str, Any] = dict(self.values(family))
            made[family] = replace(base, **values)
        return made

    def shift(self, name: str) -> float:
        """How far the constant of a name was moved, in widths of its prior."""
        return self.shifts[[one.name for one in self.constants].index(name)]


class Errors(Struct, frozen=True, kw_only=True):
    """Relative errors of some rows: mean of their sizes, bias, and the worst with its sign."""

    count: int
    mean: float
    bias: float
    worst: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> Self:
        """Of one row at least."""
        found = list(errors)
        return cls(
            count=len(found),
            mean=fmean(map(abs, found)),
            bias=fmean(found),
            worst=max(found, key=abs),
        )


def fitted(
    constants: Sequence[Constant],
    base: Mapping[str, Calibration],
    misses: Callable[[Fit], Iterable[float]],
) -> Fit:
    """Least squares of `misses`, weighed logarithms of predicted over measured times, and of how
    far each constant is from its prior. Rows that nothing explains pull little."""
    sigmas = np.array([one.sigma for one in constants])

    def at(logarithms: Any) -> Fit:
        shifts = tuple(map(float, logarithms / sigmas))
        return Fit(constants=tuple(constants), shifts=shifts, base=base)

    def residuals(logarithms: Any) -> Any:
        tried = at(logarithms)
        return np.array([*misses(tried), *tried.shifts])

    return at(least_squares(residuals, np.zeros(len(sigmas)), loss="soft_l1").x)


def splits(
    rows: Sequence[Row], source: Callable[[Row], Hashable]
) -> Iterator[tuple[Any, list[Row], list[Row]]]:
    """Each source with all rows of the others, and its own: to fit on the ones and judge by the
    others."""
    for name in dict.fromkeys(map(source, rows)):
        own = [row for row in rows if source(row) == name]
        yield name, [row for row in rows if source(row) != name], own
