"""Every picture of a report for which a run has the numbers, as SVG and PNG."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.evaluation import MemoryBreakdown
from advisor.base.grouping import grouped
from advisor.base.pareto import pareto_front
from advisor.base.units import unit_of
from advisor.report.figures import kit
from advisor.report.figures.point_labels import label_points
from harness.report.document import Picture
from harness.report.facts import Facts, Numbers
from harness.report.predicted_figure import paint_panels, panels
from harness.trial.result import Phase, TimelinePoint, TrialStatus
from harness.trial.trial import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawing = tuple[str, str, kit.Heights, Callable[[Figure], None]]

MOST_BARS: Final = 12
MEASURED: Final = "measured: "
_MARKS: Final = (
    ("allocated", "peak_allocated_bytes", "o"),
    ("reserved", "peak_reserved_bytes", "s"),
    ("used (NVML)", "peak_nvml_used_bytes", "D"),
)


class Bar(Struct, frozen=True, kw_only=True):
    """One setting's predicted components on its fullest rank, and its measured peaks."""

    name: str
    components: MemoryBreakdown
    measured: Numbers


def bars(facts: Facts) -> tuple[Bar, ...]:
    """Settings whose components were predicted, in the plan's order; MOST_BARS at most."""
    found = (
        Bar(name=facts.name_of(one), components=components, measured=facts.numbers(one))
        for one in facts.plan.settings
        if (components := (one.trial.prediction or Prediction()).peak_memory_bytes) is not None
    )
    return tuple(islice(found, MOST_BARS))


def paint_memory(figure: "Figure", shown: Sequence[Bar]) -> None:
    """Predicted components end to end; over them a dark line and marks for what was measured."""
    scale, unit = unit_of([bar.components.total for bar in shown])
    axes = figure.add_subplot()
    parts = (
        (look, [getattr(bar.components, component) / scale for bar in shown])
        for component, look in kit.COMPONENT_LOOKS.items()
    )
    kit.stacked_bars(axes, parts, height=0.74, labelled=True)
    axes.set_yticks(range(len(shown)), [bar.name for bar in shown])
    _measured(axes, shown, scale)
    axes.invert_yaxis()
    axes.set_title(kit.joined(figure, ("Memory of the fullest rank,", "predicted and measured")))
    words = ("bars are predicted,", "lines and marks are measured")
    axes.set_xlabel(f"{unit}; {kit.joined(figure, words)}")
    kit.soften(axes, "x")
    columns = 2 if kit.is_narrow(figure) else 5
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    handles, labels = zip(*sorted(named, key=lambda one: one[1].startswith(MEASURED)), strict=True)
    figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def _measured(axes: "Axes", shown: Sequence[Bar], scale: int) -> None:
    """A line from zero to the largest measured peak of each setting, and a mark at each peak."""
    for label, field, mark in _MARKS:
        sizes = [getattr(bar.measured, field) for bar in shown]
        known = [(place, size / scale) for place, size in enumerate(sizes) if size is not None]
        if known:
            places, ends = zip(*known, strict=True)
            axes.hlines(places, 0, ends, color=kit.INK, linewidth=1.6, zorder=3)
            look: dict[str, Any] = {"edgecolors": kit.FAINT, "linewidths": 0.8, "zorder": 4}
            look |= {"marker": mark, "color": kit.INK, "label": f"{MEASURED}{label}"}
            axes.scatter(ends, places, s=34, **look)


MOST_TIMELINES: Final = 4
_PHASES: Final = {
    Phase.FORWARD: kit.FORWARD,
    Phase.BACKWARD: kit.BACKWARD,
    Phase.REPLAY: kit.REPLAY,
    Phase.OPTIMIZER: kit.OPTIMIZER,
}
_FAINT: Final = 0.4


class StepTimeline(Struct, frozen=True):
    """One setting's allocated bytes over one step; the peak that was predicted, where it was."""

    name: str
    points: tuple[TimelinePoint, ...]
    predicted_peak: int | None = None


def step_timelines(facts: Facts) -> tuple[StepTimeline, ...]:
    """Measured timelines, one a setting; MOST_TIMELINES at most, the advisor's best first."""
    found = []
    for setting in facts.plan.settings:
        lines = [one.timeline for one in facts.results_of(setting) if len(one.timeline) > 1]
        peak = (setting.trial.prediction or Prediction()).peak_allocated_bytes
        found += [StepTimeline(facts.name_of(setting), line, peak) for line in lines[:1]]
    return tuple(found[:MOST_TIMELINES])


def paint_timeline(figure: "Figure", shown: Sequence[StepTimeline], *, on_cpu: bool) -> None:
    """Allocated bytes against time over the colours of the phases; the predicted peak across."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    scale, unit = unit_of([point.allocated for step in shown for point in step.points])
    every = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, step in zip(every, shown, strict=True):
        _phases(axes, step)
        times = [point.seconds * 1e3 for point in step.points]
        sizes = [point.allocated / scale for point in step.points]
        axes.plot(times, sizes, color=kit.INK, linewidth=1.1, drawstyle="steps-post")
        title = f"{step.name}: peak {max(sizes):.1f} {unit}"
        if step.predicted_peak is not None:
            axes.axhline(step.predicted_peak / scale, color=kit.INK, linestyle="--", linewidth=1)
            title += f", predicted {step.predicted_peak / scale:.1f}"
        axes.set_title(title, fontsize=10)
        kit.soften(axes)
    slowed = kit.joined(figure, ("ms, CPU time under the memory meter,", "which slows the step"))
    every[-1].set_xlabel(slowed if on_cpu else "ms of one step")
    figure.supylabel(f"allocated, {unit}", fontsize=10)
    seen = {point.phase for step in shown for point in step.points}
    looks = (look for phase, look in _PHASES.items() if phase in seen)
    handles: list[Any] = [Patch(**one.fill, alpha=_FAINT, label=one.name) for one in looks]
    handles.append(Line2D([], [], color=kit.INK, linewidth=1.1, label="measured"))
    if any(step.predicted_peak is not None for step in shown):
        handles.append(Line2D([], [], color=kit.INK, linestyle="--", label="predicted peak"))
    columns = 2 if kit.is_narrow(figure) else len(handles)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


def _phases(axes: "Axes", step: StepTimeline) -> None:
    """Each stretch of one phase in its colour."""
    begin = step.points[0]
    for point in step.points[1:]:
        if point.phase is begin.phase and point is not step.points[-1]:
            continue
        look = _PHASES.get(begin.phase, kit.Look("", kit.GREY))
        axes.axvspan(begin.seconds * 1e3, point.seconds * 1e3, alpha=_FAINT, **look.fill)
        begin = point


def draw_all(facts: Facts, folder: Path) -> tuple[Picture, ...]:
    """Draw into `folder`; ImportError where matplotlib is not installed."""
    found = []
    for name, caption, heights, paint in _drawings(facts):
        drawn = kit.draw(name, heights, paint, folder)
        found.append(Picture(name=name, caption=caption, svg=drawn.wide, narrow_svg=drawn.narrow))
    return tuple(found)


def _drawings(facts: Facts) -> Iterator["Drawing"]:
    """Name, caption, heights, and what paints it."""
    cpu = " (CPU times)" if facts.on_cpu else ""
    if shown := points(facts):
        key = 0.19 * -(-len(shown) // _columns(shown))
        heights = kit.Heights(4.6, 3.6 + key)  # on a phone the key is below
        caption = f"Peak memory against step time of every setting{cpu}"
        paint = partial(paint_scatter, facts=facts, title="Step time", label="step time{}, ms")
        times = partial(paint, height=lambda one: one.seconds * 1e3)
        yield "memory_and_time", caption, heights, times
        caption = f"Pareto front of peak memory and throughput{cpu}"
        paint = partial(paint, title="Throughput", label=f"{facts.tokens_unit}{{}}")
        rates = partial(paint, height=lambda one: one.tokens_per_second)
        yield "memory_and_throughput", caption, heights, rates
    if compared := panels(facts):
        heights = kit.Heights(4.2, 0.4 + 3.5 * len(compared))
        caption = f"Predicted against measured{cpu}"
        yield "predicted_and_measured", caption, heights, partial(paint_panels, shown=compared)
    if memory := bars(facts):
        tall = 0.42 * len(memory)
        heights = kit.Heights(1.9 + tall, 2.8 + tall)  # a phone's legend is long
        caption = "Predicted memory by component, and the measured peaks over it"
        yield "memory_by_component", caption, heights, partial(paint_memory, shown=memory)
    if lines := step_timelines(facts):
        heights = kit.Heights(1.4 + 1.35 * len(lines), 2.0 + 1.35 * len(lines))
        paint = partial(paint_timeline, shown=lines, on_cpu=facts.on_cpu)
        yield "timeline", f"Allocated bytes over one step{cpu}", heights, paint


MOST: Final = 24


class PlottedSetting(Struct, frozen=True):
    """One setting that was measured. number: the advisor's rank; of what it does not rank, one
    after all ranks. stable: its times may be trusted; pruned: a sweep ended a trial of it early."""

    number: int
    name: str
    memory_bytes: int
    seconds: float
    tokens_per_second: float
    stable: bool = True
    pruned: bool = False


def points(facts: Facts) -> tuple[PlottedSetting, ...]:
    """Settings with a step time and a peak, in the plan's order; MOST at most."""
    found = []
    unranked = count(max((one.rank or 0 for one in facts.plan.settings), default=0) + 1)
    for setting in facts.plan.settings:
        number = next(unranked) if setting.rank is None else setting.rank
        one = facts.numbers(setting)
        memory = one.peak_bytes(facts.peak)
        statuses = {result.status for result in facts.results_of(setting)}
        if one.step_time_seconds and memory and one.tokens_per_second_per_gpu:
            marks = TrialStatus.UNSTABLE not in statuses, TrialStatus.PRUNED in statuses
            speeds = one.step_time_seconds, one.tokens_per_second_per_gpu
            found.append(PlottedSetting(number, facts.name_of(setting), memory, *speeds, *marks))
    return tuple(found[:MOST])


def best_of(shown: Sequence[PlottedSetting]) -> list[PlottedSetting]:
    """Settings that ran to the end and that no other beats in both memory and time, by memory."""
    ended = [one for one in shown if not one.pruned]
    return pareto_front(ended, lambda one: (one.memory_bytes, one.seconds))


def paint_scatter(
    figure: "Figure",
    facts: Facts,
    title: str,
    label: str,
    height: Callable[[PlottedSetting], float],
) -> None:
    """Peak memory against `height`, with the front. label: of the heights; {}: a CPU's time."""
    shown, axes = points(facts), figure.add_subplot()
    at = _scatter(axes, shown, [height(one) for one in shown])
    clock = " (CPU time)" if facts.on_cpu else ""
    _, unit = unit_of(one.memory_bytes for one in shown)
    axes.set_title(kit.joined(figure, (f"{title}{clock}", "against peak memory")))
    axes.set_ylabel(label.format(clock))
    memory = (f"peak {facts.peak} memory", f"of the fullest rank, {unit}")
    axes.set_xlabel(kit.joined(figure, memory))
    _name(figure, axes, shown, at)


def _name(figure: "Figure", axes: "Axes", shown: Sequence[PlottedSetting], at: "Places") -> None:
    """Names next to the points; on a phone, which has no room for them, numbers and their key."""
    if not kit.is_narrow(figure):
        label_points(axes, at, names={one.number: [one.name] for one in shown})
        return
    from matplotlib.lines import Line2D

    for place, numbers in grouped((place, number) for number, place in at.items()).items():
        text = ", ".join(map(str, numbers))
        axes.annotate(text, place, xytext=(6, 6), textcoords="offset points", fontsize=9)
    handles = [Line2D([], [], linestyle="none", label=f"{p.number}  {p.name}") for p in shown]
    tight = {"handlelength": 0, "handletextpad": 0}
    figure.legend(handles=handles, loc="outside lower left", ncols=_columns(shown), **tight)


Places = dict[int, tuple[float, float]]
"""Number of a point -> memory and height, as drawn."""


def _scatter(axes: "Axes", shown: Sequence[PlottedSetting], heights: Sequence[float]) -> Places:
    """Draw the points and their front; where they lie."""
    scale, _ = unit_of(one.memory_bytes for one in shown)
    best = best_of(shown)
    at = {one.number: (one.memory_bytes / scale, y) for one, y in zip(shown, heights, strict=True)}
    line = [at[one.number] for one in best]
    look: dict[str, Any] = {"color": kit.SKY, "zorder": 1, "drawstyle": "steps-post"}
    axes.plot(*zip(*line, strict=True), label="Pareto front", **look)
    kit.draw_points(axes, line, s=46, marker="o", color=kit.BLUE, label="Pareto front")
    for label, mark, is_pruned in (("dominated", "s", False), ("pruned", "X", True)):
        others = (at[p.number] for p in shown if p not in best and p.pruned is is_pruned)
        kit.draw_points(axes, others, s=46, marker=mark, color=kit.FAINT, label=label)
    ring = {"facecolors": "none", "edgecolors": kit.VERMILION, "linewidths": None, "zorder": 2}
    doubtful = [at[one.number] for one in shown if not one.stable]
    kit.draw_points(axes, doubtful, s=130, label="unstable", **ring)
    axes.margins(0.12)
    kit.soften(axes)
    falls = line and line[-1][1] <= line[0][1]  # the legend stands beyond the front
    axes.legend(loc="lower left" if falls else "upper left")
    return at


def _columns(shown: Sequence[PlottedSetting]) -> int:
    """So many that the longest name fits; 54 characters of a key are as wide as a phone's page."""
    longest = max((len(one.name) for one in shown), default=1) + 8
    return max(1, min(4, 54 // longest))
