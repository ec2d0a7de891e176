"""Names beside points, so that none covers another."""

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from harness.report.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AWAY: Final = (7.0, 16.0, 27.0, 40.0)
"""Points of the type from a mark to its name, the nearest first."""
_FAR: Final = 16.0
_MARK: Final = 9.0
"""Pixels of a mark."""


def name_points(axes: "Axes", names: Mapping[tuple[float, float], str]) -> None:
    """Write the name of each point beside it; one that finds no room there stands further away, at
    the end of a line, and where nowhere is room, in the last place tried.

    The axes have their final limits and place, and their legend, which nothing covers.
    """
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    legend = axes.get_legend()
    taken = [legend.get_window_extent()] if legend is not None else []
    marks = [axes.transData.transform(point) for point in names]
    taken += [Bbox.from_bounds(x - _MARK / 2, y - _MARK / 2, _MARK, _MARK) for x, y in marks]
    places = [(x, y * away) for away, x, y in product(_AWAY, (7.0, -7.0), (1, -1))]
    for point, name in names.items():
        label: Any = None
        for x, y in places:
            if label is not None:
                label.remove()
            line = {"arrowstyle": "-", "linewidth": 0.5, "color": FAINT} if abs(y) > _FAR else None
            label = axes.annotate(
                name,
                point,
                xytext=(x, y if y > 0 else y - 4),
                textcoords="offset points",
                fontsize=9,
                horizontalalignment="left" if x > 0 else "right",
                arrowprops=line,
            )
            label.set_in_layout(False)
            box = label.get_window_extent().padded(1)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(label.get_window_extent().padded(1))
