"""Every picture of a report for which a run has the numbers, as SVG and PNG."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.report.document import Picture
from harness.report.facts import Facts
from harness.report.scatter import (
    height_of,
    paint_predicted,
    paint_throughput,
    paint_time,
    panels,
    points,
)
from harness.report.setting_figures import paint_timeline, paint_waterfall, steps, waterfall
from harness.report.style import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    Drawing = tuple[str, str, float, Callable[[Figure], None]]


def draw_all(facts: Facts, folder: Path) -> tuple[Picture, ...]:
    """Draw into `folder`; ImportError where matplotlib is not installed."""
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        Picture(name=name, caption=caption, svg=draw(name, height, paint, folder))
        for name, caption, height, paint in _drawings(facts)
    )


def _drawings(facts: Facts) -> Iterator["Drawing"]:
    """Name, caption, height in inches, and what paints it."""
    cpu = " (CPU times)" if facts.on_cpu else ""
    shown = points(facts)
    if shown:
        height = height_of(shown)
        yield (
            "memory_and_time",
            f"Peak memory against step time of every setting{cpu}",
            height,
            partial(paint_time, facts=facts),
        )
        yield (
            "memory_and_throughput",
            f"Pareto front of peak memory and throughput{cpu}",
            height,
            partial(paint_throughput, facts=facts),
        )
    compared = len(panels(facts))
    if compared:
        height = {1: 4.6, 2: 3.6, 3: 6.8}[compared]
        yield (
            "predicted_and_measured",
            f"Predicted against measured{cpu}",
            height,
            partial(paint_predicted, facts=facts),
        )
    memory = waterfall(facts)
    if memory is not None:
        yield (
            "memory_waterfall",
            "Predicted memory by component, and the measured peaks",
            4.0,
            partial(paint_waterfall, shown=memory),
        )
    timelines = steps(facts)
    if timelines:
        yield (
            "timeline",
            f"Allocated bytes over one step{cpu}",
            1.4 + 1.35 * len(timelines),
            partial(paint_timeline, shown=timelines, on_cpu=facts.on_cpu),
        )
