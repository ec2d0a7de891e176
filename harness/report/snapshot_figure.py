"""Live bytes of memory snapshots against time: measured and predicted on one axis."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.base.units import human_bytes, unit_of
from advisor.report.figures.kit import BLUE, VERMILION, WIDE, save, soften, styled
from harness.logs.recorded_memory import Recording, recording_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS: Final = 4000


def draw_recordings(recordings: Sequence[Recording], path: Path) -> None:
    """Draw them into `path`, whose suffix says the format; by event where one has no times."""
    from matplotlib.figure import Figure

    with styled(path.stem, **{"font.size": 10}):
        figure = Figure(figsize=(WIDE, 3.8), layout="constrained")
        _paint(figure, recordings)
        save(figure, path)


def _paint(figure: "Figure", recordings: Sequence[Recording]) -> None:
    axes = figure.subplots()
    timed = all(one.seconds is not None for one in recordings)
    names = recording_names(recordings)
    unit, unit_name = unit_of(one.peak_bytes for one in recordings)
    for one, name, colour in zip(recordings, names, (VERMILION, BLUE), strict=False):
        places = _places(one, timed=timed)
        shown = thinned(one.num_bytes)
        line, mark = ("--", "v") if one.predicted else ("-", "^")
        curve = [places[k] for k in shown], [one.num_bytes[k] / unit for k in shown]
        look: dict[str, Any] = {"linewidth": 1.0, "drawstyle": "steps-post", "linestyle": line}
        when = "" if one.peak_seconds is None else f" at {one.peak_seconds:.2f} s"
        label = f"{name}: peak {human_bytes(one.peak_bytes)}{when}"
        axes.plot(*curve, color=colour, label=label, **look)
        peak = [places[one.peak_event]], [one.peak_bytes / unit]
        look = {"markeredgecolor": "black", "markersize": 7, "linestyle": "none", "clip_on": False}
        axes.plot(*peak, marker=mark, color=colour, **look)
    axes.set_ylim(0, 1.08 * max(one.peak_bytes for one in recordings) / unit)
    axes.set_ylabel(f"live memory ({unit_name})")
    axes.set_xlabel("seconds" if timed else "share of the events (a recording has no times)")
    axes.margins(x=0.01)
    soften(axes)
    figure.legend(loc="outside lower center", ncols=len(recordings))


def _places(one: Recording, *, timed: bool) -> Sequence[float]:
    if timed and one.seconds is not None:
        return one.seconds
    last = max(1, len(one.num_bytes) - 1)
    return [k / last for k in range(len(one.num_bytes))]


def thinned(levels: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """About `most` places of `levels`: each stretch's first, lowest and highest, and the last."""
    stretch = max(1, -(-3 * len(levels) // most))
    keep = {len(levels) - 1}
    for start in range(0, len(levels), stretch):
        there = range(start, min(start + stretch, len(levels)))
        keep |= {start, min(there, key=levels.__getitem__), max(there, key=levels.__getitem__)}
    return sorted(keep)
