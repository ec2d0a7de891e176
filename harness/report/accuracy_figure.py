"""Predicted against measured of every row: peak memory and step time."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.base.units import GIB
from advisor.report.figures.palette import BLUE, VERMILION
from harness.judge.accuracy_rows import Half, SettingRow
from harness.judge.predicted import Pair
from harness.report.document import Picture
from harness.report.style import FAINT, Heights, draw, is_narrow, soften

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = {Half.FIT: BLUE, Half.HELD_OUT: VERMILION}


def draw_accuracy(rows: Sequence[SettingRow], folder: Path) -> tuple[Picture, ...]:
    """predicted_and_measured.svg and .png, where a row has both numbers; ImportError without
    matplotlib."""
    shown = [(title, unit, points) for title, unit, points in _panels(rows) if points]
    if not shown:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    name, caption = (
        "predicted_and_measured",
        "Predicted against measured, in the halves fit and held_out",
    )
    drawn = draw(name, Heights(4.2, 7.4), partial(_paint, shown=shown), folder)
    return (Picture(name=name, caption=caption, svg=drawn.wide, narrow_svg=drawn.narrow),)


Points = list[tuple[Half, float, float]]


def _panels(rows: Sequence[SettingRow]) -> list[tuple[str, str, Points]]:
    memory = [(row.cell.half, row.allocated) for row in rows]
    times = [(row.cell.half, row.step) for row in rows]
    return [
        ("Peak allocated", "GiB", _points(memory, 1 / GIB)),
        ("Step time", "ms", _points(times, 1e3)),
    ]


def _points(pairs: Sequence[tuple[Half, Pair]], scale: float) -> Points:
    """Measured and predicted, where both are known."""
    whole = [(half, pair.both) for half, pair in pairs]
    return [(half, both[1] * scale, both[0] * scale) for half, both in whole if both]


def _paint(figure: "Figure", shown: Sequence[tuple[str, str, Points]]) -> None:
    rows, columns = (len(shown), 1) if is_narrow(figure) else (1, len(shown))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (title, unit, points) in zip(panels, shown, strict=True):
        _paint_panel(axes, title, unit, points)


def _paint_panel(axes: "Axes", title: str, unit: str, points: Points) -> None:
    high = 1.08 * max(max(point[1:]) for point in points)
    axes.plot([0, high], [0, high], color=FAINT, linewidth=1)
    for half, colour in _COLOURS.items():
        own = [point[1:] for point in points if point[0] is half]
        if own:
            xs, ys = zip(*own, strict=True)
            axes.scatter(xs, ys, s=16, color=colour, label=half.replace("_", " "))
    axes.set(
        title=title,
        xlabel=f"measured, {unit}",
        ylabel=f"predicted, {unit}",
        xlim=(0, high),
        ylim=(0, high),
    )
    axes.legend()
    soften(axes)
