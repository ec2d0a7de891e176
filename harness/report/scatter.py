"""Pictures of all settings: memory against time and throughput, predicted against measured."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.grouping import grouped
from advisor.base.pareto import pareto_front
from advisor.base.units import unit_of
from advisor.report.figures import kit
from advisor.report.figures.point_labels import label_points
from harness.report.facts import Facts
from harness.trial.result import TrialStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEY_ROWS: Final = 0.19  # inches of a line of the key
MOST: Final = 24


class PlottedSetting(Struct, frozen=True, kw_only=True):
    """One setting that was measured. number: the advisor's rank, as tables have it; of what it does
    not rank one after all ranks. stable: whether its times are to be trusted."""

    number: int
    name: str
    memory_bytes: int
    seconds: float
    tokens_per_second: float
    stable: bool = True


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
            plotted = PlottedSetting(
                number=number,
                name=facts.name_of(setting),
                memory_bytes=memory,
                seconds=one.step_time_seconds,
                tokens_per_second=one.tokens_per_second_per_gpu,
                stable=TrialStatus.UNSTABLE not in statuses,
            )
            found.append(plotted)
    return tuple(found[:MOST])


def best_of(shown: Sequence[PlottedSetting]) -> list[PlottedSetting]:
    """Settings that no other beats in both memory and time, by memory."""
    return pareto_front(shown, lambda one: (one.memory_bytes, one.seconds))


def heights_of(shown: Sequence[PlottedSetting]) -> kit.Heights:
    """Of a scatter; on a phone its key is below."""
    return kit.Heights(4.6, 3.6 + _KEY_ROWS * -(-len(shown) // _columns(shown)))


def paint_time(figure: "Figure", facts: Facts) -> None:
    """Peak memory against step time; the line joins what nothing beats in both."""
    _paint(figure, facts, ("Step time", "step time{}, ms"), lambda one: one.seconds * 1e3)


def paint_throughput(figure: "Figure", facts: Facts) -> None:
    """Peak memory and throughput of the settings that nothing beats, the others faint."""
    words = ("Throughput", f"{facts.tokens_unit}{{}}")
    _paint(figure, facts, words, lambda one: one.tokens_per_second)


Height = Callable[[PlottedSetting], float]


def _paint(figure: "Figure", facts: Facts, words: tuple[str, str], height: Height) -> None:
    """words: title, and label of the heights, in which a CPU's time is marked at {}."""
    shown, (title, label) = points(facts), words
    axes = figure.add_subplot()
    at = _scatter(axes, shown, [height(one) for one in shown])
    clock, unit = " (CPU time)" if facts.on_cpu else "", _unit(shown)[1]
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
    for place, numbers in grouped((place, number) for number, place in at.items()).items():
        text = ", ".join(map(str, numbers))
        axes.annotate(text, place, xytext=(6, 6), textcoords="offset points", fontsize=9)
    _key(figure, shown)


Places = dict[int, tuple[float, float]]
"""Number of a point -> memory and height, as drawn."""


def _scatter(axes: "Axes", shown: Sequence[PlottedSetting], heights: Sequence[float]) -> Places:
    """Draw the points and their front; where they lie."""
    scale, _ = _unit(shown)
    best = best_of(shown)
    at = {one.number: (one.memory_bytes / scale, y) for one, y in zip(shown, heights, strict=True)}
    line = [at[one.number] for one in best]
    axes.plot(
        *zip(*line, strict=True),
        color=kit.SKY,
        zorder=1,
        drawstyle="steps-post",
        label="Pareto front",
    )
    groups = (
        ("Pareto front", "o", kit.BLUE, line),
        ("dominated", "s", kit.FAINT, [at[one.number] for one in shown if one not in best]),
    )
    for label, marker, colour, places in groups:
        kit.draw_points(axes, places, s=46, marker=marker, color=colour, label=label)
    ring = {"facecolors": "none", "edgecolors": kit.VERMILION, "linewidths": None, "zorder": 2}
    doubtful = [at[one.number] for one in shown if not one.stable]
    kit.draw_points(axes, doubtful, s=130, label="unstable", **ring)
    axes.margins(0.12)
    kit.soften(axes)
    axes.legend(loc="best")
    return at


def _key(figure: "Figure", shown: Sequence[PlottedSetting]) -> None:
    """Which number is which setting."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="none", label=f"{p.number}  {p.name}") for p in shown]
    tight = {"handlelength": 0, "handletextpad": 0}
    figure.legend(handles=handles, loc="outside lower left", ncols=_columns(shown), **tight)


def _columns(shown: Sequence[PlottedSetting]) -> int:
    """So many that the longest name fits; 54 characters of a key are as wide as a phone's page."""
    longest = max((len(one.name) for one in shown), default=1) + 8
    return max(1, min(4, 54 // longest))


def _unit(shown: Sequence[PlottedSetting]) -> tuple[int, str]:
    return unit_of([one.memory_bytes for one in shown])
