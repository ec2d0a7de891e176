"""Jobs near one: other degrees, micro batches, sequence lengths and numbers of GPUs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
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
from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve
from advisor.search.changed_options import CHOSEN
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Progress, Watch
from advisor.search.layouts import groups, of_group
from advisor.search.measured_rows import corrected
from advisor.search.ranking import first_simulated, memory_and_time, order

_NEAR: Final = 3.0
"""Doublings up to which jobs are near."""
_FASTER: Final = 2.0
"""Doublings that a job which takes twice as long is further away."""
_WANTED: Final = (80, 6, 1)
"""Jobs that fit, at most, of the job's own number of GPUs and sequence length, of another one of
them, and of others of both; twice as many are looked at."""
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
    calibration, seen = best.evaluation.calibration, {differs(job, own) for job in found}
    places = tuple(_places(own))
    for number, (place, changed) in enumerate(places):
        wanted = _WANTED[changed]
        for job in _promising(nearby(own, resolve(request), _NEAR, place), calibration, 2 * wanted):
            if wanted == 0:
                break
            words = differs(job, own)
            if words not in seen and (rows := _rows(job, calibration)):
                seen.add(words)
                found[job] = rows
                wanted -= any(row.fits for row in rows)
        if watch is not None:
            count = sum(map(len, found.values()))
            watch(Progress(best=best.evaluation, evaluated=count, share=number / len(places)))
    return Grid(own, tuple((job, tuple(rows)) for job, rows in found.items()))


def differs(job: Job, other: Job) -> str:
    """``64 GPUs, PP 2, micro batch 2``: in what `job` is another one than `other`."""
    gpus = f"{job.num_gpus} GPUs" if job.num_gpus != other.num_gpus else ""
    return ", ".join(filter(None, [gpus, apart(job, other)]))


def _promising(jobs: list[tuple[float, Job]], calibration: Calibration, most: int) -> list[Job]:
    """The nearest and fastest, each by what no setting of it undercuts."""
    found = [(away, Evaluator(job, calibration)) for away, job in jobs[: _LOOKED_AT * most]]
    hopeful = [
        (away + _FASTER * log2(one.at_least_seconds), number, one.job)
        for number, (away, one) in enumerate(found)
        if not one.is_hopeless
    ]
    return [job for _, _, job in sorted(hopeful, key=lambda one: one[:2])[:most]]


_LOOKED_AT: Final = 3
"""Jobs of which one is promising."""


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


_COUNTS: Final = (1, 0.5, 2, 4)
"""Numbers of GPUs, as multiples of the job's own."""
_LONGEST: Final = 131_072
"""Tokens up to which sequences are doubled."""
_DEGREES: Final = tuple(name for name in ParallelLayout.__struct_fields__ if name in CHOSEN)
_HALF_STEP: Final = 0.5
"""Distance of twice the VPP: a change of the schedule alone moves a job less than one of what a
rank holds."""


class Place(Struct, frozen=True):
    """A number of GPUs and a sequence length that jobs are looked for at."""

    num_gpus: int
    seq_length: int


def _places(own: Job) -> Iterator[tuple[Place, int]]:
    """Those of the controls, and in how many of the two they are not the job's own."""
    gpus, length = own.num_gpus, own.config.seq_length
    lengths = [length, length // 2]
    lengths += takewhile(lambda one: one <= _LONGEST, (length << n for n in count(1)))
    for times in _COUNTS:
        for other in lengths:
            place = Place(int(gpus * times), other)
            if place.num_gpus == gpus * times and other:
                yield place, (times != 1) + (other != length)


def nearby(
    job: Job, resolution: Resolution, furthest: float, place: Place
) -> list[tuple[float, Job]]:
    """Jobs at `place` that differ from `job` in degrees or micro batch, at most `furthest`
    doublings away in all, the nearest first, each with how far it is. Whether a framework takes
    them is left open."""
    number, found, times = count(), [], place.seq_length / job.config.seq_length
    there = replace(
        resolution,
        num_gpus=place.num_gpus,
        config=replace(resolution.config, seq_length=place.seq_length),
    )
    for away, layout in _layouts(job, there, furthest, times):
        for size in divisors(job.config.global_batch_size // layout.data_parallel_size):
            further = away + _doublings(size, job.config.micro_batch_size)
            other = _with(job, layout, size, place) if further <= furthest else None
            if other is not None and other != job:
                found.append((further, next(number), other))
    return [(away, other) for away, _, other in sorted(found, key=lambda one: one[:2])]


def _layouts(
    job: Job, resolution: Resolution, furthest: float, times: float
) -> Iterator[tuple[float, ParallelLayout]]:
    """Layouts near the job's own, with its options, and how far away they are; with its kind of
    context parallelism, or the usual one where it has none. A sequence that is so many times as
    long may be cut over as many times the ranks."""
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    own, batch = job.layout, job.config.global_batch_size
    for group in groups(free):
        plain = group.hierarchical_context_parallel_sizes is None
        same_context = plain and group.cp_comm_type is own.cp_comm_type
        away = _group_distance(group, own, times)
        if away > furthest or not (group.context_parallel_size == 1 or same_context):
            continue
        for other in of_group(free, group):
            further = away + _stage_distance(other, own)
            if further <= furthest and batch % other.data_parallel_size == 0:
                yield further, replace(own, **{name: getattr(other, name) for name in _DEGREES})


def _group_distance(one: ParallelLayout, other: ParallelLayout, times: float) -> float:
    found, cp = 0.0, log2(one.context_parallel_size / other.context_parallel_size)
    for short in ("TP", "EP", "ETP"):
        ours, theirs = (getattr(layout, SHORT_NAMES[short]) for layout in (one, other))
        found += _doublings(ours or 1, theirs or 1)
    return found + abs(cp - min(max(cp, 0.0), max(log2(times), 0.0)))


def _stage_distance(one: ParallelLayout, other: ParallelLayout) -> float:
    vpp = one.virtual_pipeline_model_parallel_size
    return (
        _doublings(one.pipeline_model_parallel_size, other.pipeline_model_parallel_size)
        + _doublings(vpp, other.virtual_pipeline_model_parallel_size) * _HALF_STEP
        + (one.data_parallel_sharding != other.data_parallel_sharding)
    )


def _doublings(one: float, other: float) -> float:
    return abs(log2(one / other))


def _with(job: Job, layout: ParallelLayout, size: int, place: Place) -> Job | None:
    """None where a job is illegal."""
    config = replace(job.config, micro_batch_size=size, seq_length=place.seq_length)
    try:
        return replace(job, layout=layout, config=config, num_gpus=place.num_gpus)
    except UserError:
        return None
