"""`--plot-kind ranking`: memory against step time of the best rows, and their memory by component
beside the budget.

A point has the name of its row where there is room for it, otherwise its rank, which stands again
at its bar.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.units import GIB
from advisor.report.breaking import spec_lines
from advisor.report.explain_page import COMPONENTS
from advisor.report.figures.palette import (
    BLUE,
    COMPONENT_LOOKS,
    GREY,
    VERMILION,
    draw_budget,
    row_label,
    rows_title,
)
from advisor.report.figures.point_labels import label_points
from advisor.report.job_changes import degrees_apart
from advisor.report.wording import chosen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CANDIDATES: Final = 24
_LABEL_WIDTH: Final = 30  # characters


def ranking_figure(advice: Answer, top: int | None) -> "Figure":
    """The `top` best rows, 24 at most."""
    from matplotlib.figure import Figure

    shown = advice.candidates[: min(top or MAX_CANDIDATES, MAX_CANDIDATES)]
    best = chosen(advice)
    labels = [row_label(candidate, shown, _LABEL_WIDTH) for candidate in shown]
    num_lines = sum(label.count("\n") + 1.6 for label in labels)
    figure = Figure(figsize=(13, max(4.8, 2.2 + 0.19 * num_lines)), layout="constrained")
    scatter, bars = figure.subplots(1, 2, width_ratios=(6, 5))
    figure.suptitle(rows_title(advice, len(shown), MAX_CANDIDATES), fontsize=11)
    draw_pareto(scatter, shown)
    draw_components(bars, shown, labels, best)
    handles = [*scatter.get_legend_handles_labels()[0], *bars.get_legend_handles_labels()[0][1:]]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    first = best or shown[0]
    points = {row.rank: _point(row) for row in sorted(shown, key=partial(_later, first))}
    label_points(scatter, points, first.rank, {row.rank: _name(row, first) for row in shown})
    return figure


def _later(best: RankedEvaluation, row: RankedEvaluation) -> tuple[bool, bool, int]:
    """The order in which rows get a name: the choice, the front, the others."""
    return row is not best, not row.pareto, row.rank


def _name(row: RankedEvaluation, best: RankedEvaluation) -> list[str]:
    """Rank and setting; below it the degrees that its layout has and that of the choice has not."""
    lines = spec_lines(f"{row.rank} {row.evaluation.setting.spec}", _LABEL_WIDTH)
    degrees = degrees_apart(row.evaluation.job, best.evaluation.job)
    return [*lines, f"    {', '.join(degrees)}"] if degrees else lines


def draw_pareto(axes: "Axes", shown: Sequence[RankedEvaluation]) -> None:
    """Peak memory (GiB) against step time (s); numbers are ranks, the line joins the Pareto set."""
    front = sorted((_point(c) for c in shown if c.pareto), key=lambda point: point[0])
    axes.plot(
        [x for x, _ in front],
        [y for _, y in front],
        color=GREY,
        linewidth=1,
        zorder=1,
        label="Pareto front",
    )
    for fits, marker, colour in ((True, "o", BLUE), (False, "X", VERMILION)):
        points = [_point(c) for c in shown if c.evaluation.fits is fits]
        if points:
            label = "fits" if fits else "does not fit"
            x, y = zip(*points, strict=True)
            axes.scatter(
                x,
                y,
                s=42,
                marker=marker,
                color=colour,
                edgecolors="white",
                linewidths=0.6,
                zorder=2,
                label=label,
            )
    draw_budget(axes, shown[0].evaluation.budget_bytes)
    axes.set(xlabel="peak reserved memory of the worst rank (GiB)", ylabel="step time (s)")
    axes.set_title("Step time (s) against peak memory (GiB)")
    axes.margins(0.15)
    axes.grid(alpha=0.25)


def draw_components(
    axes: "Axes",
    shown: Sequence[RankedEvaluation],
    labels: Sequence[str],
    best: RankedEvaluation | None,
) -> None:
    """One stacked bar a candidate, GiB of its worst rank by component, and the budget."""
    places = list(range(len(shown)))
    start = [0.0] * len(shown)
    for component in COMPONENTS:
        sizes = [getattr(c.evaluation.peak.memory_bytes, component) / GIB for c in shown]
        axes.barh(
            places,
            sizes,
            left=start,
            label=component,
            height=0.72,
            **COMPONENT_LOOKS[component].fill,
        )
        start = [before + size for before, size in zip(start, sizes, strict=True)]
    axes.set_yticks(places, labels, fontsize=8)
    for tick, candidate in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_fontweight("bold" if candidate is best else "normal")
    axes.invert_yaxis()
    draw_budget(axes, shown[0].evaluation.budget_bytes)
    axes.set_xlabel("memory of the worst rank at its peak (GiB)")
    axes.set_title("Peak memory by component (GiB)")


def _point(candidate: RankedEvaluation) -> tuple[float, float]:
    evaluation = candidate.evaluation
    return evaluation.peak_reserved_bytes / GIB, evaluation.step_time_seconds
