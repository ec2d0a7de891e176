"""The results of single ranks as the result of their trial."""

from collections.abc import Mapping
from statistics import median
from typing import Final

from msgspec.structs import replace

from harness.trial.result import StepTimes, TrialResult, TrialStatus

_WORST_FIRST: Final = (
    TrialStatus.OOM,
    TrialStatus.NAN,
    TrialStatus.FAILED,
    TrialStatus.NCCL_ERROR,
    TrialStatus.TIMEOUT,
    TrialStatus.NO_DATA,
    TrialStatus.INCOMPLETE,
    TrialStatus.SKIPPED,
    TrialStatus.PRUNED,
    TrialStatus.UNSTABLE,
    TrialStatus.OK,
)
"""Causes before consequences: the ranks that wait for a dead one report NCCL errors."""

DONE: Final = (TrialStatus.OK, TrialStatus.UNSTABLE, TrialStatus.PRUNED, TrialStatus.SKIPPED)


def failed_ranks(ranks: Mapping[int, TrialResult]) -> tuple[int, ...]:
    """Ranks that say that they failed."""
    return tuple(rank for rank, result in ranks.items() if result.status not in DONE)


def merge(ranks: Mapping[int, TrialResult]) -> TrialResult:
    """One result of all ranks: the worst status with its evidence, the times of the slowest rank
    in every step, the memory of each rank, the timeline of the rank with the highest peak, and the
    loss of the last rank, which holds the last pipeline stage."""
    ordered = [ranks[rank] for rank in sorted(ranks)]
    worst = min(ordered, key=lambda result: _WORST_FIRST.index(result.status))
    memory = tuple(peak for result in ordered for peak in result.memory)
    fullest = max(ordered, key=_peak)
    return replace(
        worst,
        wall_seconds=max(result.wall_seconds for result in ordered),
        times=_times([result.times for result in ordered if result.times is not None]),
        memory=memory,
        timeline=fullest.timeline,
        flops=next((result.flops for result in ordered if result.flops is not None), None),
        loss=ordered[-1].loss,
        concerns=tuple(dict.fromkeys(c for result in ordered for c in result.concerns)),
    )


def _peak(result: TrialResult) -> int:
    return max((peak.allocated or 0 for peak in result.memory), default=0)


def _times(times: list[StepTimes]) -> StepTimes | None:
    """Element by element the slowest rank; the rank slowest in the median where lengths differ."""
    if not times:
        return None
    slowest = max(times, key=lambda one: median(one.seconds) if one.seconds else 0.0)
    if len({(len(one.seconds), len(one.warmup_seconds)) for one in times}) > 1:
        return slowest
    return replace(
        slowest,
        seconds=tuple(max(step) for step in zip(*(t.seconds for t in times), strict=True)),
        warmup_seconds=tuple(
            max(step) for step in zip(*(t.warmup_seconds for t in times), strict=True)
        ),
    )
