"""Jobs near one: other degrees, micro batches and sequence lengths, the nearest first."""

from collections.abc import Iterator
from itertools import count
from math import log2
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import divisors
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.request.layout_fields import freed
from advisor.request.resolve import Resolution
from advisor.search.changed_options import CHOSEN
from advisor.search.layouts import groups, of_group

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
    """Layouts near the job's own, with its options, and how far away they are."""
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    own = job.layout
    for group in groups(free):
        away = _group_distance(group, own)
        if away > furthest or not _same_context(group, own):
            continue
        for other in of_group(free, group):
            further = away + _stage_distance(other, own)
            if further <= furthest and job.config.global_batch_size % other.data_parallel_size == 0:
                yield further, replace(own, **{name: getattr(other, name) for name in _DEGREES})


def _same_context(group: ParallelLayout, own: ParallelLayout) -> bool:
    """Context parallelism of one kind: the job's, or the usual one where it has none."""
    plain = group.hierarchical_context_parallel_sizes is None
    return group.context_parallel_size == 1 or (plain and group.cp_comm_type is own.cp_comm_type)


def _group_distance(one: ParallelLayout, other: ParallelLayout) -> float:
    return (
        _doublings(one.tensor_model_parallel_size, other.tensor_model_parallel_size)
        + _doublings(one.context_parallel_size, other.context_parallel_size)
        + _doublings(one.expert_model_parallel_size, other.expert_model_parallel_size)
        + _doublings(one.expert_tensor_parallel_size or 1, other.expert_tensor_parallel_size or 1)
    )


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
