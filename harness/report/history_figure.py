"""A metric over sessions: each with its processes, and the steps or the drift that were found."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.report.figures.kit import (
    BLUE,
    FAINT,
    INK,
    VERMILION,
    WIDE,
    draw_points,
    save,
    soften,
    styled,
)
from harness.judge.history import History
from harness.judge.trends import stretches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT: Final = 4.2
_MOST_NAMES: Final = 16


def draw_history(one: History, path: Path) -> None:
    """Draw it into `path`, whose suffix says the format."""
    from matplotlib.figure import Figure

    with styled(path.stem, **{"font.size": 10}):
        figure = Figure(figsize=(WIDE, _HEIGHT), layout="constrained")
        _paint(figure.subplots(), one)
        save(figure, path)


def _paint(axes: "Axes", one: History) -> None:
    first = one.values[0]
    single = [
        (place, _percent(value - first))
        for place, point in enumerate(one.points)
        for value in point.processes
    ]
    draw_points(axes, single, s=14, color=FAINT, label="process")
    for golden, colour, label in ((True, BLUE, "golden"), (False, VERMILION, "run")):
        places = [k for k, point in enumerate(one.points) if point.golden is golden]
        centres = [(k, _percent(one.values[k] - first)) for k in places]
        draw_points(axes, centres, s=60, color=colour, label=f"session of a {label}")
    _lines(axes, one)
    stride = -(-len(one.points) // _MOST_NAMES)
    names = [f"{point.started_at[:10]}\n{point.commit}" for point in one.points]
    axes.set_xticks(range(0, len(names), stride), names[::stride], fontsize=8, rotation=30)
    axes.set_ylabel("change since the first session, %")
    axes.set_title(f"{one.label}: {one.metric.name}")
    axes.margins(x=0.03, y=0.15)
    soften(axes)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _lines(axes: "Axes", one: History) -> None:
    """The mean of each stretch between steps; or the drift."""
    steps, trend = one.found
    first, count = one.values[0], len(one.points)
    look: dict[str, Any] = {"color": INK, "linewidth": 1.4, "zorder": 2}
    if trend:
        ends = [_percent(trend.next_value - trend.slope * back - first) for back in (count, 1)]
        label = f"drift, {_percent(trend.slope):+.2f} % a session"
        axes.plot([0, count - 1], ends, linestyle="--", label=label, **look)
        return
    for start, end, centre in stretches(one.values, steps):
        height = _percent(centre - first)
        axes.plot(
            [start - 0.4, end - 0.6], [height, height], label="mean" if not start else None, **look
        )
    for step in steps:
        axes.axvline(step.at - 0.5, color=FAINT, linewidth=1, linestyle=":")
        text = f" step {_percent(step.change):+.1f} %"
        axes.annotate(text, (step.at - 0.5, 0.98), xycoords=("data", "axes fraction"), va="top")


def _percent(change: float) -> float:
    return math.expm1(change) * 100
