"""What one step looks like: allocated bytes against time, and the phases behind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.units import unit_of
from advisor.report.figures.palette import BACKWARD, FORWARD, GREY, OPTIMIZER, REPLAY, Look
from harness.report.facts import Facts
from harness.report.style import INK, is_narrow, joined, soften
from harness.trial.result import Phase, TimelinePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TIMELINES: Final = 4
_PHASES: Final = {
    Phase.FORWARD: FORWARD,
    Phase.BACKWARD: BACKWARD,
    Phase.REPLAY: REPLAY,
    Phase.OPTIMIZER: OPTIMIZER,
}
_FAINT: Final = 0.4


class Step(Struct, frozen=True, kw_only=True):
    """One setting's allocated bytes over one step; the peak that was predicted, where it was."""

    name: str
    points: tuple[TimelinePoint, ...]
    predicted_peak: int | None = None


def steps(facts: Facts) -> tuple[Step, ...]:
    """Measured timelines, one a setting; MOST_TIMELINES at most, the advisor's best first."""
    found = []
    for setting in facts.plan.settings:
        lines = (one.timeline for one in facts.of(setting) if len(one.timeline) > 1)
        line = next(lines, None)
        if line is not None:
            told = setting.trial.prediction
            predicted = told.peak_allocated_bytes if told else None
            name = facts.name_of(setting)
            found.append(Step(name=name, points=line, predicted_peak=predicted))
    return tuple(found[:MOST_TIMELINES])


def paint_timeline(figure: "Figure", shown: Sequence[Step], *, on_cpu: bool) -> None:
    """Allocated bytes against time, one below the other, with the phases behind and the predicted
    peak across."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    scale, unit = unit_of([point.allocated for step in shown for point in step.points])
    every = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, step in zip(every, shown, strict=True):
        _phases(axes, step)
        times = [point.seconds * 1e3 for point in step.points]
        sizes = [point.allocated / scale for point in step.points]
        axes.plot(times, sizes, color=INK, linewidth=1.1, drawstyle="steps-post")
        title = f"{step.name}: peak {max(sizes):.1f} {unit}"
        if step.predicted_peak is not None:
            axes.axhline(step.predicted_peak / scale, color=INK, linestyle="--", linewidth=1)
            title += f", predicted {step.predicted_peak / scale:.1f}"
        axes.set_title(title, fontsize=10)
        soften(axes)
    slowed = joined(figure, ("ms, CPU time under the memory meter,", "which slows the step"))
    every[-1].set_xlabel(slowed if on_cpu else "ms of one step")
    figure.supylabel(f"allocated, {unit}", fontsize=10)
    seen = {point.phase for step in shown for point in step.points}
    handles: list[Patch | Line2D] = [
        Patch(**look.fill, alpha=_FAINT, label=look.name)
        for phase, look in _PHASES.items()
        if phase in seen
    ]
    handles.append(Line2D([], [], color=INK, linewidth=1.1, label="measured"))
    if any(step.predicted_peak is not None for step in shown):
        handles.append(Line2D([], [], color=INK, linestyle="--", label="predicted peak"))
    columns = 2 if is_narrow(figure) else len(handles)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


def _phases(axes: "Axes", step: Step) -> None:
    """Each stretch of one phase in its colour."""
    begin = step.points[0]
    for point in step.points[1:]:
        if point.phase is begin.phase and point is not step.points[-1]:
            continue
        look = _PHASES.get(begin.phase, Look("", GREY))
        axes.axvspan(begin.seconds * 1e3, point.seconds * 1e3, alpha=_FAINT, **look.fill)
        begin = point
