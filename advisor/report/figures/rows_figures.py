"""`--plot-kind pareto`, `ranking` and `time`: memory against step time of the rows, step times.

pareto: of every row, the Pareto front as a step line; a point has the number of its row, and in the
margin a label at its height, or as near as the others let it. ranking: of the best rows, with their
memory by component and the budget; a point has the name of its row where there is room for it,
otherwise its rank, which stands again at its bar.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.answer.evaluation import StageMemory
from advisor.answer.phases import Phase
from advisor.base.units import GIB
from advisor.hardware.calibration import band_text
from advisor.report import blocks, job_changes, ranking_table
from advisor.report.figures import kit
from advisor.report.figures.point_labels import label_points
from advisor.report.figures.titles import job_title, row_label, rows_title
from advisor.report.wording import gib, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_FITTING: Final = 14
_MOST_OVER: Final = 4
"""Labels of rows that fit, the best first, and of those that do not, the smallest first."""
_FEW: Final = 24
_LABEL_WIDTH: Final = 58  # characters
_FONT: Final = 8
_LINE: Final = 0.16
_CHARACTER: Final = 0.075
"""Inches of one line of a label, and of a wide character."""
_WIDTH, _LEFT = 12.0, 0.72
_GAP: Final = 0.24
"""Inches of the picture, before its axes, and between those and the labels."""
_ABOVE, _BELOW = 0.5, 1.0
"""Inches for the title, and for axis and legend."""
_MARKS: Final = ((True, "o", kit.BLUE), (False, "X", kit.VERMILION))
"""Of rows that fit, and of those that do not."""


class _Picture(Struct, frozen=True):
    """What is drawn: the front from its smallest row to its fastest, the other rows, the choice,
    and the rows of the front that have a label."""

    front: Sequence[RankedEvaluation]
    beaten: Sequence[RankedEvaluation]
    best: RankedEvaluation
    labelled: Sequence[RankedEvaluation]

    @property
    def labels(self) -> list[list[str]]:
        return [_label(row, self.best) for row in self.labelled]


def pareto_figure(advice: Answer) -> "Figure":
    """All rows of an answer with some, their front, the budget and the choice; labels in the right
    margin."""
    from matplotlib.figure import Figure

    picture = _picture(advice)
    height = max(4.6, _ABOVE + _BELOW + _LINE * sum(len(label) + 0.5 for label in picture.labels))
    figure = Figure(figsize=(_WIDTH, height))
    margin = _GAP + _CHARACTER * max(len(line) for label in picture.labels for line in label)
    wide = 1 - (_LEFT + margin) / _WIDTH
    axes = figure.add_axes((_LEFT / _WIDTH, _BELOW / height, wide, 1 - (_ABOVE + _BELOW) / height))
    figure.suptitle(job_title(advice), fontsize=11, y=1 - 0.15 / height, verticalalignment="top")
    _draw_rows(axes, picture)
    _label_margin(axes, picture, height - _ABOVE - _BELOW, wide * _WIDTH)
    figure.legend(loc="lower center", ncols=7, fontsize=_FONT)
    label_points(axes, {row.rank: _point(row) for row in picture.labelled}, picture.best.rank)
    return figure


def _picture(advice: Answer) -> _Picture:
    best = advice.chosen
    assert best is not None
    front = by_memory([row for row in advice.candidates if row.pareto])
    named = [row for row in front if row.same_as is None or row is best]
    fitting = sorted((row for row in named if row.evaluation.fits), key=lambda row: row.rank)
    over = [row for row in named if not row.evaluation.fits]
    return _Picture(
        front=front,
        beaten=[row for row in advice.candidates if not row.pareto],
        best=best,
        labelled=by_memory([*fitting[:_MOST_FITTING], *over[:_MOST_OVER]]),
    )


def _draw_rows(axes: "Axes", picture: _Picture) -> None:
    """GiB reserved on the worst rank against seconds of a step, around the labelled rows; around
    all of them where they are few."""
    best, budget = picture.best, picture.best.evaluation.budget_bytes / GIB
    few = picture.beaten if len(picture.beaten) <= _FEW else ()
    x, y = _points([*picture.labelled, best, *few])
    low, high = min(*x, budget), max(*x, budget)
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    low, high = min(y), max(y)
    spare = 0.08 * (high - low) or 0.05 * high
    axes.set_ylim(low - spare, high + spare)
    outside = sum(not _inside(axes, row) for row in picture.beaten)
    words = "dominated" + f" ({outside} outside the picture)" * (outside > 0)
    axes.scatter(*_points(picture.beaten), s=9, color=kit.LIGHT, zorder=1, label=words)
    front = _points(picture.front)
    axes.step(*front, where="post", color=kit.GREY, linewidth=1, zorder=2, label="front")
    for fits, marker, colour in _MARKS:
        some = [row for row in picture.front if row.evaluation.fits is fits]
        if some:
            label = "on the front, fits" if fits else "on the front, does not fit"
            axes.scatter(*_points(some), s=30, marker=marker, color=colour, zorder=3, label=label)
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "label": "chosen"}
    axes.scatter(*_points([best]), s=150, zorder=4, **ring)
    kit.draw_budget(axes, best.evaluation.budget_bytes)
    axes.set(xlabel="peak reserved memory of the worst rank (GiB)", ylabel="step time (s)")
    kit.soften(axes)


def by_memory(rows: Sequence[RankedEvaluation]) -> list[RankedEvaluation]:
    """From the smallest to the largest: of a front, from the slowest to the fastest."""
    return sorted(rows, key=lambda row: row.evaluation.peak_reserved_bytes)


def spread(wanted: Sequence[float], sizes: Sequence[float], length: float) -> list[float]:
    """Middles of pieces of `sizes` between 0 and `length`, from the top down, as near to where they
    are `wanted` as the others let them; no two overlap where `length` is enough for all."""
    found: list[float] = []
    room = length
    for place, size in zip(wanted, sizes, strict=True):
        found.append(min(place, room - size / 2))
        room = found[-1] - size / 2
    floor = 0.0
    for index in reversed(range(len(found))):
        found[index] = max(found[index], floor + sizes[index] / 2)
        floor = found[index] + sizes[index] / 2
    return found


def _label_margin(axes: "Axes", picture: _Picture, height: float, wide: float) -> None:
    """Rank, setting and figures of each row right of the axes, of so many inches; a thin line joins
    them to the height of its point, where its rank stands again."""
    low, high = axes.get_ylim()
    sizes = [_LINE * (len(label) + 0.5) for label in picture.labels]
    places = [
        (row.evaluation.step_time_seconds - low) / (high - low) * height for row in picture.labelled
    ]
    rows = zip(picture.labelled, picture.labels, places, spread(places, sizes, height), strict=True)
    for row, label, place, middle in rows:
        axes.annotate(
            "\n".join(label),
            xy=(1, place / height),
            xycoords="axes fraction",
            xytext=(1 + _GAP / wide, middle / height),
            textcoords="axes fraction",
            fontsize=_FONT,
            fontweight="bold" if row is picture.best else "normal",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": kit.GREY,
                "linewidth": 0.6,
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _label(row: RankedEvaluation, best: RankedEvaluation) -> list[str]:
    """Rank, setting and figures; below it in what its layout differs from that of the choice."""
    evaluation = row.evaluation
    taken = seconds(evaluation.step_time_seconds, evaluation.step_time_seconds)
    figures = f"{gib(evaluation.peak_reserved_bytes)} GiB, {taken} s"
    lines = blocks.spec_lines(f"{row.rank}  {evaluation.setting.spec}  {figures}", _LABEL_WIDTH)
    layout = job_changes.apart(evaluation.job, best.evaluation.job)
    return [*lines, f"    {layout}"] if layout else lines


def _inside(axes: "Axes", row: RankedEvaluation) -> bool:
    x, y = _point(row)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    return bool(left <= x <= right and low <= y <= high)


def _point(row: RankedEvaluation) -> tuple[float, float]:
    evaluation = row.evaluation
    return evaluation.peak_reserved_bytes / GIB, evaluation.step_time_seconds


def _points(rows: Sequence[RankedEvaluation]) -> tuple[list[float], list[float]]:
    points = [_point(row) for row in rows]
    return [x for x, _ in points], [y for _, y in points]


MAX_CANDIDATES: Final = 24
_NAME_WIDTH: Final = 30  # characters


def ranking_figure(advice: Answer, top: int | None) -> "Figure":
    """The `top` best rows, 24 at most."""
    from matplotlib.figure import Figure

    shown = advice.candidates[: min(top or MAX_CANDIDATES, MAX_CANDIDATES)]
    best = advice.chosen
    labels = [row_label(candidate, shown, _NAME_WIDTH) for candidate in shown]
    num_lines = sum(label.count("\n") + 1.6 for label in labels)
    figure = Figure(figsize=(13, max(4.8, 2.2 + 0.19 * num_lines)), layout="constrained")
    scatter, bars = figure.subplots(1, 2, width_ratios=(6, 5))
    figure.suptitle(rows_title(advice, len(shown), MAX_CANDIDATES), fontsize=11)
    draw_pareto(scatter, shown)
    lead = advice.leading
    if lead is not None and (phases := lead.evaluation.phases):
        decides, spec = lead.evaluation.phase, lead.evaluation.setting.spec
        draw_memory(bars, phases, [one.name for one in phases], [p is decides for p in phases])
        name = "the fastest found" if advice.fastest_found else f"row {lead.rank}"
        bars.set_title(f"Phases of a cycle with {name}, {spec} (GiB)")
    else:
        peaks = [candidate.evaluation.peak for candidate in shown]
        draw_memory(bars, peaks, labels, [candidate is best for candidate in shown])
    kit.draw_budget(bars, shown[0].evaluation.budget_bytes)
    handles = [*scatter.get_legend_handles_labels()[0], *bars.get_legend_handles_labels()[0][1:]]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    first = best or shown[0]
    # rows get a name in this order: the choice, the front, the others
    ordered = sorted(shown, key=lambda row: (row is not first, not row.pareto, row.rank))
    points = {row.rank: _point(row) for row in ordered}
    label_points(scatter, points, first.rank, {row.rank: _name(row, first) for row in shown})
    return figure


def _name(row: RankedEvaluation, best: RankedEvaluation) -> list[str]:
    """Rank and setting; below it the degrees that its layout has and that of the choice has not."""
    lines = blocks.spec_lines(f"{row.rank} {row.evaluation.setting.spec}", _NAME_WIDTH)
    degrees = job_changes.degrees_apart(row.evaluation.job, best.evaluation.job)
    return [*lines, f"    {', '.join(degrees)}"] if degrees else lines


def draw_pareto(axes: "Axes", shown: Sequence[RankedEvaluation]) -> None:
    """Peak memory (GiB) against step time (s); numbers are ranks, the line joins the Pareto set."""
    front = sorted((_point(c) for c in shown if c.pareto), key=lambda point: point[0])
    x, y = [x for x, _ in front], [y for _, y in front]
    axes.plot(x, y, color=kit.GREY, linewidth=1, zorder=1, label="Pareto front")
    for fits, marker, colour in _MARKS:
        points = [_point(c) for c in shown if c.evaluation.fits is fits]
        words = "fits" if fits else "does not fit"
        kit.draw_points(axes, points, s=42, marker=marker, color=colour, label=words, zorder=2)
    kit.draw_budget(axes, shown[0].evaluation.budget_bytes)
    axes.set(xlabel="peak reserved memory of the worst rank (GiB)", ylabel="step time (s)")
    axes.set_title("Step time (s) against peak memory (GiB)")
    axes.margins(0.15)
    kit.soften(axes)


def draw_memory(
    axes: "Axes",
    shown: Sequence[StageMemory] | Sequence[Phase],
    labels: Sequence[str],
    bold: Sequence[bool],
) -> None:
    """One stacked bar each, GiB of the worst rank by component."""
    kit.stacked_bars(axes, kit.memory_parts([one.memory_bytes for one in shown]), labelled=True)
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    kit.bold_tick(axes, bold)
    axes.invert_yaxis()
    axes.set_xlabel("memory of the worst rank at its peak (GiB)")
    axes.set_title("Peak memory by component (GiB)")


MOST_ROWS: Final = 24
_BAND: Final[dict[str, Any]] = {"color": kit.GREY, "linewidth": 1.2, "marker": "|", "markersize": 4}
_TIME_LABEL_WIDTH: Final = 34  # characters


def time_figure(advice: Answer, top: int | None) -> "Figure":
    """Seconds of a step of the rows that a page shows, stacked by phase, with the band around each
    step; rows that do not fit are said to."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shown = ranking_table.Rows(top=top).shown(advice.candidates)[:MOST_ROWS]
    labels = [row_label(row, shown, _TIME_LABEL_WIDTH) for row in shown]
    lines = sum(label.count("\n") + 1.8 for label in labels)
    figure = Figure(figsize=(11, max(3.2, 1.9 + 0.21 * lines)), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(rows_title(advice, len(shown), MOST_ROWS), fontsize=11)
    steps = [row.evaluation.time_seconds for row in shown]
    parts = [(look, [getattr(one, name) for one in steps]) for name, look in kit.PHASES.items()]
    drawn = [(look, lengths) for look, lengths in parts if any(lengths)]
    kit.stacked_bars(axes, drawn, height=0.66)
    smallest = min(row.evaluation.step_time_seconds for row in shown)
    for place, row in enumerate(shown):
        one = row.evaluation
        ends = [one.step_time_low_seconds, one.step_time_high_seconds]
        axes.plot(ends, [place + 0.42] * 2, **_BAND)
        words = f"{seconds(one.step_time_seconds, smallest)} s"
        words += "" if one.fits else ", does not fit"
        kit.note(axes, words, (max(one.step_time_seconds, ends[1]), place))
    best = advice.chosen
    axes.set_yticks(range(len(shown)), labels, fontsize=8)
    kit.bold_tick(axes, (row is best for row in shown))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.16 * max(row.evaluation.step_time_high_seconds for row in shown))
    axes.set_xlabel("seconds of one step on the slowest stage")
    kit.soften(axes, "x")
    band = Line2D([], [], **_BAND, label=f"band of the step time ({_band_words(shown)})")
    handles = [*kit.legend_patches(look for look, _ in drawn), band]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _band_words(shown: Sequence[RankedEvaluation]) -> str:
    """``±12 %``, or ``±12 to 19 %`` where it is not the same around all rows."""
    wide = sorted(
        round(100 * (one.step_time_high_seconds / one.step_time_seconds - 1))
        for one in (row.evaluation for row in shown)
    )
    return band_text(wide[0] / 100) if wide[0] == wide[-1] else f"±{wide[0]} to {wide[-1]} %"
