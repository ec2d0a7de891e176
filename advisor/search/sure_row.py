"""The fastest row that is sure to fit, where the first one is only likely to."""

from collections.abc import Iterable
from math import inf
from typing import Final

from advisor.answer.evaluation import Evaluation
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import tier

SURE: Final = 0.95
"""Likelihood from which a row is sure to fit (a judgement: one job in twenty may fail)."""
_UNFIT: Final = 2


def fastest_sure(jobs: Iterable[Job], calibration: Calibration) -> Evaluation | None:
    """Of all legal settings of `jobs`, the allocator replayed; None where none is."""
    best, seconds = None, inf
    for job in dict.fromkeys(jobs):
        stack, evaluator = adapter_of(job.config.framework), Evaluator(job, calibration)
        if evaluator.at_least_seconds >= seconds or evaluator.is_hopeless:
            continue
        timed = sorted(
            (evaluator.timed(setting) for setting in stack.candidates(job)),
            key=lambda one: one.time.total,
        )
        for one in timed:
            if one.time.total >= seconds:
                break
            found = evaluator.evaluate_if_it_may_fit(one)
            if found is None or tier(found) == _UNFIT:
                continue
            if found.replayed.fit_probability >= SURE:
                best, seconds = found.replayed, one.time.total
                break
    return best
