"""Jobs near one: other degrees, micro batches and sequence lengths, the nearest first."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from math import log2
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.pareto import dominators
from advisor.base.units import divisors
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import SHORT_NAMES, ParallelLayout
from advisor.learning.learned import LearnedCalibration
from advisor.plan.recompute_plan import recomputes
from advisor.report.job_changes import apart
from advisor.report.wording import leading
from advisor.request.layout_fields import freed
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve
from advisor.search.changed_options import CHOSEN
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Progress, Watch
from advisor.search.layouts import groups, of_group
from advisor.search.measured_rows import corrected
from advisor.search.ranking import first_simulated, memory_and_time, order

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


def grid(answer: Answer, request: Request, watch: Watch | None = None) -> Grid:
    """All rows of `answer`, which has some, and those of jobs near the one that it begins with;
    `watch` is told how far it is."""
    best = leading(answer)
    assert best is not None
    own = best.evaluation.job
    found: dict[Job, list[Evaluation]] = {own: []}
    if answer.fastest_found:
        first = best.evaluation
        others = [one for one in _rows(own, first.calibration) if one.setting != first.setting]
        found[own] = list(first_simulated([first, *others]))
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
        found = (corrected(row, calibration) for row in found)
    ranked = sorted(found, key=order)
    if not ranked:
        return []
    beaten_by = dominators([memory_and_time(row) for row in ranked])
    front = [row for row, by in zip(ranked, beaten_by, strict=True) if by is None]
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


_LENGTHS: Final = (0.5, 2, 4)
"""Other sequence lengths, as multiples of the job's own."""
_DEGREES: Final = tuple(name for name in ParallelLayout.__struct_fields__ if name in CHOSEN)
_HALF_STEP: Final = 0.5
"""Distance of twice the VPP: a change of the schedule alone moves a job less than one of what a
rank holds."""


def nearby(job: Job, resolution: Resolution, furthest: float) -> list[Job]:
    """Jobs that differ from `job` in degrees, micro batch or sequence length, at most `furthest`
    doublings away in all, the nearest first. Whether a framework takes them is left open."""
    number, found = count(), []
    for away, layout in _layouts(job, resolution, furthest):
        for size in divisors(job.config.global_batch_size // layout.data_parallel_size):
            further = away + _doublings(size, job.config.micro_batch_size)
            if further > furthest:
                continue
            other = _with(job, layout, size, 1)
            if other is None or other == job:
                continue
            found.append((further, next(number), other))
            for times in _LENGTHS:
                length = further + _doublings(times, 1)
                longer = _with(job, layout, size, times) if length <= furthest else None
                if longer is not None:
                    found.append((length, next(number), longer))
    for times in _LENGTHS:
        own = _with(job, job.layout, job.config.micro_batch_size, times)
        if own is not None:
            found.append((_doublings(times, 1), next(number), own))
    return [other for _, _, other in sorted(found, key=lambda one: one[:2])]


def _layouts(
    job: Job, resolution: Resolution, furthest: float
) -> Iterator[tuple[float, ParallelLayout]]:
    """Layouts near the job's own, with its options, and how far away they are; with its kind of
    context parallelism, or the usual one where it has none."""
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    own = job.layout
    for group in groups(free):
        plain = group.hierarchical_context_parallel_sizes is None
        same_context = plain and group.cp_comm_type is own.cp_comm_type
        away = _group_distance(group, own)
        if away > furthest or not (group.context_parallel_size == 1 or same_context):
            continue
        for other in of_group(free, group):
            further = away + _stage_distance(other, own)
            if further <= furthest and job.config.global_batch_size % other.data_parallel_size == 0:
                yield further, replace(own, **{name: getattr(other, name) for name in _DEGREES})


def _group_distance(one: ParallelLayout, other: ParallelLayout) -> float:
    found = 0.0
    for short in ("TP", "CP", "EP", "ETP"):
        ours, theirs = (getattr(layout, SHORT_NAMES[short]) for layout in (one, other))
        found += _doublings(ours or 1, theirs or 1)
    return found


def _stage_distance(one: ParallelLayout, other: ParallelLayout) -> float:
    vpp = one.virtual_pipeline_model_parallel_size
    return (
        _doublings(one.pipeline_model_parallel_size, other.pipeline_model_parallel_size)
        + _doublings(vpp, other.virtual_pipeline_model_parallel_size) * _HALF_STEP
        + (one.data_parallel_sharding != other.data_parallel_sharding)
    )


def _doublings(one: float, other: float) -> float:
    return abs(log2(one / other))


def _with(job: Job, layout: ParallelLayout, size: int, times: float) -> Job | None:
    """None where a job is illegal."""
    length = job.config.seq_length * times
    config = replace(job.config, micro_batch_size=size, seq_length=int(length))
    try:
        return replace(job, layout=layout, config=config)
    except UserError:
        return None
