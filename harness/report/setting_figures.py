"""Pictures of one setting: where its memory goes, and what one step looks like."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.answer.evaluation import MemoryBreakdown
from advisor.base.units import unit_of
from harness.report.facts import Facts
from harness.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    soften,
)
from harness.report.trial_numbers import Numbers, numbers_of, over_repeats
from harness.trial.result import Phase, TimelinePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TIMELINES: Final = 4
_MEASURED: Final = (
    ("allocated", "peak_allocated_bytes", VERMILION, "-"),
    ("active", "peak_active_bytes", GREEN, (0, (1, 1))),
    ("reserved", "peak_reserved_bytes", ORANGE, (0, (5, 2))),
    ("NVML", "peak_nvml_used_bytes", PURPLE, (0, (3, 1, 1, 1))),
)
_PHASES: Final = {Phase.FORWARD: SKY, Phase.BACKWARD: ORANGE, Phase.OPTIMIZER: PURPLE}


class Waterfall(Struct, frozen=True, kw_only=True):
    """One setting's predicted components of the fullest stage, and its measured peaks."""

    name: str
    stage: int | None
    components: MemoryBreakdown
    measured: Numbers


def waterfall(facts: Facts) -> Waterfall | None:
    """The best ranked setting whose components were predicted, measured ones first."""
    found = []
    for setting in facts.plan.settings:
        prediction = setting.trial.prediction
        if prediction is None or prediction.peak_memory_bytes is None:
            continue
        measured = over_repeats([numbers_of(one, None) for one in facts.of(setting)])
        found.append(
            Waterfall(
                name=facts.name_of(setting),
                stage=prediction.peak_stage,
                components=prediction.peak_memory_bytes,
                measured=measured,
            )
        )
    return min(found, key=lambda one: one.measured.peak_allocated_bytes is None, default=None)


def paint_waterfall(figure: "Figure", shown: Waterfall) -> None:
    """Components laid end to end until the predicted peak; measured peaks are lines across."""
    names = list(MemoryBreakdown.__struct_fields__)
    sizes = [getattr(shown.components, name) for name in names]
    total = shown.components.total
    lines = [
        (label, getattr(shown.measured, name), colour, style)
        for label, name, colour, style in _MEASURED
    ]
    lines = [line for line in lines if line[1] is not None]
    scale, unit = unit_of([total, *(line[1] for line in lines)])
    axes = figure.add_subplot()
    start = 0
    for place, size in enumerate(sizes):
        axes.barh(place, size / scale, left=start / scale, color=BLUE, height=0.62)
        start += size
    axes.barh(len(names), total / scale, color=FAINT, height=0.62)
    for label, size, colour, style in lines:
        axes.axvline(
            size / scale,
            color=colour,
            linestyle=style,
            label=f"measured {label} {size / scale:.1f}",
        )
    ends = [f"{name}  {size / scale:.1f}" for name, size in zip(names, sizes, strict=True)]
    axes.set_yticks(range(len(names) + 1), [*ends, f"predicted peak  {total / scale:.1f}"])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.04 * max([total, *(line[1] for line in lines)]) / scale)
    stage = "" if shown.stage is None else f", pipeline stage {shown.stage}"
    axes.set_title(f"Memory at its peak: {shown.name}{stage}")
    axes.set_xlabel(f"{unit} on the fullest rank; bars are predicted")
    soften(axes)
    axes.grid(visible=False, axis="y")
    if lines:
        figure.legend(loc="outside lower left", ncols=2)


class Step(Struct, frozen=True, kw_only=True):
    """One setting's allocated bytes over one step."""

    name: str
    points: tuple[TimelinePoint, ...]


def steps(facts: Facts) -> tuple[Step, ...]:
    """Measured timelines, one a setting; MOST_TIMELINES at most, the advisor's best first."""
    found = []
    for setting in facts.plan.settings:
        lines = (one.timeline for one in facts.of(setting) if len(one.timeline) > 1)
        line = next(lines, None)
        if line is not None:
            found.append(Step(name=facts.name_of(setting), points=line))
    return tuple(found[:MOST_TIMELINES])


def paint_timeline(figure: "Figure", shown: Sequence[Step], *, on_cpu: bool) -> None:
    """Allocated bytes against time, one below the other, with the phases behind."""
    from matplotlib.patches import Patch

    scale, unit = unit_of([point.allocated for step in shown for point in step.points])
    every = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, step in zip(every, shown, strict=True):
        _phases(axes, step)
        times = [point.seconds * 1e3 for point in step.points]
        sizes = [point.allocated / scale for point in step.points]
        axes.plot(times, sizes, color=INK, linewidth=1.1, drawstyle="steps-post")
        axes.set_title(f"{step.name}: peak {max(sizes):.1f} {unit}", fontsize=10)
        soften(axes)
    clock = "CPU time under the memory meter, which slows the step" if on_cpu else "of one step"
    every[-1].set_xlabel(f"ms, {clock}")
    figure.supylabel(f"allocated, {unit}", fontsize=10)
    handles = [Patch(color=colour, alpha=0.35, label=phase) for phase, colour in _PHASES.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles))


def _phases(axes: "Axes", step: Step) -> None:
    """Each stretch of one phase in its colour."""
    begin = step.points[0]
    for point in step.points[1:]:
        if point.phase is begin.phase and point is not step.points[-1]:
            continue
        axes.axvspan(
            begin.seconds * 1e3,
            point.seconds * 1e3,
            linewidth=0,
            alpha=0.25,
            color=_PHASES.get(begin.phase, FAINT),
        )
        begin = point
