"""Ranks and names next to points, so that none covers another, a mark, a line or the frame."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from advisor.report.figures.kit import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Point = tuple[float, float]

_FONT: Final = 8
_MARK: Final = 3.6
"""Points of the type: half a mark, which no label covers."""
_PAD: Final = (3.0, 1.2)
"""Points of the type that stay free next to a label, and above and below it."""
_AWAY: Final = 5.0
_STEP: Final = 9.0
"""Points of the type: from a mark to its label, and on to the next place that is tried."""
_NEAR: Final = (9.0, 7.0)
"""Points of the type within which marks share one label."""
_SIDEWAYS: Final = 18.0
"""Points of the type to the next place next to those above and below a mark."""
_RINGS: Final = {True: 5, False: 24}
"""How many places away a label with names is tried, and a number."""


class _Label(NamedTuple):
    text: str
    point: Point
    bold: bool


def label_points(
    axes: "Axes",
    points: Mapping[int, Point],
    bold: int = 0,
    names: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Write next to each point its lines of `names` where there is room for them, otherwise its
    number; points that lie together share a label, ``3, 4``.

    The axes have their final limits and place, and all that is drawn in them. A label that finds no
    room next to its point stands further away, with a line; one that finds none at all is left out.
    `bold`: the number that is.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    room = _Room(axes, points.values())
    unnamed = []
    for numbers, point in _groups(axes, points):
        lines = [line for number in numbers for line in (names or {}).get(number, ())]
        full = _Label("\n".join(lines), point, numbers == [bold])
        if not lines or not _placed(room, full, named=True):
            unnamed.append(_Label(", ".join(map(str, sorted(numbers))), point, bold in numbers))
    for label in unnamed:
        _placed(room, label, named=False)


class _Room:
    """What is taken of the axes, in pixels."""

    def __init__(self, axes: "Axes", points: Iterable[Point]) -> None:
        from matplotlib.transforms import Bbox

        self.axes = axes
        self.scale: float = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
        self._frame = axes.get_window_extent().padded(-2)
        half = _MARK * self.scale
        self._taken = [
            Bbox([(x - half, y - half), (x + half, y + half)])
            for x, y in (axes.transData.transform(point) for point in points)
        ]
        if legend := axes.get_legend():
            self._taken.append(legend.get_window_extent())
        self._lines = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
        self._joins: list[Path] = []

    def take(self, box: "Bbox", joined: Sequence[Point]) -> bool:
        """Whether `box`, and the line that joins it to its point, are free; they are not any
        more."""
        from matplotlib.path import Path

        wide, high = (pad * self.scale for pad in _PAD)
        padded, frame = box.padded(wide, high), self._frame
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
        if not inside or box.y0 < frame.y0 or box.y1 > frame.y1:
            return False
        if any(padded.overlaps(other) for other in self._taken):
            return False
        if any(line.intersects_bbox(padded, filled=False) for line in (*self._lines, *self._joins)):
            return False
        if joined:
            line = Path(joined)
            others = [one.padded(high) for one in self._taken if not one.contains(*joined[0])]
            if any(line.intersects_bbox(other) for other in others):
                return False
            if any(line.intersects_path(other) for other in self._joins):
                return False
            self._joins.append(line)
        self._taken.append(box)
        return True


def _placed(room: _Room, label: _Label, *, named: bool) -> bool:
    """Write a label at the first free place around its point; False where there is none."""
    from matplotlib.transforms import Bbox

    measured = _written(room.axes, label, (0, 0))
    size = measured.get_window_extent()
    measured.remove()
    x, y = room.axes.transData.transform(label.point)
    for right, up in _places(_RINGS[named]):
        left = x + right * room.scale - size.width * _side(right)
        low = y + up * room.scale - size.height * _side(up)
        box = Bbox.from_bounds(left, low, size.width, size.height)
        corner = (x + right * room.scale, y + up * room.scale)
        if room.take(box, [(x, y), corner] if _far(up) else []):
            _written(room.axes, label, (right, up))
            return True
    return False


def _written(axes: "Axes", label: _Label, offset: Point) -> "Annotation":
    right, up = offset
    line = {
        "arrowstyle": "-",
        "linewidth": 0.4,
        "color": GREY,
        "shrinkA": 0,
        "relpos": (_side(right), _side(up)),
    }
    found = axes.annotate(
        label.text,
        label.point,
        xytext=offset,
        textcoords="offset points",
        fontsize=_FONT,
        fontweight="bold" if label.bold else "normal",
        horizontalalignment="right" if right < 0 else "left",
        verticalalignment={0.0: "bottom", 0.5: "center", 1.0: "top"}[_side(up)],
        arrowprops=line if _far(up) else None,
    )
    found.set_in_layout(False)
    return found


def _side(offset: float) -> float:
    """Share of a label's size that lies before the end of its offset."""
    return 0.5 if not offset else float(offset < 0)


def _far(up: float) -> bool:
    return abs(up) > 2 * _AWAY


def _groups(axes: "Axes", points: Mapping[int, Point]) -> Iterator[tuple[list[int], Point]]:
    """Numbers that lie together, with the place of the first."""
    scale = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    groups: list[tuple[list[int], Point]] = []
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


def _places(rings: int) -> Iterator[Point]:
    """Offsets from a point, the nearest first; those of further rings lie next to it as well."""
    for ring in range(rings):
        away = _AWAY + ring * _STEP
        sideways = [_AWAY + step * _SIDEWAYS for step in range(ring + 1)]
        yield from ((x, y) for right in sideways for x in (right, -right) for y in (away, -away))
        if ring == 0:
            yield from ((2 * _AWAY, 0.0), (-2 * _AWAY, 0.0))
