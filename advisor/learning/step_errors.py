"""How predicted step times err: what of it two settings share, and what tells them apart.

The logarithm of measured over predicted time is taken as a sum of independent normal errors: one
that all runs of a group have in common, one a term of the step in the measure of its share, one a
job (layout and batch), one a setting that does something. What two rows share cancels in their
ratio. Widths: standard deviations, fitted by research.steps.step_differences; docs/times.md
says on what, and how often the fit is right.
"""

from collections.abc import Collection
from math import erf, sqrt
from typing import Final

from msgspec import Struct

from advisor.answer.evaluation import TimeBreakdown

TERMS: Final = ("base", "recompute", "communication", "host", "offload")
"""Of a residual: everything, and beyond that single terms of a step."""
BAND: Final = 1.645
"""Standard deviations on each side within which nine of ten values of a normal variable lie."""

Shares = tuple[float, ...]
"""Of a step, by TERMS; the first is 1."""


class Widths(Struct, frozen=True, kw_only=True):
    """Standard deviations of relative errors: of terms, of a job, of a setting on it that does
    something: all the error of no recompute is its job's."""

    recompute: float
    communication: float
    host: float
    offload: float
    job: float
    setting: float

    @property
    def terms(self) -> tuple[float, ...]:
        """Those of TERMS but for the first."""
        return self.recompute, self.communication, self.host, self.offload


WIDTHS: Final = Widths(
    recompute=0.18,
    communication=0.25,
    host=0.4,
    offload=0.25,  # as of communication, a judgement: no published pair differs in it
    job=0.025,
    setting=0.01,
)


class Known(Struct, frozen=True, kw_only=True):
    """How well the step of one row is known: standard deviations of relative errors, by TERMS but
    for the first, of its job and of its setting. common: the logarithm of what measured runs have
    moved all their rows by, which tells none from another."""

    shares: Shares
    terms: tuple[float, ...] = WIDTHS.terms
    job: float = WIDTHS.job
    setting: float
    common: float = 0.0


def shares(time: TimeBreakdown) -> Shares:
    """What of a step each of TERMS takes. Source: research.steps.step_differences."""
    total = time.total
    parts = time.recompute, time.exposed_communication, time.host, time.offload
    return (1.0, *(part / total for part in parts))


def setting_sigma(words: Collection[str]) -> float:
    """Width of the own error of a setting that does `words`."""
    return WIDTHS.setting if words else 0.0


def error_sigma(of: Shares, words: Collection[str]) -> float:
    """Width of the error of one row, without what all rows share."""
    apart = sum((share * width) ** 2 for share, width in zip(of[1:], WIDTHS.terms, strict=True))
    return sqrt(apart + WIDTHS.job**2 + setting_sigma(words) ** 2)


def below(value: float) -> float:
    """Probability that a standard normal variable is below `value`."""
    return 0.5 * (1.0 + erf(value / sqrt(2.0)))
