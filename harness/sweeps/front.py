"""What came of the points of a sweep, and which of them no other beats."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from msgspec import Struct

from advisor.base.units import DASH, human_bytes
from advisor.report.blocks import Column
from advisor.report.text import MAX_WIDTH, table_lines, wrap
from harness.base.collections import front, known
from harness.execution.runner import FAILED, MEASURED
from harness.sweeps.space import Point, Space
from harness.trial.result import TrialResult, TrialStatus, reason


class Outcome(Struct, frozen=True, kw_only=True):
    """A point's trial: median step of its slowest rank in seconds, and the largest peak of a rank
    in bytes (reserved where the device says, else allocated); None where it was not measured."""

    name: str
    status: TrialStatus
    step_seconds: float | None = None
    peak_bytes: int | None = None
    reason: str = ""

    @property
    def measured(self) -> bool:
        """Whether there are figures."""
        return self.status in MEASURED and None not in (self.step_seconds, self.peak_bytes)

    @property
    def failed(self) -> bool:
        """Whether it says nothing about the point."""
        return self.status in FAILED or (self.status in MEASURED and not self.measured)


def outcome_of(result: TrialResult) -> Outcome:
    """A result as the two objectives."""
    seconds = result.times.seconds if result.times else ()
    peaks = [m.allocated if m.reserved is None else m.reserved for m in result.memory]
    return Outcome(
        name=result.name,
        status=result.status,
        step_seconds=median(seconds) if seconds else None,
        peak_bytes=max(known(peaks), default=None),
        reason=reason(result.evidence) if result.evidence is not None else "",
    )


def pareto_front(outcomes: Mapping[Point, Outcome], budget: int | None) -> list[Point]:
    """Measured points within `budget` that no other beats in both objectives, fastest first."""
    rows = [
        (o.step_seconds, o.peak_bytes, point)
        for point, o in outcomes.items()
        if o.measured and o.step_seconds is not None and o.peak_bytes is not None
    ]
    within = [row for row in rows if budget is None or row[1] <= budget]
    return [point for _, _, point in front(within, lambda row: row[:2])]


def page(title: str, space: Space, outcomes: Mapping[Point, Outcome], budget: int | None) -> str:
    """The front, what it was found among, and why points have no figures."""
    best = pareto_front(outcomes, budget)
    lines = [title, "", "Pareto front of step time and peak memory:" if best else _nothing(budget)]
    lines += _table(space, [(point, outcomes[point]) for point in best])
    rest = [(point, o) for point, o in outcomes.items() if point not in best]
    if rest:
        lines += ["", "The other points:", *_table(space, rest)]
    reasons = dict.fromkeys(f"{p.label}: {o.reason}" for p, o in rest if o.reason)
    for text in ("", *reasons, "", _counts(space, outcomes)):
        lines += wrap(text, MAX_WIDTH) or [""]
    notes = (f"Note: {text}." for text in space.target.assumptions)
    return "\n".join([*lines, *(line for note in notes for line in wrap(note, MAX_WIDTH))]) + "\n"


def _nothing(budget: int | None) -> str:
    return "No point was measured" + ("." if budget is None else f" within {human_bytes(budget)}.")


def _table(space: Space, rows: Sequence[tuple[Point, Outcome]]) -> list[str]:
    if not rows:
        return []
    columns = [Column(title=title, left=title in _LEFT) for title in _TITLES]
    return table_lines(columns, [_row(space, point, o) for point, o in rows], indent=0)


def _row(space: Space, point: Point, outcome: Outcome) -> list[str]:
    rank = space.planned[point].rank
    seconds, peak = outcome.step_seconds, outcome.peak_bytes
    return [
        DASH if rank is None else str(rank),
        point.layout,
        str(point.micro_batch_size),
        point.recompute,
        str(outcome.status),
        DASH if seconds is None else f"{seconds * 1e3:.1f}",
        DASH if peak is None else human_bytes(peak),
    ]


def _counts(space: Space, outcomes: Mapping[Point, Outcome]) -> str:
    counts = Counter(str(outcome.status) for outcome in outcomes.values())
    words = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    return f"{len(outcomes)} of {len(space.planned)} points: {words or 'none yet'}."


_TITLES: Final = ("#", "layout", "mbs", "setting", "status", "step ms", "peak")
_LEFT: Final = ("layout", "setting", "status")
