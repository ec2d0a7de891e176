"""How pictures look: Okabe and Ito's colours, which colour-blind readers tell apart, on no ground.

What is drawn in INK takes the colour of the text around it where the SVG stands in a page, so that
one picture serves a light and a dark one.
"""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE = "#D55E00", "#CC79A7"
INK: Final = "#1b1b1d"
FAINT: Final = "#808085"
WIDTH: Final = 6.4  # inches, at which 10 points can be read on a page of 640 CSS pixels
_HEAD: Final = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_SIZE: Final = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?)', re.DOTALL)
_HEIGHT: Final = re.compile(r'(<svg[^>]*?) height="[^"]*"', re.DOTALL)
_METADATA: Final = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def draw(name: str, height: float, paint: Callable[["Figure"], None], folder: Path) -> str:
    """Paint a figure of WIDTH x `height` inches into NAME.svg and NAME.png; its SVG for a page.

    The same numbers give the same bytes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = _STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        figure.savefig(folder / f"{name}.png", dpi=150, facecolor="white")
        figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return embedded(text.getvalue(), name)


def save(path: Path, height: float, paint: Callable[["Figure"], None]) -> None:
    """Paint a figure of WIDTH x `height` inches into one file, whose suffix says its format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = _STYLE | {"svg.hashsalt": path.stem, "svg.fonttype": "none"}
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


def embedded(svg: str, name: str) -> str:
    """An SVG document as part of a page: as wide as its place, in the page's ink, with ids that no
    other picture has."""
    text = _METADATA.sub("", _HEAD.sub("", svg))
    text = _HEIGHT.sub(r"\1", _SIZE.sub(r"\1\2", text, count=1), count=1)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
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
