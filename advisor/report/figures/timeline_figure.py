"""`--plot-kind timeline`: the passes of every stage through a step, and the live memory beneath.

A long step is shown in parts (see step_windows); a slash marks where time is left out.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.report.figures import kit
from advisor.report.figures.titles import row_title
from advisor.report.wording import gib
from advisor.step.predicted_step import TrainingStep, training_step
from advisor.step.timeline import (
    LiveMemory,
    TimedPass,
    Timeline,
    live_memory,
    moments,
    seconds_of,
    tail_parts,
    timeline,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PASSES: Final = 44
_BEGIN, _AROUND, _END, _BEHIND = 14, 14, 12, 2.5
"""Passes of the begin, of the part around the peak and of the end; and so much before and after
where the pipeline ends and the optimizer begins."""


class Window(Struct, frozen=True):
    """Seconds from and to which a step is shown."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start

    def clipped(self, start: float, end: float) -> tuple[float, float] | None:
        """The part of an interval that is shown; None where none is."""
        low, high = max(start, self.start), min(end, self.end)
        return (low, high) if high > low else None


def windows(
    passes: tuple[TimedPass, ...], peak: TimedPass | None, optimizer: float, end: float
) -> list[Window]:
    """Parts of a step that ends at `end`, its optimizer beginning at `optimizer`. passes: those of
    the stage with the highest peak; peak: the one that reaches it, None where the optimizer
    does."""
    each = sum(one.end - one.start for one in passes) / len(passes)
    if end <= MOST_PASSES * each:
        return [Window(0.0, end)]
    last = passes[-1].end
    found = [
        *_of_pipeline(passes, peak, each),
        Window(last - each, min(last + _BEHIND * each, end)),
        Window(max(last, optimizer - _BEHIND * each), min(optimizer + 2 * _BEHIND * each, end)),
    ]
    joined = found[:1]
    for one in found[1:]:  # windows that touch are one
        if one.start <= joined[-1].end:
            joined[-1] = Window(joined[-1].start, max(one.end, joined[-1].end))
        else:
            joined.append(one)
    return joined


def _of_pipeline(
    passes: tuple[TimedPass, ...], peak: TimedPass | None, each: float
) -> list[Window]:
    last = passes[-1].end
    if last <= MOST_PASSES * each:
        return [Window(0.0, last)]
    middle = passes[len(passes) // 2].start
    early = peak is None or peak.end <= _BEGIN * each or peak.end >= last - _END * each
    around = middle if early or peak is None else peak.start - 0.5 * _AROUND * each
    steady = _start_of_one(passes, around)
    return [
        Window(0.0, _BEGIN * each),
        Window(steady, min(steady + _AROUND * each, last)),
        Window(_start_of_one(passes, last - _END * each), last),
    ]


def _start_of_one(passes: tuple[TimedPass, ...], seconds: float) -> float:
    return next(one.start for one in passes if one.start >= seconds)


MOST_STAGES: Final = 8
_TAIL: Final = {
    "accumulated": kit.OFFLOAD,
    "reduced": kit.COMMUNICATION,
    "optimizer": kit.OPTIMIZER,
}
_PARTS: Final = {
    "replay": kit.REPLAY,
    "communication": kit.COMMUNICATION,
    "offload": kit.OFFLOAD,
    "waiting": kit.WAITING,
    "stragglers": kit.STRAGGLERS,
}
_LANE, _BAR, _ROOM = 3.0, 1.0, 1.55
"""Heights of a stage's lane, of its passes, and of its live memory beneath."""
_WIDTH: Final = 13.0
_LEFT, _RIGHT, _ABOVE, _BELOW, _GAP = 0.9, 1.55, 0.62, 1.1, 0.16
"""Inches of the picture, around its axes, and between parts of the step."""
_TICK: Final = 0.65
"""Inches of a number at the axis of time."""
_NARROWEST: Final = 0.16
"""Inches of a pass that has room for its name."""


class _Drawing(Struct, frozen=True):
    """What is drawn: the stages among all, and the highest peak of any."""

    step: TrainingStep
    line: Timeline
    stages: Sequence[int]
    memory: dict[int, LiveMemory]
    worst: int

    @property
    def most(self) -> int:
        return max(live.peak for live in self.memory.values())

    def tail(self) -> Iterator[tuple[kit.Look, float, float]]:
        """Parts after the pipeline: look, start, end."""
        return ((_TAIL[name], start, end) for name, start, end in tail_parts(self.step))


def timeline_figure(advice: Answer, row: RankedEvaluation) -> "Figure":
    """Passes in colour, live memory beneath, its highest point marked."""
    from matplotlib.figure import Figure

    drawing = _drawing(row)
    worst, end = drawing.worst, drawing.step.seconds
    passes, peak_pass = drawing.line.stages[worst], drawing.memory[worst].peak_pass
    peak = None if peak_pass is None else passes[peak_pass]
    shown = windows(passes, peak, end - drawing.step.tail.optimizer, end)
    height = _ABOVE + _BELOW + 0.34 * _LANE * len(drawing.stages)
    figure = Figure(figsize=(_WIDTH, height))
    figure.suptitle(row_title(advice, row), fontsize=11, y=1 - 0.1 / height)
    room = _WIDTH - _LEFT - _RIGHT - _GAP * (len(shown) - 1)
    scale = room / sum(window.length for window in shown)
    left, panels = _LEFT, []
    for window in shown:
        width = scale * window.length
        place = (left / _WIDTH, _BELOW / height, width / _WIDTH, 1 - (_ABOVE + _BELOW) / height)
        panels.append(figure.add_axes(place))
        _draw_window(panels[-1], drawing, window, scale)
        left += width + _GAP
    _frame(panels, drawing)
    figure.text(
        0.5,
        0.66 / height,
        f"seconds from the start of the step, which takes {drawing.step.seconds:.2f} s",
        horizontalalignment="center",
    )
    figure.text(0.5, 0.44 / height, _peak_words(drawing), horizontalalignment="center", fontsize=8)
    kit.legend_below(figure, _looks(drawing), columns=8)
    return figure


def _drawing(row: RankedEvaluation) -> _Drawing:
    step = training_step(row.evaluation)
    memory = {stage.stage: live_memory(step, stage.stage) for stage in step.stages}
    worst = max(memory, key=lambda stage: memory[stage].peak)
    stages = _stages(len(step.stages), worst)
    return _Drawing(step, timeline(step), stages, {k: memory[k] for k in stages}, worst)


def _stages(number: int, worst: int) -> list[int]:
    """All, or of many the first, the last, the worst, and some between, evenly."""
    if number <= MOST_STAGES:
        return list(range(number))
    some = {round(k * (number - 1) / (MOST_STAGES - 1)) for k in range(MOST_STAGES)}
    return sorted(some | {worst})


def _draw_window(axes: "Axes", drawing: _Drawing, window: Window, scale: float) -> None:
    axes.set_xlim(window.start, window.end)
    axes.set_ylim(_LANE * len(drawing.stages) - 0.35, -0.2)
    for lane, stage in enumerate(drawing.stages):
        top = _LANE * lane
        _draw_bars(axes, [(window.start, window.end)], top, kit.BUBBLE)
        _draw_passes(axes, drawing, stage, window, top)
        for look, start, end in drawing.tail():
            if part := window.clipped(start, end):
                _draw_bars(axes, [part], top, look)
        _name_passes(axes, drawing, stage, window, (top, scale))
        _draw_memory(axes, drawing, stage, window, top + _BAR + _ROOM + 0.1)


def _draw_passes(axes: "Axes", drawing: _Drawing, stage: int, window: Window, top: float) -> None:
    """Compute, replay, and what is neither, each in its colour."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in drawing.line.stages[stage]:
        if not window.clipped(one.start, one.end):
            continue
        start = one.start
        for name, seconds in seconds_of(drawing.step.stages[stage], one).parts:
            end = start + seconds * drawing.line.stretch
            kind = ("backward" if one.backward else "forward") if name == "compute" else name
            if part := window.clipped(start, end):
                found.setdefault(kind, []).append(part)
            start = end
    for kind, look in {"forward": kit.FORWARD, "backward": kit.BACKWARD, **_PARTS}.items():
        _draw_bars(axes, found.get(kind, []), top, look)
    edges = [
        one.start for one in drawing.line.stages[stage] if window.start < one.start < window.end
    ]
    axes.vlines(edges, top, top + _BAR, color="white", linewidth=0.7)


def _draw_bars(
    axes: "Axes", parts: Sequence[tuple[float, float]], top: float, look: kit.Look
) -> None:
    if parts:
        axes.broken_barh([(start, end - start) for start, end in parts], (top, _BAR), **look.fill)


def _name_passes(
    axes: "Axes", drawing: _Drawing, stage: int, window: Window, place: tuple[float, float]
) -> None:
    """``3`` for microbatch 3, with its chunk as a letter where a stage has several: ``b3``."""
    top, scale = place
    chunks = len(drawing.step.stages[stage].chunks)
    for one in drawing.line.stages[stage]:
        part = window.clipped(one.start, one.end)
        text = f"{_letter(one.chunk) if chunks > 1 else ''}{one.microbatch}"
        if part and (part[1] - part[0]) * scale >= _NARROWEST * len(text) ** 0.6:
            axes.text(
                (part[0] + part[1]) / 2,
                top + _BAR / 2,
                text,
                fontsize=6,
                horizontalalignment="center",
                verticalalignment="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
            )


def _letter(chunk: int) -> str:
    """a, b, … z, aa: of so many chunks."""
    return (_letter(chunk // 26 - 1) if chunk >= 26 else "") + chr(ord("a") + chunk % 26)


def _draw_memory(axes: "Axes", drawing: _Drawing, stage: int, window: Window, floor: float) -> None:
    """Level before a pass, at its highest in the middle, and after it, upwards from `floor`."""
    live, most = drawing.memory[stage], drawing.most
    curve = moments(drawing.step, drawing.line, stage, live)
    times = [moment.seconds for moment in curve]
    heights = [floor - _ROOM * moment.num_bytes / most for moment in curve]
    static = floor - _ROOM * drawing.step.stages[stage].static_bytes / most
    axes.fill_between(times, heights, static, color=kit.VERMILION, alpha=0.35, linewidth=0)
    axes.plot(times, heights, color=kit.VERMILION, linewidth=0.8)
    axes.fill_between(
        [window.start, window.end], static, floor, color=kit.LIGHT, alpha=0.6, linewidth=0
    )
    peak = floor - _ROOM * live.peak / most
    axes.hlines(peak, window.start, window.end, color=kit.GREY, linewidth=0.7, linestyle=":")
    reached = drawing.step.seconds - drawing.step.tail.optimizer / 2
    if live.peak_pass is not None:
        one = drawing.line.stages[stage][live.peak_pass]
        reached = (one.start + one.end) / 2
    if window.start <= reached <= window.end:
        axes.plot([reached], [peak], marker="v", color="black", markersize=5, clip_on=False)


def _frame(panels: Sequence["Axes"], drawing: _Drawing) -> None:
    """Names of stages and a scale of bytes at the left, peaks at the right, slashes between."""
    most = drawing.most
    places, names = [_BAR + 0.1], [f"{gib(most)} GiB"]
    for lane, stage in enumerate(drawing.stages):
        top = _LANE * lane
        floor = top + _BAR + _ROOM + 0.1
        places += [top + _BAR / 2, floor]
        names += [f"stage {stage}", "0"]
        peak = drawing.memory[stage].peak
        kit.note(
            panels[-1],
            f"peak {gib(peak)} GiB",
            (1, floor - _ROOM * peak / most),
            xycoords=("axes fraction", "data"),
            fontweight="bold" if stage == drawing.worst else "normal",
        )
    for number, axes in enumerate(panels):
        axes.set_yticks(places if number == 0 else [], names if number == 0 else [], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        inches = axes.get_position().width * _WIDTH
        if inches < 3 * _TICK:
            start, end = axes.get_xlim()
            axes.set_xticks([round((start + end) / 2, 2)])
        else:
            axes.locator_params(axis="x", nbins=int(inches / _TICK), prune="both")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        slash: dict[str, Any] = {"marker": [(-1, -2), (1, 2)], "markersize": 9, "color": "black"}
        cut = axes.get_xlim()[1] < drawing.step.seconds
        across: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, **slash}
        for end in (*([0.0] if number else []), *([1.0] if cut else [])):
            axes.plot([end], [0], linestyle="none", **across)


def _peak_words(drawing: _Drawing) -> str:
    live, stage = drawing.memory[drawing.worst], drawing.worst
    where = f"highest peak: stage {stage}, {gib(live.peak)} GiB allocated"
    chunks = len(drawing.step.stages[stage].chunks)
    legend = "a number is a microbatch" + (", a letter its chunk" if chunks > 1 else "")
    if live.peak_pass is None:
        return f"{where}, in the {live.point}; grey: weights, gradients, optimizer; {legend}"
    one = drawing.line.stages[stage][live.peak_pass]
    way = "backward" if one.backward else "forward"
    return (
        f"{where}, in the {way} of microbatch {one.microbatch}: {live.point}; "
        f"grey: weights, gradients, optimizer and buffers; {legend}"
    )


def _looks(drawing: _Drawing) -> list[kit.Look]:
    """What is drawn of all that can be."""
    names = {
        name
        for stage in drawing.step.stages
        for chunk in stage.chunks
        for way in (chunk.forward, chunk.backward)
        for name, _ in way.parts
    }
    parts = [look for name, look in _PARTS.items() if name in names]
    tail = [look for look, _, _ in drawing.tail()]
    return list(dict.fromkeys([kit.FORWARD, kit.BACKWARD, *parts, *tail, kit.BUBBLE]))
