"""What all pictures of advisor and harness share: colours, hatches, words, style, bars, and saving.

Colours are Okabe and Ito's, which colour-blind readers tell apart; hatches tell them apart in grey.
What is drawn in INK takes the colour of the text around it where an SVG stands in a page, so that
one picture serves a light and a dark one. matplotlib (extra `report`) is imported when a picture is
drawn, never before.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.evaluation import MemoryBreakdown
from advisor.answer.phases import PhaseMemory
from advisor.base.units import GIB
from advisor.report.phases_block import PART_WORDS as PHASE_PARTS
from advisor.report.wording import PHASES as PART_WORDS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
YELLOW, PINK, VERMILION = "#F0E442", "#CC79A7", "#D55E00"
GREY, LIGHT, PALE = "#666666", "#BBBBBB", "#EEEEEE"
INK, FAINT = "#1b1b1d", "#808085"
WIDE, NARROW = 10.9, 3.9
"""Inches: 10 points stay readable on a page of 1,050 CSS pixels, and on a phone's of 358."""
STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",  # text stays text
    "hatch.linewidth": 0.6,
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "legend.fontsize": 9,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
_IN_A_PAGE: Final = {"svg.fonttype": "path", "font.size": 10, "lines.linewidth": 1.5}


class Look(Struct, frozen=True):
    """Colour and hatch of one thing, its name in a legend."""

    name: str
    colour: str
    hatch: str = ""

    @property
    def fill(self) -> dict[str, Any]:
        """What matplotlib's bars and patches take."""
        return {
            "facecolor": self.colour,
            "hatch": self.hatch,
            "edgecolor": "white" if self.hatch else self.colour,
            "linewidth": 0.0,
        }


_COMPONENTS: Final = (
    Look("weights", BLUE),
    Look("gradients", SKY, "///"),
    Look("optimizer", GREEN),
    Look("activations", ORANGE),
    Look("transient", YELLOW, "..."),
    Look("overhead", PINK, "\\\\\\"),
)
COMPONENT_LOOKS: Final = dict(zip(MemoryBreakdown.__struct_fields__, _COMPONENTS, strict=True))
_ENGINE: Final = {"engine_weights": GREY, "kv_cache": "#B9CFE0", "engine_other": PALE}
_OTHERS: Final = {"reference": INK, "critic": LIGHT, "bucket": VERMILION, **_ENGINE}
_LOOKS: Final = COMPONENT_LOOKS | {
    part: Look(PHASE_PARTS.get(part, part), colour) for part, colour in _OTHERS.items()
}
FORWARD, BACKWARD = Look("forward", SKY), Look("backward", BLUE)
REPLAY = Look(PART_WORDS["recompute"], ORANGE, "////")
COMMUNICATION = Look("exposed communication", PINK, "xxxx")
BUBBLE = Look("pipeline bubble", PALE)
OPTIMIZER = Look("optimizer", GREEN, "----")
OFFLOAD = Look("offload", YELLOW, "....")
WAITING = Look(PART_WORDS["host"], GREY, "\\\\\\\\")
STRAGGLERS = Look(PART_WORDS["stragglers"], LIGHT, "++++")
PHASES: Final = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "recompute": REPLAY,
    "exposed_communication": COMMUNICATION,
    "offload": OFFLOAD,
    "host": WAITING,
    "stragglers": STRAGGLERS,
    "pipeline_bubble": BUBBLE,
    "optimizer": OPTIMIZER,
}
"""Parts of a TimeBreakdown, in the order in which they are stacked; the explorer has the same."""


def legend_patches(looks: Iterable[Look]) -> list[Any]:
    """A patch for each, for a legend."""
    from matplotlib.patches import Patch

    return [Patch(**look.fill, label=look.name) for look in looks]


def legend_below(figure: "Figure", looks: Iterable[Look], *, columns: int) -> None:
    """One row of names, 0.06 inches above the lower edge of a picture whose axes are laid out in
    inches."""
    figure.legend(
        handles=legend_patches(looks),
        loc="lower center",
        bbox_to_anchor=(0.5, 0.06 / figure.get_figheight()),
        ncols=columns,
        fontsize=8,
    )


def memory_parts(memory: Sequence[MemoryBreakdown | PhaseMemory]) -> list[tuple[Look, list[float]]]:
    """GiB by component, a bar each of `memory`: what some have."""
    parts = {part: [getattr(one, part, 0) / GIB for one in memory] for part in _LOOKS}
    return [(_LOOKS[name], bars) for name, bars in parts.items() if any(bars)]


def stacked_bars(
    axes: "Axes",
    parts: Iterable[tuple[Look, Sequence[float]]],
    *,
    height: float = 0.72,
    labelled: bool = False,
) -> list[float]:
    """Horizontal bars at 0, 1, 2, …, their parts end to end; where each ends. labelled: the parts
    are named in a legend of the axes."""
    ends: list[float] = []
    for look, sizes in parts:
        ends = ends or [0.0] * len(sizes)
        label = look.name if labelled else None
        axes.barh(range(len(sizes)), sizes, left=ends, height=height, label=label, **look.fill)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    return ends


def draw_points(axes: "Axes", points: Iterable[tuple[float, float]], **given: Any) -> None:
    """Marks with a thin white edge; nothing without points."""
    if found := list(points):
        edge = {"edgecolors": "white", "linewidths": 0.6, "zorder": 3}
        axes.scatter(*zip(*found, strict=True), **{**edge, **given})


def note(axes: "Axes", text: str, place: tuple[float, float], **given: Any) -> None:
    """Small text six points to the right of a place, at its height."""
    look = {"xytext": (6, 0), "textcoords": "offset points", "verticalalignment": "center"}
    axes.annotate(text, place, **{**look, "fontsize": 8, **given})


def draw_budget(axes: "Axes", budget_bytes: int, *, horizontal: bool = False) -> None:
    """A dashed line at the budget, GiB."""
    budget = budget_bytes / GIB
    line = axes.axhline if horizontal else axes.axvline
    line(budget, color=INK, linestyle="--", linewidth=1.2, label=f"budget {budget:.1f} GiB")


def bold_tick(axes: "Axes", chosen: Iterable[bool]) -> None:
    """The names at the vertical axis that are `chosen`, in bold."""
    for tick, is_chosen in zip(axes.get_yticklabels(), chosen, strict=True):
        tick.set_fontweight("bold" if is_chosen else "normal")


def soften(axes: "Axes", grid: str = "both") -> None:
    """A faint `grid` below what is drawn, and no frame above and on the right."""
    axes.grid(axis=grid, color=FAINT, alpha=0.25, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def styled(salt: str, **more: Any) -> "AbstractContextManager[Any]":
    """The style of all pictures, as a context; the same numbers give the same bytes."""
    import matplotlib as mpl

    style: Any = {**STYLE, "svg.hashsalt": salt, **more}
    context: AbstractContextManager[Any] = mpl.rc_context(style)
    return context


def save(figure: "Figure", path: Path) -> None:
    """Into a file, whose suffix says its format."""
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


class Heights(Struct, frozen=True):
    """Inches of a picture, WIDE and NARROW."""

    wide: float
    narrow: float


class Drawn(Struct, frozen=True):
    """A picture's SVG for a page, WIDE and NARROW."""

    wide: str
    narrow: str


def draw(name: str, heights: Heights, paint: Callable[["Figure"], None], folder: Path) -> Drawn:
    """Paint a figure, WIDE, into NAME.svg and NAME.png of `folder`; its SVGs for a page."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with styled(name, **_IN_A_PAGE):
        figure = Figure(figsize=(WIDE, heights.wide), layout="constrained")
        paint(figure)
        for suffix in ("png", "svg"):
            save(figure, folder / f"{name}.{suffix}")
        small = Figure(figsize=(NARROW, heights.narrow), layout="constrained")
        paint(small)
        narrow = embedded(_svg(small), f"{name}-narrow")
        return Drawn(wide=embedded(_svg(figure), name), narrow=narrow)


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


_OUTSIDE: Final = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>", re.DOTALL)
_WIDTH: Final = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?)', re.DOTALL)
_HEIGHT: Final = re.compile(r'(<svg[^>]*?) height="[^"]*"', re.DOTALL)
_PATH: Final = re.compile(r'(?<= d=")[^"]*')
_DIGITS: Final = re.compile(r"(\.\d\d)\d+")


def embedded(svg: str, name: str) -> str:
    """An SVG document as part of a page: as wide as its place, in the page's ink, with ids that no
    other picture has."""
    text = _WIDTH.sub(r"\1\2", _OUTSIDE.sub("", svg), count=1)
    text = _HEIGHT.sub(r"\1", text, count=1)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = _PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), text)  # to 1/7,200 inch
    return text.replace(INK, "currentColor").strip()
