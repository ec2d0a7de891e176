"""`--plot-kind time`: the step of the best rows by phase."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.report.figures.kit import GREY, PHASES, bold_tick, legend_patches, soften, stacked_bars
from advisor.report.figures.titles import row_label, rows_title
from advisor.report.ranking_table import Rows
from advisor.report.wording import chosen, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS: Final = 24
_BAND: Final[dict[str, Any]] = {"color": GREY, "linewidth": 1.2, "marker": "|", "markersize": 4}
_LABEL_WIDTH: Final = 34  # characters


def time_figure(advice: Answer, top: int | None) -> "Figure":
    """Seconds of a step of the rows that a page shows, stacked by phase, with the band around each
    step; rows that do not fit are said to."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shown = Rows(top=top).shown(advice.candidates)[:MOST_ROWS]
    labels = [row_label(row, shown, _LABEL_WIDTH) for row in shown]
    lines = sum(label.count("\n") + 1.8 for label in labels)
    figure = Figure(figsize=(11, max(3.2, 1.9 + 0.21 * lines)), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(rows_title(advice, len(shown), MOST_ROWS), fontsize=11)
    parts = [
        (look, [getattr(row.evaluation.time_seconds, phase) for row in shown])
        for phase, look in PHASES.items()
    ]
    drawn = [(look, lengths) for look, lengths in parts if any(lengths)]
    stacked_bars(axes, drawn, height=0.66)
    smallest = min(row.evaluation.step_time_seconds for row in shown)
    for place, row in enumerate(shown):
        one = row.evaluation
        axes.plot(
            [one.step_time_low_seconds, one.step_time_high_seconds], [place + 0.42] * 2, **_BAND
        )
        words = f"{seconds(one.step_time_seconds, smallest)} s"
        words += "" if one.fits else ", does not fit"
        axes.annotate(
            words,
            (max(one.step_time_seconds, one.step_time_high_seconds), place),
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=8,
        )
    best = chosen(advice)
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    bold_tick(axes, (row is best for row in shown))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * max(row.evaluation.step_time_high_seconds for row in shown))
    axes.set_xlabel("seconds of one step on the slowest stage")
    soften(axes, "x")
    band = Line2D([], [], **_BAND, label=f"band of the step time ({_band_words(shown)})")
    handles = [*legend_patches(look for look, _ in drawn), band]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _band_words(shown: Sequence[RankedEvaluation]) -> str:
    """``±12 %``, or ``±12 to 19 %`` where it is not the same around all rows."""
    wide = sorted(
        round(100 * (one.step_time_high_seconds / one.step_time_seconds - 1))
        for one in (row.evaluation for row in shown)
    )
    return f"±{wide[0]} %" if wide[0] == wide[-1] else f"±{wide[0]} to {wide[-1]} %"
