"""docs/architecture.svg: a box for each folder of both packages, above the folders it imports."""

from typing import Final

from scripts.write_docs.svg import drawing, rect, text

Graph = dict[str, set[str]]
PANEL, ROW, BOX, HEIGHT, TOP = 490, 46, 90, 26, 44
GAP: Final = 14
"""Between boxes of a row."""


def folder_drawing(packages: dict[str, tuple[dict[str, int], Graph]]) -> str:
    """One panel per package: how high each folder stands, and the folders that it builds on."""
    parts, rows = [], 0
    for number, (package, (level, near)) in enumerate(packages.items()):
        left = PANEL * number
        at = _places(level, left)
        parts += [text(left + PANEL / 2, 24, package, "bold", "middle")]
        parts += [_arrow(at[name], at[other]) for name in near for other in sorted(near[name])]
        for name, (x, y) in at.items():
            parts += [rect(x - BOX / 2, y, BOX, HEIGHT, "box")]
            parts += [text(x, y + 18, name, "mono", "middle")]
        rows = max(rows, 1 + max(level.values()))
    title = "Folders and what they import"
    return drawing(PANEL * len(packages), TOP + ROW * rows, title, _words(packages), parts)


def _places(level: dict[str, int], left: float) -> dict[str, tuple[float, float]]:
    """The middle of each box's upper edge; the highest folder stands on top."""
    rows: dict[int, list[str]] = {}
    for name in sorted(level):
        rows.setdefault(level[name], []).append(name)
    width = min(BOX + GAP, (PANEL - 8) / max(map(len, rows.values())))
    return {
        name: (
            left + PANEL / 2 + width * (column - (len(row) - 1) / 2),
            TOP + ROW * (max(rows) - height),
        )
        for height, row in rows.items()
        for column, name in enumerate(row)
    }


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From below a box to above another; round the boxes between where there are rows between."""
    (x, y), (to_x, to_y) = (start[0], start[1] + HEIGHT), end
    rows = round((end[1] - start[1]) / ROW)
    is_left = (x + to_x) / 2 <= PANEL * (x // PANEL + 0.5)
    bend = 0 if rows == 1 else (-1 if is_left else 1) * (BOX * 0.75 + 6 * rows)
    reach = (to_y - y) * 0.5
    curve = f"C{x + bend:g},{y + reach:g} {to_x + bend:g},{to_y - reach:g} {to_x:g},{to_y - 3:g}"
    return f'<path d="M{x:g},{y:g} {curve} m-4,-5 l4,5 l4,-5" class="arrow"/>'


def _words(packages: dict[str, tuple[dict[str, int], Graph]]) -> str:
    """The drawing in words."""
    return " ".join(
        f"{package}'s {name} builds on {', '.join(sorted(others)) or 'nothing'}."
        for package, (_, near) in packages.items()
        for name, others in near.items()
    )
