"""A row of a search without those changes of its job's options that do nothing for it."""

from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.request.origin import changed_fields
from advisor.request.resolve import Resolution
from advisor.search.changed_options import CHOSEN, PARTS
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import UNFIT, tier


def with_fewest_changes(row: Evaluation, resolution: Resolution) -> Evaluation:
    """`row` with each option as the resolution has it, one after the other, where that takes no
    more time and fits as well, or where nothing fits is no larger."""
    best = row
    for part in PARTS:
        usual = getattr(resolution, part) or getattr(row.job, part)
        for name in changed_fields(usual, getattr(row.job, part)):
            if name not in CHOSEN:
                best = _better(best, _reverted(best.job, part, name, getattr(usual, name)))
    return best


def _reverted(job: Job, part: str, name: str, value: object) -> Job | None:
    try:
        other = replace(job, **{part: replace(getattr(job, part), **{name: value})})
        parts_of(job.config.framework).jobs.check_options(other.config)
    except UserError:
        return None
    return other


def _better(row: Evaluation, job: Job | None) -> Evaluation:
    """The row on `job`, or as it is where that is illegal, slower or less likely to fit."""
    if job is None or parts_of(job.config.framework).settings.check(row.setting, job):
        return row
    evaluator = Evaluator(job, row.calibration)
    timed = evaluator.timed(row.setting)
    if timed.time.total > row.step_time_seconds:
        return row
    other = evaluator.evaluate_timed(timed)
    if row.requests is not None:
        other = other.replayed
    larger = other.peak_reserved_bytes > row.peak_reserved_bytes
    return row if tier(other) > tier(row) or (larger and tier(row) == UNFIT) else other
