"""Predicted against measured, a panel a quantity: of one run, and of the rows of many."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.units import GIB, unit_of
from advisor.report.figures import kit
from harness.base.collections import known
from harness.judge.accuracy_rows import Half, SettingRow
from harness.judge.metrics import ALLOCATED, METRICS
from harness.judge.predicted import Pair
from harness.report.document import Picture
from harness.report.evidence import calibrations
from harness.report.facts import Facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = tuple[tuple[float, float], ...]
"""Measured and predicted."""
_ALL: Final = ""
_COLOURS: Final = {_ALL: kit.VERMILION, Half.FIT: kit.BLUE, Half.HELD_OUT: kit.VERMILION}


class Panel(Struct, frozen=True):
    """One quantity by group of settings. band: relative, with whose it is."""

    title: str
    unit: str
    scale: float
    groups: Mapping[str, Points]
    band: float | None = None
    whose: str = ""


def panels(facts: Facts) -> tuple[Panel, ...]:
    """Quantities of a run that were both predicted and measured."""
    errors = [one.step_time_error for one in known(calibrations(facts).values())]
    sizes = {
        "kept per layer": _points(outcome.saved_per_layer for outcome in facts.found),
        "peak allocated": _points(outcome.peak_allocated for outcome in facts.found),
    }
    band, made = (METRICS[ALLOCATED].limit, "limit of harness compare"), []
    for title, points in sizes.items():
        scale, unit = unit_of([number for point in points for number in point])
        made.append(Panel(title, unit, scale, {_ALL: points}, *band))
    steps = _points(outcome.step_time for outcome in facts.found)
    made.append(_times({_ALL: steps}, max(errors, default=None)))
    return tuple(panel for panel in made if any(panel.groups.values()))


def _times(groups: Mapping[str, Points], band: float | None = None) -> Panel:
    return Panel("step time", "ms", 1e-3, groups, band, "calibration")


def _points(pairs: Iterable[Pair]) -> Points:
    return tuple((measured, predicted) for predicted, measured in known(p.both for p in pairs))


def draw_accuracy(rows: Sequence[SettingRow], folder: Path) -> tuple[Picture, ...]:
    """predicted_and_measured.svg and .png, where a row has both; ImportError without matplotlib."""
    halves = {str(half): [row for row in rows if row.cell.half is half] for half in Half}
    sizes = {half: _points(row.allocated for row in own) for half, own in halves.items()}
    times = {half: _points(row.step for row in own) for half, own in halves.items()}
    shown = [Panel("peak allocated", "GiB", GIB, sizes), _times(times)]
    shown = [panel for panel in shown if any(panel.groups.values())]
    if not shown:
        return ()
    name = "predicted_and_measured"
    caption = "Predicted against measured, in the halves fit and held_out"
    drawn = kit.draw(name, kit.Heights(4.2, 7.4), partial(paint_panels, shown=shown), folder)
    return (Picture(name=name, caption=caption, svg=drawn.wide, narrow_svg=drawn.narrow),)


def paint_panels(figure: "Figure", shown: Sequence[Panel]) -> None:
    """Each quantity in a square: on the line nothing is wrong."""
    rows, columns = (len(shown), 1) if kit.is_narrow(figure) else (1, len(shown))
    squares = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(squares, shown, strict=True):
        _paint_panel(axes, panel)


def _paint_panel(axes: "Axes", panel: Panel) -> None:
    groups = {
        name: [(measured / panel.scale, predicted / panel.scale) for measured, predicted in points]
        for name, points in panel.groups.items()
    }
    numbers = [number for points in groups.values() for point in points for number in point]
    low, high = min(numbers), max(numbers)
    margin = 0.12 * (high - low) or 0.12 * high or 1.0
    ends = [max(0.0, low - margin), high + margin]
    axes.plot(ends, ends, color=kit.INK, linewidth=1)
    title = panel.title
    if panel.band is not None:
        below, above = ([end * (1 + sign * panel.band) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, below, above, color=kit.GREEN, alpha=0.25, linewidth=0)
        title += f"\nband: ±{panel.band * 100:.0f} % ({panel.whose})"
    for name, points in groups.items():
        label = name.replace("_", " ") or None
        kit.draw_points(axes, points, s=40, color=_COLOURS[name], label=label)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel=f"measured, {panel.unit}", ylabel=f"predicted, {panel.unit}")
    axes.set_title(title, fontsize=10)
    axes.locator_params(nbins=4)
    if _ALL not in groups:
        axes.legend(loc="upper left")
    kit.soften(axes)
