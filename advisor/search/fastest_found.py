"""The fastest that is found near the job as typed, of all that was not given: the answer's first
sentence where it wins."""

from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import Answer, FastestFound, RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.hardware.calibration import Calibration
from advisor.plan.recompute_plan import Setting
from advisor.request.origin import changes
from advisor.request.resolve import Resolution
from advisor.search.answer_parts import notes_on
from advisor.search.changed_options import with_fewest_changes
from advisor.search.found import Searched
from advisor.search.layout_search import Search
from advisor.search.ranking import order
from advisor.search.step_time_band import Gain, gains, unproven_gains

WORTH_A_CHANGE: Final = 0.01
"""Share of a step below which a gain is not worth another job (a judgement)."""
EFFORT: Final = 8_000.0
"""Of the search, about a second of one core (see BestFound)."""


def with_fastest_found(
    answer: Answer, resolution: Resolution, calibration: Calibration, asked: tuple[Setting, ...]
) -> Answer:
    """`answer` with the fastest that is found near its job, where that is worth another job; and
    with how far was searched. What was given stays; only settings that were asked for are tried.
    Nothing is looked for where measured runs move single settings.
    """
    if not answer.candidates or type(calibration) is not Calibration:
        return answer
    try:
        search = Search(resolution, calibration, asked, options=True, most=EFFORT)
        searched = search.run((answer.candidates[0].evaluation.job,))
    except UserError:
        return answer
    except KeyboardInterrupt:
        return replace(answer, stopped=True)
    evaluated = answer.evaluated + searched.evaluated
    return replace(
        answer,
        evaluated=evaluated,
        stopped=searched.interrupted,
        search=searched.note(evaluated),
        fastest_found=_found(answer, searched, resolution),
    )


def _found(answer: Answer, searched: Searched, resolution: Resolution) -> FastestFound | None:
    """The best of a search; None where the best as typed is as good."""
    if not searched.evaluations:
        return None
    best = with_fewest_changes(searched.best, resolution).simulated
    usual = next((c.evaluation for c in answer.candidates if c.evaluation.fits), None)
    gain = None if usual is None else 1 - best.step_time_seconds / usual.step_time_seconds
    if not best.fits or (gain is not None and gain <= WORTH_A_CHANGE):
        return None
    rests_on = tuple(gain.words for gain in _new_gains(best, answer))
    return FastestFound(
        candidate=_first(best),
        changes=changes(best.job, answer.job),
        gain=gain,
        rests_on=rests_on,
        without=_without(answer, searched, usual) if rests_on else None,
    )


def _new_gains(row: Evaluation, answer: Answer) -> list[Gain]:
    """Options of a row whose gains few published runs show, and that the job as typed has not."""
    own = unproven_gains(answer.job)
    return [gain for gain in gains(row.job) if gain.name not in own]


def _without(
    answer: Answer, searched: Searched, usual: Evaluation | None
) -> RankedEvaluation | None:
    """The best that fits and rests on no such gain, where it is faster than the `usual` row."""
    plain = (row for row in searched.evaluations if row.fits and not _new_gains(row, answer))
    best = min(plain, key=order, default=None)
    if best is None or (usual and best.step_time_seconds >= usual.step_time_seconds):
        return None
    return _first(best)


def _first(best: Evaluation) -> RankedEvaluation:
    return RankedEvaluation(rank=1, evaluation=best, notes=notes_on([best])(best))
