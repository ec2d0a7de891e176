"""How well differences between predicted step times are known: widths of what errs, and the check.

python -m research.steps.step_differences    fit anew what advisor.learning.time_residual has

Errors of rows are the logarithms of measured over predicted, by the shipped calibrations: published
rows that are fitted on, and what was measured here. Rows of one question (the same work on the same
GPUs) share an error, which cancels in their difference; so do terms of a step in the measure of
their shares, and rows of one job, of which those that recompute have errors of their own. By
maximum likelihood, of Student's t with four degrees of freedom, as few rows are far off; each width
around a wide prior. Rows that were fitted on err less than others would: widths are widened by what
left-out rows err more (docs/times.md).
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy import optimize

from advisor.base.fields import read_record
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.learning.time_residual import BAND, WIDTHS, Shares, Widths, shares, shares_of
from advisor.plan.recompute_plan import recomputes
from advisor.search.evaluate import Evaluator
from harness.judge.repredict import evaluator_again
from harness.judge.results import load_results
from harness.planner.forecast import predict
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Backend, Trial
from research.rows import all_targets
from research.rows.row import MEASURED
from research.rows.targets import Quantity, Target
from research.steps.scores import question

_GPUS: Final = ("h100", "h200")
WIDENED: Final = 1.4
"""Mean error of rows left out over that of rows fitted, where it is most: 7.1 over 4.9 %, experts
without their model."""
_FREEDOM: Final = 4.0
_LEAST: Final = 0.003
"""Scatter of a measurement itself."""
_PRIOR: Final = (0.05, 0.08, 0.08, 0.3, 0.3, 0.3, 0.02, 0.02)
_PRIOR_SIGMA: Final = 0.7
MEASURED_HERE: Final = "measured here"
_KINDS: Final = ("dense", "experts", "eager", MEASURED_HERE)
_NAMES: Final = (*_KINDS[:3], "recompute", "communication", "host", "job", "setting")


class Row(Struct, frozen=True, kw_only=True):
    """One way to run something: of which kind, which job, shares of its step, its error. acts:
    whether its setting does something, else all its own error is the job's."""

    kind: str
    job: Hashable
    shares: Shares
    error: float
    acts: bool


class Difference(Struct, frozen=True):
    """Two rows of one question: the difference of their errors over the width that is stated."""

    kind: str
    in_widths: float


def questions() -> tuple[tuple[Row, ...], ...]:
    """Rows by question; those that are predicted and set alike are one."""
    found: dict[Hashable, dict[Hashable, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for target in all_targets():
        if target.quantity is Quantity.STEP and not target.judged_only:
            row, total = _published(target)
            way = target.family, target.setting, round(total, 9)
            found[question(target)][way].append(row)
    for gpu in _GPUS:
        for result in load_results([MEASURED / gpu]).results:
            if _is_timed(result):
                row = _measured(result)
                found[gpu, row.job][result.name].append(row)
    return tuple(tuple(map(_one, ways.values())) for ways in found.values())


def _one(rows: Sequence[Row]) -> Row:
    first = rows[0]
    error = median(row.error for row in rows)
    return replace(first, error=error)


def _published(target: Target) -> tuple[Row, float]:
    job = target.job
    fitted = replace(load_calibration(job.gpu), deepep_blocks=False)  # as the constants were
    time = Evaluator(job, fitted).timed(target.setting).time
    error = math.log(target.seconds / time.total)
    acts = recomputes(target.setting)
    row = Row(kind=target.kind, job=job, shares=shares(time), error=error, acts=acts)
    return row, time.total


def _is_timed(result: TrialResult) -> bool:
    native = result.trial["workload"]["backend"] == Backend.NATIVE
    return native and result.status is TrialStatus.OK and result.times is not None


def _measured(result: TrialResult) -> Row:
    trial = read_record(Trial, result.trial, result.name)
    evaluator = evaluator_again(trial, result.gpu_names[0], None)
    setting = parts_of(evaluator.job.config.framework).settings.parse(trial.workload.recompute)
    evaluation = evaluator.evaluate(setting)
    other = predict(trial.workload, evaluation).other_seconds
    assert result.times is not None
    error = math.log(median(result.times.seconds) / (evaluation.step_time_seconds + other))
    of = shares_of(evaluation.time_seconds, other)
    acts = recomputes(setting)
    return Row(kind=MEASURED_HERE, job=evaluator.job, shares=of, error=error, acts=acts)


def differences(widths: Widths = WIDTHS) -> Iterator[Difference]:
    """Of all pairs of rows of one question."""
    for rows in questions():
        for one, other in combinations(rows, 2):
            sigma = _sigma(one, other, widths)
            yield Difference(one.kind, (one.error - other.error) / sigma)


def _sigma(one: Row, other: Row, widths: Widths) -> float:
    apart = zip(one.shares[1:], other.shares[1:], widths.terms, strict=True)
    variance = sum(((a - b) * width) ** 2 for a, b, width in apart)
    variance += (one.acts + other.acts) * widths.setting**2
    variance += 0 if one.job == other.job else 2 * widths.job**2
    return math.sqrt(variance + 2 * _LEAST**2)


def inside(found: Iterable[Difference], widths: float = BAND) -> float:
    """Part of the differences within so many of their widths: nine of ten, if these are right."""
    return fmean(abs(one.in_widths) <= widths for one in found)


def fit() -> dict[str, float]:
    """Widths by name, the first three of what rows of a question share."""
    by_size = defaultdict[int, list[tuple[Any, Any]]](list)
    for errors, each in map(_terms, questions()):
        by_size[len(errors)].append((errors, each))
    groups = [tuple(map(np.array, zip(*of, strict=True))) for size, of in by_size.items() if size]

    def deviance(logarithms: Any) -> float:
        sigmas = np.exp(logarithms)
        around = np.sum(((logarithms - np.log(_PRIOR)) / _PRIOR_SIGMA) ** 2) / 2
        return float(around + sum(_deviance(errors, each, sigmas) for errors, each in groups))

    many = {"maxiter": 9000, "maxfev": 9000, "xatol": 1e-4, "fatol": 1e-6}
    found = optimize.minimize(deviance, np.log(_PRIOR), method="Nelder-Mead", options=many)
    return dict(zip(_NAMES, map(float, np.exp(found.x)), strict=True))


def _terms(rows: Sequence[Row]) -> tuple[Any, Any]:
    """Errors of a question, and by width what its variance adds to their covariance; of what was
    measured here those of differences alone: plain torch modules are no kind of published rows."""
    errors, size = np.array([row.error for row in rows]), len(rows)
    shared = [np.full((size, size), float(row_kind == rows[0].kind)) for row_kind in _KINDS[:3]]
    of = np.array([row.shares[1:4] for row in rows])
    same = np.array([[one.job == other.job for other in rows] for one in rows], float)
    acts = np.diag([float(row.acts) for row in rows])
    each = np.array([*shared, *(np.outer(one, one) for one in of.T), same, acts, np.eye(size)])
    if rows[0].kind == MEASURED_HERE:
        against = np.hstack([-np.ones((size - 1, 1)), np.eye(size - 1)])
        return against @ errors, against @ each @ against.T
    return errors, each


def _deviance(errors: Any, each: Any, sigmas: Any) -> float:
    """Less the logarithm of the likelihood of questions with equally many errors."""
    covariances = np.einsum("w,nwij->nij", np.append(sigmas, _LEAST) ** 2, each)
    solved = np.linalg.solve(covariances, errors[..., None])[..., 0]
    far, size = np.sum(errors * solved, axis=1) / _FREEDOM, errors.shape[1]
    whole = (_FREEDOM + size) / 2
    scale = math.lgamma(whole) - math.lgamma(_FREEDOM / 2) - size / 2 * math.log(_FREEDOM / 2)
    widths = np.linalg.slogdet(covariances)[1] / 2
    return float(np.sum(widths + whole * np.log1p(far) - scale))


def main() -> None:
    """Print the widths, and how often those that are shipped hold."""
    for name, width in fit().items():
        print(f"{name:14} {width:.4f}  widened {width * WIDENED:.3f}")
    found = tuple(differences())
    print(f"{len(found)} differences, {inside(found):.0%} within the shipped 90 % band")
    for kind in _KINDS:
        its = [one for one in found if one.kind == kind]
        print(f"  {kind:14} {len(its):3} {inside(its):.0%}")


if __name__ == "__main__":
    main()
