"""Every picture of a report for which a run has the numbers, as SVG and PNG."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.report import memory_figure
from harness.report.document import Picture
from harness.report.facts import Facts
from harness.report.memory_figure import bars
from harness.report.scatter import (
    heights_of,
    paint_predicted,
    paint_throughput,
    paint_time,
    panels,
    points,
)
from harness.report.step_figure import paint_timeline, steps
from harness.report.style import Heights, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    Drawing = tuple[str, str, Heights, Callable[[Figure], None]]


def draw_all(facts: Facts, folder: Path) -> tuple[Picture, ...]:
    """Draw into `folder`; ImportError where matplotlib is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, caption, heights, paint in _drawings(facts):
        drawn = draw(name, heights, paint, folder)
        found.append(Picture(name=name, caption=caption, svg=drawn.wide, narrow_svg=drawn.narrow))
    return tuple(found)


def _drawings(facts: Facts) -> Iterator["Drawing"]:
    """Name, caption, heights, and what paints it."""
    cpu = " (CPU times)" if facts.on_cpu else ""
    shown = points(facts)
    if shown:
        heights = heights_of(shown)
        yield (
            "memory_and_time",
            f"Peak memory against step time of every setting{cpu}",
            heights,
            partial(paint_time, facts=facts),
        )
        yield (
            "memory_and_throughput",
            f"Pareto front of peak memory and throughput{cpu}",
            heights,
            partial(paint_throughput, facts=facts),
        )
    compared = len(panels(facts))
    if compared:
        yield (
            "predicted_and_measured",
            f"Predicted against measured{cpu}",
            Heights(4.2, 0.4 + 3.5 * compared),
            partial(paint_predicted, facts=facts),
        )
    memory = bars(facts)
    if memory:
        yield (
            "memory_by_component",
            "Predicted memory by component, and the measured peaks over it",
            memory_figure.heights_of(memory),
            partial(memory_figure.paint_memory, shown=memory),
        )
    timelines = steps(facts)
    if timelines:
        yield (
            "timeline",
            f"Allocated bytes over one step{cpu}",
            Heights(1.4 + 1.35 * len(timelines), 2.0 + 1.35 * len(timelines)),
            partial(paint_timeline, shown=timelines, on_cpu=facts.on_cpu),
        )
