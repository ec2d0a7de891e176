"""Numbers beside points, so that none covers another."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from advisor.report.figures.palette import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AWAY: Final = 5.0
_STEP: Final = 9.0
"""Points of the type: from a mark to its number, and on to the next place that is tried."""
_NEAR: Final = (9.0, 7.0)
"""Points of the type within which marks share one label."""


def label_points(axes: "Axes", points: Mapping[int, tuple[float, float]], bold: int = 0) -> None:
    """Write the number of each point beside it, those of points that lie together as ``3, 4``.

    The axes have their final limits and place. A label that finds no room beside its point stands
    further away, with a line. `bold`: the number that is.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    taken: list[Any] = []
    legend = axes.get_legend()
    if legend is not None:
        taken.append(legend.get_window_extent())
    for numbers, place in _groups(axes, points):
        text = ", ".join(map(str, sorted(numbers)))
        for offset in _places():
            far = max(abs(offset[0]), abs(offset[1])) > 2 * _AWAY
            label = axes.annotate(
                text,
                place,
                xytext=offset,
                textcoords="offset points",
                fontsize=8,
                fontweight="bold" if bold in numbers else "normal",
                horizontalalignment="right" if offset[0] < 0 else "left",
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": GREY} if far else None,
            )
            label.set_in_layout(False)
            box = label.get_bbox_patch() or label
            extent = box.get_window_extent().padded(1)
            if not any(extent.overlaps(other) for other in taken):
                taken.append(extent)
                break
            label.remove()


def _groups(
    axes: "Axes", points: Mapping[int, tuple[float, float]]
) -> Iterator[tuple[list[int], tuple[float, float]]]:
    """Numbers that lie together, with the place of the first."""
    scale = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    groups: list[tuple[list[int], tuple[float, float]]] = []
    for number, point in points.items():
        x, y = axes.transData.transform(point)
        for numbers, place in groups:
            left, low = axes.transData.transform(place)
            if abs(x - left) < _NEAR[0] * scale and abs(y - low) < _NEAR[1] * scale:
                numbers.append(number)
                break
        else:
            groups.append(([number], point))
    yield from groups


def _places() -> Iterator[tuple[float, float]]:
    """Offsets from a point, the nearest first."""
    for ring in count():
        away = _AWAY + ring * _STEP
        yield from ((x, y) for x in (_AWAY, -_AWAY) for y in (away, -away - 3))
