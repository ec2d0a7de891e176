"""Jobs near one: other degrees, micro batches, sequence lengths, numbers of GPUs, ranks of its
adapter and shares of its rollout engine."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count, islice, takewhile
from math import log2
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError, divisors, if_legal
from advisor.base.pareto import dominators
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job, JobConfig
from advisor.job.layout import SHORT_NAMES, ParallelLayout
from advisor.job.tuning import Tuning
from advisor.learning.learned import LearnedCalibration
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.report.job_changes import apart, layout_cells
from advisor.request.layout_fields import freed
from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve
from advisor.search.changed_options import CHOSEN
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Progress, Watch
from advisor.search.layouts import dense_groups, of_group, with_experts
from advisor.search.measured_rows import corrected
from advisor.search.ranking import UNFIT, first_simulated, memory_and_time, order, tier

_FASTER: Final = 2.0
"""Doublings that a job which takes twice as long is further away."""
_NEAR, _LOOKED_AT = (3.0, 2.0, 2.0, 0.0), (90, 16, 8, 1)
"""Doublings up to which jobs are near, and how many of the nearest are looked at: with the job's
own number of GPUs and sequence length, with another one of them, with others of both, and with
another adapter or engine."""
_MOST, _UNFIT = (640, 80, 20, 20), (30, 2, 1, 1)
"""Stages of rows of jobs that fit after which no others are looked at, as each takes its time; and
jobs that do not fit."""
_EACH: Final = 10
"""Rows of a job that is near."""


class Place(Struct, frozen=True):
    """A number of GPUs and options that jobs are looked for at; in how many of number and length
    they are not the job's own."""

    num_gpus: int
    config: JobConfig
    changed: int = 0


class Grid(Struct, frozen=True):
    """Jobs, the answer's own first, each with its rows; `own` is the one that is chosen."""

    own: Job
    jobs: tuple[tuple[Job, tuple[Evaluation, ...]], ...]


def grid(answer: Answer, request: Request, watch: Watch | None = None) -> Grid:
    """All rows of `answer`, which has some, and those of jobs near the one that it begins with;
    `watch` is told how far it is."""
    best = answer.leading
    assert best is not None
    first, own = best.evaluation, best.evaluation.job
    evaluator = Evaluator(own, first.calibration)
    every = [first, *_evaluated(evaluator, parts_of(own.config.framework).settings.candidates(own))]
    frugal = max(every, key=lambda row: row.step_time_seconds).setting
    found: dict[Job, list[Evaluation]] = {own: []}
    if answer.fastest_found:
        others = (row for row in every[1:] if row.setting != first.setting)
        found[own] = list(first_simulated([first, *others]))
    for candidate in answer.candidates:
        found.setdefault(candidate.evaluation.job, []).append(candidate.evaluation)
    seen, places = {differs(job, own) for job in found}, tuple(_places(own))
    resolution = resolve(request)
    for number, place in enumerate(places):
        most, unfit = _MOST[place.changed], _UNFIT[place.changed]
        for one in _promising(own, resolution, place, first.calibration):
            words = differs(one.job, own)
            if words in seen or most <= 0:
                continue
            rows = _rows(one, frugal)
            if place.changed == _OTHER:
                rows = list(first_simulated(rows))
            fits = any(row.fits for row in rows)
            if rows and (fits or unfit > 0):
                seen.add(words)
                found[one.job] = rows
            most -= len(rows) * fits * one.job.layout.pipeline_model_parallel_size
            unfit -= not fits
        if watch is not None:
            evaluated = sum(map(len, found.values()))
            watch(Progress(best=first, evaluated=evaluated, share=number / len(places)))
    return Grid(own, tuple((job, tuple(rows)) for job, rows in found.items()))


def differs(job: Job, other: Job) -> str:
    """``64 GPUs, PP 2, micro batch 2``: in what `job` is another one than `other`."""
    gpus = f"{job.num_gpus} GPUs" if job.num_gpus != other.num_gpus else ""
    return ", ".join(filter(None, [gpus, apart(job, other)]))


def _promising(
    own: Job, resolution: Resolution, place: Place, calibration: Calibration
) -> list[Evaluator]:
    """Of the nearest jobs first the nearest with each value of a control, elsewhere that with the
    job's own layout; then the nearest and fastest."""
    seen, found = _values(own), []
    near = islice(nearby(own, resolution, place), _LOOKED_AT[place.changed])
    for number, (away, job) in enumerate(near):
        one, values = Evaluator(job, calibration), _values(job)
        later = number > 0 if place.changed else values <= seen
        seen |= values
        found.append((later, away + _FASTER * log2(one.at_least_seconds), number, one))
    return [one for *_, one in sorted(found, key=lambda found: found[:-1])]


def _values(job: Job) -> set[tuple[str, str]]:
    return {pair for pair in layout_cells(job).items() if pair[0] != "DP"}


def _rows(evaluator: Evaluator, frugal: Setting) -> list[Evaluation]:
    """No recompute, and what no other setting beats; the frugal one alone, which as a rule keeps
    least, where it does not fit; none of an illegal job."""
    tried = parts_of(evaluator.job.config.framework).settings.tried(evaluator.job)
    last = frugal if frugal in tried else max(tried, key=evaluator.seconds)
    smallest = [*_evaluated(evaluator, [last])]
    if smallest and tier(smallest[0]) == UNFIT:
        return smallest
    return _front([*smallest, *_evaluated(evaluator, (one for one in tried if one != last))])


def _evaluated(evaluator: Evaluator, settings: Iterable[Setting]) -> Iterator[Evaluation]:
    """Those of them that are legal."""
    job, calibration = evaluator.job, evaluator.calibration
    for setting in settings:
        if not parts_of(job.config.framework).settings.check(setting, job):
            row = evaluator.evaluate(setting)
            if isinstance(calibration, LearnedCalibration):
                row = corrected(row, calibration)
            yield row


def _front(rows: Iterable[Evaluation]) -> list[Evaluation]:
    """No recompute and what no other beats, the smallest first; both ends, and `_EACH` at most."""
    ranked = sorted(rows, key=order)
    beaten_by = dominators([memory_and_time(row) for row in ranked])
    pairs = zip(ranked, beaten_by, strict=True)
    front = [row for row, by in pairs if by is None or not recomputes(row.setting)]
    front.sort(key=lambda row: row.peak_reserved_bytes)
    last, most = len(front) - 1, min(len(front), _EACH)
    return [front[round(place * last / max(1, most - 1))] for place in range(most)]


_COUNTS: Final = (1, 0.5, 2, 4)
"""Numbers of GPUs, as multiples of the job's own."""
_LONGEST: Final = 131_072
"""Tokens up to which sequences are doubled."""
_DEGREES: Final = tuple(name for name in ParallelLayout.__struct_fields__ if name in CHOSEN)
_CUTS: Final = tuple(SHORT_NAMES[short] for short in ("TP", "CP", "PP", "EP", "ETP"))
_HALF_STEP: Final = 0.5
"""Distance of twice the VPP: a change of the schedule alone moves a job less than one of what a
rank holds."""


_RANKS: Final = (8, 16, 32, 64, 128)
_SHARES: Final = tuple(tenths / 10 for tenths in range(2, 10))
_OTHER: Final = 3
"""What is changed where it is neither number nor length."""


def length_of(config: JobConfig) -> int:
    """Tokens of a sequence; of packs those that a GPU may have."""
    return config.samples.token_budget or config.seq_length


def _of_length(config: JobConfig, length: int) -> JobConfig:
    if config.samples.token_budget is None:
        return replace(config, seq_length=length)
    return replace(config, samples=replace(config.samples, token_budget=length))


def _places(own: Job) -> Iterator[Place]:
    """Those of the controls. No sample is longer than the longest."""
    gpus, config = own.num_gpus, own.config
    length, said = length_of(config), config.samples
    lengths = [length, length // 2]
    longest = _LONGEST if said.packed or not said.varies else length
    lengths += takewhile(lambda one: one <= longest, (length << n for n in count(1)))
    for times in _COUNTS:
        for other in filter(None, lengths):
            there = if_legal(_of_length, config, other)
            if there and gpus * times == int(gpus * times):
                yield Place(int(gpus * times), there, (times != 1) + (other != length))
    for there in filter(None, _others(config)):
        yield Place(gpus, there, _OTHER)


def _others(config: JobConfig) -> Iterator[JobConfig | None]:
    """Other ranks of its adapter and no adapter; other shares of the GPU for its engine."""
    tuning, rl = config.tuning, config.rl
    if tuning.has_adapter:
        others = (*(replace(tuning, rank=rank) for rank in _RANKS), Tuning())
        yield from (if_legal(replace, config, tuning=other) for other in others)
    for share in _SHARES if rl.shares_gpus else ():
        yield replace(config, rl=replace(rl, gpu_memory_utilization=share))


def nearby(job: Job, resolution: Resolution, place: Place) -> Iterator[tuple[float, Job]]:
    """Jobs at `place` that differ from `job` in degrees or micro batch, the nearest first, each
    with how many doublings away it is in all. Elsewhere they have no larger micro batch, and of
    those that differ in VPP and sharding there is one. Whether a framework takes them is left open.
    """
    config = replace(resolution.config, seq_length=place.config.seq_length)
    there = replace(resolution, num_gpus=place.num_gpus, config=config)
    own, batch = job.config.micro_batch_size, job.config.global_batch_size
    ranks = job.layout.world_size // job.layout.data_parallel_size
    same = replace(job.layout, data_parallel_size=max(1, place.num_gpus // ranks))
    furthest, found = _NEAR[place.changed], [(0.0, same, own)]
    for away, layout in _layouts(job, there, furthest):
        sizes = divisors(batch // layout.data_parallel_size)
        for size in sizes if job.config.samples.token_budget is None else (own,):
            found.append((away + abs(log2(size / own)), layout, size))
    seen = set[tuple[int, ...]]()
    for away, layout, size in sorted(found, key=lambda one: one[0]):
        cuts = (size, *(getattr(layout, name) for name in _CUTS))
        if away > furthest or (place.changed and (size > own or cuts in seen)):
            continue
        config = replace(place.config, micro_batch_size=size)
        with suppress(UserError):
            other = replace(job, layout=layout, config=config, num_gpus=place.num_gpus)
            seen.add(cuts)
            if other != job:
                yield away, other


def _layouts(
    job: Job, there: Resolution, furthest: float
) -> Iterator[tuple[float, ParallelLayout]]:
    """Layouts near the job's own, with its options, and how far away they are; with its kind of
    context parallelism, and of a sequence that is longer with as many times the CP."""
    own, batch = job.layout, job.config.global_batch_size
    layout, given = freed(there.layout, there.layout_fields)
    free = replace(there, layout=layout, layout_fields={"cp_comm_type": own.cp_comm_type, **given})
    longer = max(0.0, log2(there.config.seq_length / job.config.seq_length))
    for dense in dense_groups(free):
        cp = log2(dense.context_parallel_size / own.context_parallel_size) - longer
        cut = abs(cp) * (_HALF_STEP if longer else 1) + _apart(dense, own, "TP")
        if cut > furthest or dense.hierarchical_context_parallel_sizes is not None:
            continue
        for group in with_experts(free, dense):
            away = cut + _apart(group, own, "EP") + _apart(group, own, "ETP")
            for other in of_group(free, group) if away <= furthest else ():
                further = away + _apart(other, own, "PP") + _apart(other, own, "VPP") * _HALF_STEP
                further += other.data_parallel_sharding != own.data_parallel_sharding
                if further <= furthest and batch % other.data_parallel_size == 0:
                    yield further, replace(own, **{name: getattr(other, name) for name in _DEGREES})


def _apart(one: ParallelLayout, other: ParallelLayout, short: str) -> float:
    ours, theirs = (getattr(layout, SHORT_NAMES[short]) for layout in (one, other))
    return abs(log2((ours or 1) / (theirs or 1)))
