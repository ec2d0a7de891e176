"""How pictures look: Okabe and Ito's colours, which colour-blind readers tell apart, on no ground.

What is drawn in INK takes the colour of the text around it where the SVG stands in a page, so that
one picture serves a light and a dark one.
"""

import re
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#1b1b1d"
FAINT: Final = "#808085"
WIDE, NARROW = 10.9, 3.9
"""Inches: 10 points stay readable on a page of 1,050 CSS pixels, and on a phone's of 358."""
_HEAD: Final = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_SIZE: Final = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?)', re.DOTALL)
_HEIGHT: Final = re.compile(r'(<svg[^>]*?) height="[^"]*"', re.DOTALL)
_PATH: Final = re.compile(r'(?<= d=")[^"]*')
_DIGITS: Final = re.compile(r"(\.\d\d)\d+")
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


class Drawn(Struct, frozen=True):
    """A picture's SVG for a page, WIDE and NARROW."""

    wide: str
    narrow: str


class Heights(Struct, frozen=True):
    """Inches of a picture, WIDE and NARROW."""

    wide: float
    narrow: float


def draw(name: str, heights: Heights, paint: Callable[["Figure"], None], folder: Path) -> Drawn:
    """Paint a figure, WIDE, into NAME.svg and NAME.png; its SVGs for a page.

    The same numbers give the same bytes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = _STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDE, heights.wide), layout="constrained")
        paint(figure)
        figure.savefig(folder / f"{name}.png", dpi=150, facecolor="white")
        figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
        small = Figure(figsize=(NARROW, heights.narrow), layout="constrained")
        paint(small)
        return Drawn(
            wide=embedded(_svg(figure), name), narrow=embedded(_svg(small), f"{name}-narrow")
        )


def is_narrow(figure: "Figure") -> bool:
    """Whether a figure is drawn for a phone."""
    return bool(figure.get_figwidth() < WIDE)


def joined(figure: "Figure", words: Sequence[str]) -> str:
    """Words on one line, on a phone on one each."""
    return ("\n" if is_narrow(figure) else " ").join(words)


def _svg(figure: "Figure") -> str:
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()


def save(path: Path, height: float, paint: Callable[["Figure"], None]) -> None:
    """Paint a figure of WIDE x `height` inches into one file, whose suffix says its format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = _STYLE | {"svg.hashsalt": path.stem, "svg.fonttype": "none"}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDE, height), layout="constrained")
        paint(figure)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


def embedded(svg: str, name: str) -> str:
    """An SVG document as part of a page: as wide as its place, in the page's ink, with ids that no
    other picture has."""
    text = _METADATA.sub("", _HEAD.sub("", svg))
    text = _HEIGHT.sub(r"\1", _SIZE.sub(r"\1\2", text, count=1), count=1)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = _PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text)  # to 1/7,200 inch
    return text.replace(INK, "currentColor").strip()


def soften(axes: "Axes") -> None:
    """A faint grid behind, and no frame above and on the right."""
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


_STYLE: Final[dict[str, Any]] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "svg.fonttype": "path",
    "lines.linewidth": 1.5,
}
