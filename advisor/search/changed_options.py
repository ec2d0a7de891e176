"""Options of a job that a search may change, besides its layout, micro batch and recompute; and a
row without those changes that do nothing for it."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError, if_legal
from advisor.frameworks.part_types import Effect, JobChange
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import EVEN, ParallelLayout
from advisor.request.layout_fields import SEARCHED
from advisor.request.origin import GIVEN, GROUPS, changed_fields, changed_values
from advisor.request.resolve import Resolution
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import UNFIT, tier

PARTS = ("model", "layout", "config")


def changes(job: Job, effects: frozenset[Effect] = frozenset(Effect)) -> Iterator[JobChange]:
    """The framework's own that have one of `effects`, and the allocator's segments, which vLLM's
    sleep mode refuses (device_allocator/cumem.py)."""
    sleeps = job.config.rl.shares_gpus and job.config.rl.sleep_level
    if Effect.FREE in effects and not (job.config.expandable_segments or sleeps):
        yield JobChange(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "less fragmentation",
            lambda: replace(job, config=replace(job.config, expandable_segments=True)),
            Effect.FREE,
        )
    changes = parts_of(job.config.framework).jobs.job_changes(job)
    yield from (change for change in changes if change.effect in effects)
    if Effect.MEMORY in effects and job.config.rl.has_phases:
        from advisor.search.phase_changes import phase_changes

        yield from phase_changes(job)


def variants(
    job: Job, effects: frozenset[Effect], resolution: Resolution
) -> Iterator[tuple[JobChange, Job]]:
    """Legal jobs with one change each, of nothing that was given."""
    settings = parts_of(job.config.framework).settings
    for change in changes(job, effects):
        other = if_legal(change.make)
        if other is None or other == job or is_given(job, other, resolution):
            continue
        if not settings.check_job(other):
            yield change, other


def is_given(job: Job, other: Job, resolution: Resolution) -> bool:
    """Whether an option in which jobs differ was given."""
    return any(resolution.origins.get(path) == GIVEN for path in changed(job, other))


def changed(before: Job | Resolution, other: Job) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value of `other`, of options in which it differs from another job, or from
    what was resolved; what layouts and micro batches decide is left out."""
    found: dict[str, Any] = {}
    for group, part in GROUPS.items():
        values = getattr(other, part)
        found.update(changed_values(group, values, getattr(before, part) or values))
    return {path: value for path, value in found.items() if path.partition(".")[2] not in CHOSEN}


CHOSEN = SEARCHED | frozenset(
    ("micro_batch_size", "data_parallel_sharding", "hierarchical_context_parallel_sizes", *EVEN)
)
"""Fields of a job that layouts and micro batches decide."""


class Root(Struct, frozen=True):
    """A job as it was resolved, except options that a search has changed; and any of its kind.
    lighter: the same with a change each that saves memory, and no time."""

    resolution: Resolution
    template: Job
    lighter: tuple["Root", ...] = ()

    def job(self, layout: ParallelLayout, micro_batch_size: int) -> Job | None:
        """The job on a layout; None where it is illegal."""
        return if_legal(self.resolution.job, layout, micro_batch_size)


def roots(resolution: Resolution, templates: tuple[Job, ...]) -> tuple[Root, ...]:
    """The job with every change that makes it no slower, and that with every change of an exchange
    that is legal for one of `templates`, jobs of the resolution that stand for all; each with what
    saves memory."""
    found: list[Root] = []
    for template in templates:
        free = template
        for change in changes(template, frozenset((Effect.FREE, Effect.SPEED))):
            free = _with(free, change, resolution)
        jobs = [free]
        for _ in range(_EXCHANGES):
            for job in tuple(jobs):
                others = _variants_of(job, Effect.EXCHANGE, resolution)
                jobs += (other for other in others if other not in jobs)
        _add_new(found, (Root(_as_resolved(resolution, template, job), job) for job in jobs))
    return tuple(_with_lighter(root, templates) for root in found)


def _add_new(found: list[Root], others: Iterable[Root]) -> None:
    for other in others:
        if all(other.resolution != one.resolution for one in found):
            found.append(other)


def _with_lighter(root: Root, templates: tuple[Job, ...]) -> Root:
    found: list[Root] = []
    for template in templates:
        job = root.job(template.layout, template.config.micro_batch_size)
        if job is None:
            continue
        others = _variants_of(job, Effect.MEMORY, root.resolution)
        _add_new(
            found, (Root(_as_resolved(root.resolution, job, other), other) for other in others)
        )
    return replace(root, lighter=tuple(found))


def _variants_of(job: Job, effect: Effect, resolution: Resolution) -> tuple[Job, ...]:
    return tuple(other for _, other in variants(job, frozenset((effect,)), resolution))


_EXCHANGES = 2
"""Changes of an exchange that go together: its kernels, and what runs next to it."""


def _with(job: Job, change: JobChange, resolution: Resolution) -> Job:
    """`job` with the change of the same words, or as it is where that is illegal."""
    same = (
        other
        for found, other in variants(job, frozenset((change.effect,)), resolution)
        if found.words == change.words
    )
    return next(same, job)


def _as_resolved(resolution: Resolution, before: Job, after: Job) -> Resolution:
    """`resolution` with the options in which `after` differs from `before`."""
    values = {
        part: {
            name: getattr(getattr(after, part), name)
            for name in changed_fields(getattr(before, part), getattr(after, part))
            if name not in CHOSEN
        }
        for part in PARTS
    }
    layout = resolution.layout or type(after.layout)()
    fields = {k: v for k, v in resolution.layout_fields.items() if k not in values["layout"]}
    return replace(
        resolution,
        model=replace(resolution.model, **values["model"]),
        config=replace(resolution.config, **values["config"]),
        layout=replace(layout, **values["layout"]),
        layout_fields=fields,
    )


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
        other = other.simulated
    larger = other.peak_reserved_bytes > row.peak_reserved_bytes
    return row if tier(other) > tier(row) or (larger and tier(row) == UNFIT) else other
