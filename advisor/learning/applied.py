"""What was learned, as it moves the evaluations of one job."""

from functools import lru_cache
from math import exp, sqrt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation, TimeBreakdown
from advisor.job.job import Job
from advisor.learning.learned import KindResiduals, Learned, LearnedCalibration, plain_job
from advisor.learning.time_residual import BAND, JobTimes, Known, setting_sigma, shares
from advisor.memory.allocator import Reserved
from advisor.memory.static import NamedBytes
from advisor.plan.recompute_plan import Setting, words_of

_WIDEST: Final = 0.95
"""Half-width of a band, which leaves times above 0."""


class Applied(Struct, frozen=True):
    """Of one job. kind: what holds for it; None where it lies outside of what was measured, though
    single settings of it may have been run."""

    job: Job
    learned: Learned
    kind: KindResiduals | None
    times: JobTimes | None

    def step(
        self, setting: Setting, time: TimeBreakdown, error: float
    ) -> tuple[TimeBreakdown, float]:
        """Predicted `time` and the half-width of its band, as measured runs move and narrow them;
        without what they say of all times alike, so that jobs within and outside of what was
        measured compare (see common_factor)."""
        if self.times is None:
            return time, error
        words = words_of(setting)
        found = self.times.estimate(setting.promoted, words, shares(time))
        total = time.total * exp(found.log_factor - self.learned.common)
        widest = error if self.times.scatter == 1 else _WIDEST
        return self.times.corrected(time, words, total), min(widest, BAND * found.sigma)

    @property
    def least_factor(self) -> float:
        """What `step` multiplies no time with less than."""
        return 1.0 if self.times is None else self.times.least_factor / exp(self.learned.common)

    @property
    def common_factor(self) -> float:
        """What a time of `step` is multiplied with in the end."""
        return 1.0 if self.times is None else exp(self.learned.common)

    def reserved(self, reserved: Reserved, fixed: int) -> Reserved:
        """The reserved peak of a rank of whose allocated bytes so many are `fixed`."""
        if self.kind is None:
            return reserved
        memory, width = self.kind.memory, self.kind.memory.width
        parts = (
            (memory.allocated(fixed, reserved.allocated), width.allocated, reserved.allocated),
            (memory.unused, width.unused, reserved.allocated),
            (memory.outside, width.outside, sum(term.num_bytes for term in reserved.fixed)),
        )
        # a term's width becomes that of its shift
        changes = ((shift.sigma**2 - width**2) * of**2 for shift, width, of in parts)
        variance = reserved.spread**2 + sum(changes)
        allocated, unused, outside = (int(shift.mean * of) for shift, _, of in parts)
        terms = (
            NamedBytes(f"{name}, as measured", size, "runs given with --calibration")
            for name, size in (
                ("reserved but unallocated", unused),
                ("context and communicators", outside),
            )
            if size
        )
        return replace(
            reserved,
            allocated=reserved.allocated + allocated,
            total=reserved.total + allocated + unused + outside,
            fixed=(*reserved.fixed, *terms),
            spread=sqrt(max(0.0, variance)),
            measured_more=allocated,
            most_likely=1.0 if memory.measures_unused else reserved.most_likely,
        )

    def fit_probability(self, setting: Setting, predicted: float, budget_bytes: int) -> float:
        """Whether a setting that was run fits is known: it ran, or it ran out."""
        ran = self.learned.measured(self.job, setting)
        if ran is None:
            return predicted
        if ran.ran_out:
            return 0.0
        if self.job.config.memory_budget_bytes is None:
            return 1.0
        taken = ran.peak_reserved_bytes
        return predicted if taken is None else float(taken <= budget_bytes)


@lru_cache(maxsize=4096)
def applied(calibration: LearnedCalibration, job: Job) -> Applied:
    """What `calibration` has learned for `job`."""
    learned = calibration.learned
    kind = learned.residuals_of(job)
    return Applied(job, learned, kind, kind.times.of_job(plain_job(job)) if kind else None)


def known(evaluation: Evaluation) -> Known:
    """How well the step of an evaluation with a learned calibration is known."""
    calibration, setting = evaluation.calibration, evaluation.setting.promoted
    assert isinstance(calibration, LearnedCalibration)
    of = shares(evaluation.time_seconds)
    its = applied(calibration, evaluation.job)
    if its.times is None:
        return Known(shares=of, setting=setting_sigma(words_of(setting)))
    widths, row = its.times.widths, its.times.rows.get(setting)
    return Known(
        shares=of,
        terms=widths.terms,
        job=widths.job,
        setting=setting_sigma(words_of(setting)) if row is None else sqrt(row.variance),
        common=its.learned.common,
    )
