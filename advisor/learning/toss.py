"""Which choice between two rows is a toss: their difference is less known than it is large."""

from collections.abc import Iterator, Sequence
from math import log, sqrt
from typing import Final

from msgspec import Struct

from advisor.answer.answer import RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import EVEN
from advisor.learning.time_residual import BAND, Known, below, setting_sigma, shares
from advisor.plan.recompute_plan import words_of
from advisor.request.layout_fields import SEARCHED
from advisor.request.origin import changed_fields

_WORTH: Final = 0.01
"""What must be won for a measurement to be worth its while, of a step."""
_LIKELY: Final = 0.2
"""Probability from which winning that much is likely enough: one toss in five."""
_MOST_ROWS: Final = 200
_CHUNKS: Final = frozenset({"virtual_pipeline_model_parallel_size", *EVEN})
_WORK: Final = SEARCHED - {"cp_comm_type"} | {"data_parallel_sharding", "micro_batch_size"}
"""Fields of a job that divide its work; others are options."""


class StepDifference(Struct, frozen=True):
    """Two rows: how much longer the second takes by prediction, as a logarithm, and one standard
    deviation of that."""

    first: RankedEvaluation
    second: RankedEvaluation
    mean: float
    sigma: float

    @property
    def probability(self) -> float:
        """That the second is faster by what is worth a measurement."""
        return below(-(self.mean + _WORTH) / self.sigma) if self.sigma else 0.0

    @property
    def why(self) -> str:
        """In a sentence about both rows."""
        known = BAND * self.sigma * 100
        return (
            f"their predicted step times are {self.mean * 100:.1f} ±{known:.1f} % apart; the "
            f"chance that the second row is at least {_WORTH * 100:.0f} % faster is "
            f"{self.probability * 100:.0f} %"
        )


def likeliest_toss(candidates: Sequence[RankedEvaluation]) -> StepDifference | None:
    """The row that most likely beats the first by a per cent; None where none is likely enough."""
    first = candidates[0] if candidates else None
    if first is None or not first.evaluation.fits:
        return None
    found = [
        _difference(first, other)
        for other in _alternatives(first, candidates[1:_MOST_ROWS])
        if not (_is_timed(first) and _is_timed(other))
    ]
    best = max(found, key=lambda one: one.probability, default=None)
    return best if best is not None and best.probability >= _LIKELY else None


def _alternatives(
    first: RankedEvaluation, others: Sequence[RankedEvaluation]
) -> Iterator[RankedEvaluation]:
    """Rows of a page that fit and do something else: of the same job settings that are not
    dominated and neither repeat nor only add to what the first does, of any other job its fastest.
    Jobs that differ in VPP and an option at most do the same."""
    own, seen = first.evaluation, {first.evaluation.job}
    for other in others:
        its = other.evaluation
        if not its.fits or other.folded or its.time_seconds == own.time_seconds:
            continue
        if its.job == own.job:
            ours, theirs = words_of(own.setting), words_of(its.setting)
            if other.pareto and not (ours <= theirs or theirs <= ours):
                yield other
        elif its.job not in seen:
            seen.add(its.job)
            if own.setting != its.setting or not _does_the_same(own.job, its.job):
                yield other


def _does_the_same(one: Job, other: Job) -> bool:
    """Whether the same ranks do the same work, in chunks of another size and with one option more
    or less at most: what errs in one prediction errs in the other."""
    pairs = (one.model, other.model), (one.config, other.config), (one.layout, other.layout)
    apart = {name for pair in pairs for name in changed_fields(*pair)} - _CHUNKS
    return len(apart) <= 1 and not apart & _WORK


def _is_timed(row: RankedEvaluation) -> bool:
    return row.measured is not None and row.measured.step_time_seconds is not None


def _difference(first: RankedEvaluation, other: RankedEvaluation) -> StepDifference:
    one, two = first.evaluation, other.evaluation
    a, b = _known(one), _known(two)
    mean = log(two.step_time_seconds / one.step_time_seconds) - (b.common - a.common)
    terms = zip(a.shares[1:], b.shares[1:], map(max, a.terms, b.terms), strict=True)
    variance = a.setting**2 + b.setting**2
    variance += sum(((x - y) * width) ** 2 for x, y, width in terms)
    if one.job != two.job:
        variance += a.job**2 + b.job**2
    return StepDifference(first, other, mean, sqrt(variance))


def _known(evaluation: Evaluation) -> Known:
    if type(evaluation.calibration) is Calibration:
        sigma = setting_sigma(words_of(evaluation.setting))
        return Known(shares=shares(evaluation.time_seconds), setting=sigma)
    from advisor.learning.applied import known

    return known(evaluation)
