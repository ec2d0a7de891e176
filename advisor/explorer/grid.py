"""The rows of the page: those of an answer, and of jobs near it the settings worth a look."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.explorer.nearby import nearby
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.learning.learned import LearnedCalibration
from advisor.plan.recompute_plan import recomputes
from advisor.report.job_changes import apart
from advisor.report.wording import chosen
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Progress, Watch
from advisor.search.measured_rows import whole
from advisor.search.ranking import dominators, order

_NEAR, _MOST_ROWS = 3, 1500
_NEAR_OF_SEARCH, _MOST_ROWS_OF_SEARCH = 6, 6000
"""Doublings up to which jobs are near, and rows after which no further job is looked at; the
second where layouts were searched: some seconds, and a page of at most 1 and 5 MB."""
_EACH: Final = 10
"""Rows of a job that is near."""
_HOPELESS: Final = 0.01
"""Probability to fit below which one row of a job is enough, its smallest."""


class Grid(Struct, frozen=True):
    """Jobs, the answer's own first, each with its rows; `own` is the one that is chosen."""

    own: Job
    jobs: tuple[tuple[Job, tuple[Evaluation, ...]], ...]

    @property
    def rows(self) -> int:
        """How many there are of all jobs."""
        return sum(len(rows) for _, rows in self.jobs)


def grid(answer: Answer, request: Request, watch: Watch | None = None) -> Grid:
    """All rows of `answer`, which has some, and those of jobs near its choice; `watch` is told how
    far it is."""
    best = chosen(answer)
    assert best is not None
    own = best.evaluation.job
    found: dict[Job, list[Evaluation]] = {own: []}
    for candidate in answer.candidates:
        found.setdefault(candidate.evaluation.job, []).append(candidate.evaluation)
    searched = request.search is SearchScope.LAYOUT
    most = _MOST_ROWS_OF_SEARCH if searched else _MOST_ROWS
    near = nearby(own, resolve(request), _NEAR_OF_SEARCH if searched else _NEAR)
    calibration = best.evaluation.calibration
    count, seen = len(answer.candidates), {apart(job, own) for job in found}
    for job in near:
        if count >= most:
            break
        words = apart(job, own)
        if words not in seen and (rows := _rows(job, calibration)):
            seen.add(words)
            found[job] = rows
            count += len(rows)
            if watch is not None:
                watch(Progress(best=best.evaluation, evaluated=count, share=count / most))
    return Grid(own, tuple((job, tuple(rows)) for job, rows in found.items()))


def _rows(job: Job, calibration: Calibration) -> list[Evaluation]:
    """No recompute, and what no other setting of the job beats; none of an illegal job."""
    evaluator = Evaluator(job, calibration)
    if evaluator.is_hopeless:
        return []
    settings = parts_of(job.config.framework).settings.candidates(job)
    found: Iterable[Evaluation] = map(evaluator.evaluate, settings)
    if isinstance(calibration, LearnedCalibration):
        found = (whole(row, calibration) for row in found)
    ranked = sorted(found, key=order)
    if not ranked:
        return []
    beaten = dominators(ranked)
    front = [row for row, by in zip(ranked, beaten, strict=True) if by is None]
    smallest = min(ranked, key=lambda row: row.peak_reserved_bytes)
    if smallest.fit_probability < _HOPELESS:
        return [smallest]
    none = [row for row in ranked if not recomputes(row.setting) and row not in front]
    return [*none, *_spread(sorted(front, key=lambda row: row.peak_reserved_bytes))]


def _spread(front: Sequence[Evaluation]) -> list[Evaluation]:
    """At most `_EACH` of a front, with both of its ends."""
    if len(front) <= _EACH:
        return list(front)
    last = len(front) - 1
    return [front[round(place * last / (_EACH - 1))] for place in range(_EACH)]
