"""Of what takes the same time as the optimum, what changes least."""

from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME
from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.plan.recompute_plan import words_of
from advisor.search.evaluate import Evaluator, Timed


def least_changed(found: Evaluation, usual: Job) -> Evaluation:
    """`found`, or a setting of the menu or its own, on its job or on the split of the `usual` one,
    that fits and takes the same time: of the fewest words, then on the usual split."""
    seconds = found.step_time_seconds * (1 + SAME_TIME)
    evaluators = [Evaluator(job, found.calibration) for job in _jobs(found.job, usual)]
    tied = [
        (len(words_of(timed.setting)), place, timed.time.total, timed)
        for place, evaluator in enumerate(evaluators)
        for timed in _timed(evaluator, found)
        if timed.time.total <= seconds
    ]
    own = len(words_of(found.setting)), len(evaluators) - 1, found.step_time_seconds
    for words, place, total, timed in sorted(tied, key=lambda one: one[:3]):
        if (words, place, total) >= own:
            break
        other = evaluators[place].evaluate_timed(timed)
        if other.fit_probability > 1 - CLEAR and other.replayed.fits:
            return other.replayed
    return found


def _jobs(job: Job, usual: Job) -> Iterator[Job]:
    """The job on the usual split, where that is another and legal, then the job."""
    if job.layout != usual.layout:
        with suppress(UserError):
            yield replace(job, layout=usual.layout)
    yield job


def _timed(evaluator: Evaluator, found: Evaluation) -> Iterator[Timed]:
    own = parts_of(found.job.config.framework).settings
    settings = dict.fromkeys((own.none, *own.candidates(evaluator.job), found.setting))
    for setting in settings:
        if not own.check(setting, evaluator.job):
            yield evaluator.timed(setting)
