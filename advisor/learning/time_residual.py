"""How predicted step times err, how far measured ones are off them, and how sure that is.

The logarithm of measured over predicted time is taken as a sum of independent normal errors: one
that all runs of a group have in common, one a term of the step in the measure of its share, one a
job (layout and batch), one a setting that does something. What two rows share cancels in their
ratio. Widths: standard deviations, fitted by research.steps.step_differences; docs/times.md
says on what, and how often the fit is right.

Measured runs move these errors by Bayesian regression: around 0 before any run, with the widths of
published pairs, and for what all terms have in common whatever the shipped band leaves besides
them. Few runs therefore move little, and what no run distinguishes stays apart.
"""

from collections.abc import Collection, Iterable
from functools import cached_property
from math import erf, exp, sqrt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.base.grouping import grouped
from advisor.job.job import Job
from advisor.learning.conditioning import Information, Posterior, prior, scatter
from advisor.plan.recompute_plan import Setting

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
        """Those of TERMS except the first."""
        return self.recompute, self.communication, self.host, self.offload


WIDTHS: Final = Widths(
    recompute=0.26,
    communication=0.16,
    host=0.29,
    offload=0.16,  # as of communication, a judgement: no published pair differs in it
    job=0.023,
    setting=0.013,
)


class Known(Struct, frozen=True, kw_only=True):
    """How well the step of one row is known: standard deviations of relative errors, by TERMS
    except the first, of its job and of its setting. common: the logarithm of what measured runs
    have moved all their rows by, which changes no difference."""

    shares: Shares
    terms: tuple[float, ...] = WIDTHS.terms
    job: float = WIDTHS.job
    setting: float
    common: float = 0.0


def shares(time: TimeBreakdown) -> Shares:
    """What of a step each of TERMS takes; waiting for the slowest GPU is one with communication, as
    it was fitted. Source: research.steps.step_differences."""
    total, communication = time.total, time.exposed_communication + time.stragglers
    parts = time.recompute, communication, time.host, time.offload
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


_PROCESS_SIGMA: Final = 0.005
"""Relative scatter of the median step of a fresh process, a judgement: a trial whose steps scatter
by more than some per cent is unstable and gives no time."""
_LEAST_BASE_SIGMA: Final = 0.02
_JOB: Final = len(TERMS)
_WORDS_TERMS: Final = (TERMS.index("recompute"), TERMS.index("offload"))
"""Terms that exist by what a setting does."""


class TimeRow(Struct, frozen=True, kw_only=True):
    """One setting of one job. error: logarithm of measured over predicted; processes: how many were
    measured."""

    job: Job
    setting: Setting
    words: frozenset[str]
    shares: Shares
    error: float
    processes: int

    @property
    def variance(self) -> float:
        """Of the measurement."""
        return _PROCESS_SIGMA**2 / self.processes


class StepEstimate(Struct, frozen=True):
    """Of one row: the logarithm of what is expected to be measured over the shipped prediction, and
    its standard deviation."""

    log_factor: float
    sigma: float


class TimeResidual(Struct, frozen=True, kw_only=True, dict=True):
    """Rows of jobs of the same kinds. band: half-width of the shipped one."""

    rows: tuple[TimeRow, ...]
    band: float

    @cached_property
    def base_sigma(self) -> float:
        """What the shipped band says of all rows in common: the rest of its variance, on the row
        that has least of its own."""
        apart = min((error_sigma(row.shares, row.words) for row in self.rows), default=0.0)
        return sqrt(max(_LEAST_BASE_SIGMA**2, (self.band / BAND) ** 2 - apart**2))

    @cached_property
    def setting_words(self) -> frozenset[str]:
        """What the settings that were run do."""
        return frozenset().union(*(row.words for row in self.rows))

    @cached_property
    def _by_job(self) -> dict[Job, list[TimeRow]]:
        return grouped((row.job, row) for row in self.rows)

    @cached_property
    def posterior(self) -> Posterior:
        """Errors of TERMS, and of a job that was not run."""
        return self._posterior(None)

    @cached_property
    def scatter(self) -> float:
        """How many times as far the runs lie off one calibration as its widths say."""
        return scatter(self.posterior.misfit, len(self.rows))

    def of_job(self, job: Job) -> "JobTimes":
        """What is known of the steps of one job."""
        rows = self._by_job.get(job, ())
        return JobTimes(
            rows={row.setting: row for row in rows},
            posterior=self._posterior(job) if rows else self.posterior,
            words=self.setting_words,
            prior_sigmas=self._prior_sigmas,
            scatter=self.scatter,
        )

    @property
    def _prior_sigmas(self) -> tuple[float, ...]:
        return (self.base_sigma, *WIDTHS.terms, WIDTHS.job)

    def _posterior(self, job: Job | None) -> Posterior:
        """Of TERMS and the error of `job` itself; those of the other jobs are summed out."""
        found = prior(self._prior_sigmas)
        for ran, rows in self._by_job.items():
            _observe(found, rows, own=ran == job)
        return found.posterior()


def _observe(found: Information, rows: Iterable[TimeRow], *, own: bool) -> None:
    """Add the rows of one job. Its own error, where it is not asked for, is common to them: what
    their weighed sum says is known that much less (Sherman and Morrison)."""
    weighed, value, whole = [0.0] * (_JOB + 1), 0.0, 1 / WIDTHS.job**2
    for row in rows:
        design = (*row.shares, float(own))
        weight = 1 / (setting_sigma(row.words) ** 2 + row.variance)
        found.add(design, row.error, weight)
        weighed = [sum_ + weight * x for sum_, x in zip(weighed, design, strict=True)]
        value += weight * row.error
        whole += weight
    if not own:
        # an observation taken away again: of the weighed sum, as far as the job explains it
        found.add(weighed, value, -1 / whole)


class JobTimes(Struct, frozen=True, kw_only=True):
    """What is known of the steps of one job: errors of TERMS and of the job, rows that were run.
    scatter: what all standard deviations are multiplied with."""

    rows: dict[Setting, TimeRow]
    posterior: Posterior
    words: frozenset[str]
    prior_sigmas: tuple[float, ...]
    scatter: float = 1.0

    def estimate(self, setting: Setting, words: frozenset[str], of: Shares) -> StepEstimate:
        """Of `setting`. What it does and no run did keeps its shipped time and width; a setting
        that was run has the rest of its own error."""
        unknown = _WORDS_TERMS if words - self.words else ()
        design = [0.0 if n in unknown else share for n, share in enumerate((*of, 1.0))]
        mean, variance = self.posterior.mean_and_variance(design)
        variance += sum((of[n] * self.prior_sigmas[n]) ** 2 for n in unknown)
        row, own = self.rows.get(setting), setting_sigma(words) ** 2
        if row is None:
            return StepEstimate(mean, self.scatter * sqrt(variance + own))
        kept = own / (own + row.variance)
        mean += kept * (row.error - mean)
        left = (1 - kept) ** 2 * variance + kept * row.variance
        return StepEstimate(mean, self.scatter * sqrt(left))

    def corrected(self, time: TimeBreakdown, words: frozenset[str], total: float) -> TimeBreakdown:
        """`time` that sums to `total`, its terms in the proportion that their errors say."""
        known = not words - self.words
        _, recompute, communication, host, offload, _ = map(exp, self.posterior.mean)
        parts = replace(
            time,
            recompute=time.recompute * (recompute if known else 1.0),
            exposed_communication=time.exposed_communication * communication,
            stragglers=time.stragglers * communication,
            offload=time.offload * (offload if known else 1.0),
            host=time.host * host,
        )
        return parts.times(total / parts.total)

    @property
    def least_factor(self) -> float:
        """What no estimate of any setting is below, as a factor."""
        base, *terms, job = self.posterior.mean
        rows = (self.estimate(row.setting, row.words, row.shares) for row in self.rows.values())
        return exp(min([base + job + min(0.0, *terms), *(row.log_factor for row in rows)]))

    @property
    def widths(self) -> Widths:
        """Of the differences between two of its settings, or between it and a like job."""
        sigmas = map(self.posterior.sigma, range(1, _JOB + 1))
        found = (self.scatter * sigma for sigma in (*sigmas, WIDTHS.setting))
        return Widths(**dict(zip(Widths.__struct_fields__, found, strict=True)))


def shares_of(time: TimeBreakdown, other_seconds: float = 0.0) -> Shares:
    """Shares of a step whose trainer takes `other_seconds` besides the job's own."""
    whole = time.total / (time.total + other_seconds)
    first, *others = shares(time)
    return (first, *(share * whole for share in others))
