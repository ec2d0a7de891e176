"""What came of the points of a sweep, and which of them no other beats."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from advisor.base.units import DASH, human_bytes
from advisor.report.blocks import Column
from advisor.report.text import MAX_WIDTH, table_lines, wrap
from harness.base.collections import front
from harness.sweeps.history import Outcome
from harness.sweeps.space import Point, Space


def pareto_front(outcomes: Mapping[Point, Outcome], budget: int | None) -> list[Point]:
    """Points with figures within `budget` that no other beats in both objectives, fastest first."""
    rows = [
        (o.step_seconds, o.peak_bytes, point)
        for point, o in outcomes.items()
        if o.step_seconds is not None and o.peak_bytes is not None
    ]
    within = [row for row in rows if budget is None or row[1] <= budget]
    return [point for _, _, point in front(within, lambda row: row[:2])]


def page(title: str, space: Space, outcomes: Mapping[Point, Outcome], ended: str) -> str:
    """The front, what it was found among, why points have no figures, and why it ended."""
    best = pareto_front(outcomes, space.budget_bytes)
    lines = [title, ""]
    lines.append("Pareto front of step time and peak memory:" if best else _nothing(space))
    lines += _table(space, [(point, outcomes[point]) for point in best])
    rest = [(point, o) for point, o in outcomes.items() if point not in best]
    if rest:
        lines += ["", "The other points:", *_table(space, rest)]
    reasons = dict.fromkeys(f"{p.label}: {o.reason}" for p, o in rest if o.reason)
    for text in ("", *reasons, "", *_counts(space, outcomes), ended):
        lines += wrap(text, MAX_WIDTH) or [""]
    notes = (f"Note: {text}." for text in space.target.assumptions)
    return "\n".join([*lines, *(line for note in notes for line in wrap(note, MAX_WIDTH))]) + "\n"


def _nothing(space: Space) -> str:
    budget = space.budget_bytes
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


def _counts(space: Space, outcomes: Mapping[Point, Outcome]) -> list[str]:
    """How the points ended, and how many may not run, for which reasons."""
    counts = Counter(str(outcome.status) for outcome in outcomes.values())
    words = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    lines = [f"{len(outcomes)} of {len(space.legal)} points: {words or 'none yet'}."]
    skipped = Counter(planned.skip for planned in space.planned.values() if planned.skip)
    if skipped:
        lines.append(f"{skipped.total()} points are not run:")
        lines += [f"  {number}: {reason}" for reason, number in skipped.most_common(_MOST_REASONS)]
    return lines


_MOST_REASONS: Final = 5
_TITLES: Final = ("#", "layout", "mbs", "setting", "status", "step ms", "peak")
_LEFT: Final = ("layout", "setting", "status")
