"""A sweep in a terminal: what came of its points, or what is planned."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from advisor.base.pareto import pareto_front
from advisor.base.units import human_bytes, percent
from advisor.report.blocks import Block, Column, group, spec_cell, table
from advisor.report.text import on_screen
from harness.judge.predicted import or_dash
from harness.sweeps.history import Outcome
from harness.sweeps.priority import End
from harness.sweeps.space import Point, Space
from harness.trial.trial import Prediction


def fastest_and_smallest(outcomes: Mapping[Point, Outcome], budget: int | None) -> list[Point]:
    """Points measured to the end, within `budget`, that no other beats in both, fastest first."""
    found = [point for point, o in outcomes.items() if o.measured and o.within(budget)]
    return pareto_front(
        found, lambda p: (outcomes[p].step_seconds or 0.0, outcomes[p].peak_bytes or 0)
    )


_MOST_REASONS: Final = 5
_NAMES: Final = ("#", "layout", "mbs", "setting")
_FIGURES: Final = ("status", "step ms", "predicted ms", "peak", "predicted peak")
_LEFT: Final = ("layout", "setting", "status")


def page(title: str, space: Space, outcomes: Mapping[Point, Outcome], ended: End) -> str:
    """The front, what it was found among, why points have no figures, and why it ended."""
    best = fastest_and_smallest(outcomes, space.budget_bytes)
    rest = {point: outcome for point, outcome in outcomes.items() if point not in best}
    counts = Counter(str(outcome.status) for outcome in outcomes.values())
    words = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    budget = space.budget_bytes
    within = "" if budget is None else f" within {human_bytes(budget)}"
    front = "Pareto front of step time and peak memory:"
    lines = (
        *(title, "", front if best else f"No point was measured{within}."),
        *_measured(space, {point: outcomes[point] for point in best}, ended.tied),
        *(("", "The other points:") if rest else ()),
        *_measured(space, rest, ended.tied),
        "",
        *dict.fromkeys(f"{p.label}: {o.reason}" for p, o in rest.items() if o.reason),
        f"{len(outcomes)} of {len(space.legal)} points: {words or 'none yet'}.",
        *_not_run(space),
        ended.words,
        *_assumptions(space),
    )
    return on_screen(group(*lines))


def dry_page(title: str, space: Space, folder: Path) -> str:
    """The points that may be run, in the advisor's order, and what is predicted of them."""
    rows = [
        [*_names(space, point), *_predicted(space.planned[point].trial.prediction)]
        for point in space.legal
    ]
    where = f"{len(rows)} points; results go to {folder}"
    lines = [title, where, "", *_table((*_NAMES, "step ms", "peak", "fits"), rows)]
    return on_screen(group(*lines, "", *_not_run(space), *_assumptions(space)))


def _measured(space: Space, found: Mapping[Point, Outcome], tied: Sequence[Point]) -> list[Block]:
    rows = []
    for point, outcome in found.items():
        step, peak, _ = _predicted(space.planned[point].trial.prediction)
        status = str(outcome.status) + (f" x{outcome.processes}" if outcome.processes > 1 else "")
        rows.append(
            [
                *_names(space, point),
                f"{status}, tied" if point in tied else status,
                *(or_dash(outcome.step_seconds, _milliseconds), step),
                *(or_dash(outcome.peak_bytes, human_bytes), peak),
            ]
        )
    return _table((*_NAMES, *_FIGURES), rows) if rows else []


def _table(titles: Sequence[str], rows: Sequence[Sequence[Block]]) -> list[Block]:
    found = table(
        Column(title=title, left=title in _LEFT, wrap=title in _WRAPS, above=title in _WRAPS)
        for title in titles
    )
    for row in rows:
        found.add_row(*row)
    return [found]


_WRAPS: Final = ("layout", "setting")


def _names(space: Space, point: Point) -> list[Block]:
    place = or_dash(space.planned[point].rank, str)
    return [place, point.layout, str(point.micro_batch_size), spec_cell(point.recompute)]


def _predicted(predicted: Prediction | None) -> tuple[str, str, str]:
    predicted = predicted or Prediction()
    step, peak = predicted.step_time_seconds, predicted.peak_reserved_bytes
    fits = or_dash(predicted.fit_probability, percent)
    return or_dash(step, _milliseconds), or_dash(peak, human_bytes), fits


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _not_run(space: Space) -> list[str]:
    """How many points may not run, for which reasons."""
    skipped = Counter(planned.skip for planned in space.planned.values() if planned.skip)
    if not skipped:
        return []
    number = skipped.total()
    lines = ["1 point is not run:" if number == 1 else f"{number} points are not run:"]
    lines += [f"- {number}: {reason}." for reason, number in skipped.most_common(_MOST_REASONS)]
    more = len(skipped) - _MOST_REASONS
    words = "reason" if more == 1 else "reasons"
    return [*lines, f"- and for {more} more {words}."] if more > 0 else lines


def _assumptions(space: Space) -> list[str]:
    return [f"Note: {text}." for text in space.target.assumptions]
