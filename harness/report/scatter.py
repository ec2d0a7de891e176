"""Pictures of all settings: memory against time and throughput, predicted against measured."""

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.units import unit_of
from advisor.report.figures.palette import BLUE, GREEN, SKY, VERMILION
from harness.base.collections import front, grouped, known
from harness.judge.metrics import ALLOCATED, METRICS
from harness.judge.predicted import Pair
from harness.report.facts import Facts
from harness.report.point_names import name_points
from harness.report.provenance import calibration_names, find_calibration
from harness.report.style import FAINT, INK, Heights, is_narrow, joined, soften
from harness.report.trial_numbers import numbers_of, over_repeats
from harness.trial.result import TrialStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEY_ROWS: Final = 0.19  # inches of a line of the key
MOST: Final = 24


class Point(Struct, frozen=True, kw_only=True):
    """One setting that was measured. number: the advisor's rank, as tables have it; of what it does
    not rank one behind all ranks. stable: whether its times are to be trusted."""

    number: int
    name: str
    memory_bytes: int
    seconds: float
    tokens_per_second: float
    stable: bool = True


def points(facts: Facts) -> tuple[Point, ...]:
    """Settings with a step time and a peak, in the plan's order; MOST at most."""
    found = []
    unranked = count(max((one.rank or 0 for one in facts.plan.settings), default=0) + 1)
    for setting in facts.plan.settings:
        number = next(unranked) if setting.rank is None else setting.rank
        one = over_repeats([numbers_of(result, facts.gpu) for result in facts.of(setting)])
        memory = one.peak_bytes(facts.peak)
        if one.step_time_seconds and memory and one.tokens_per_second_per_gpu:
            found.append(
                Point(
                    number=number,
                    name=facts.name_of(setting),
                    memory_bytes=memory,
                    seconds=one.step_time_seconds,
                    tokens_per_second=one.tokens_per_second_per_gpu,
                    stable=all(r.status is not TrialStatus.UNSTABLE for r in facts.of(setting)),
                )
            )
    return tuple(found[:MOST])


def best_of(shown: Sequence[Point]) -> list[Point]:
    """Settings that no other beats in both memory and time, by memory."""
    return front(shown, lambda one: (one.memory_bytes, one.seconds))


def heights_of(shown: Sequence[Point]) -> Heights:
    """Of a scatter; on a phone its key is below."""
    return Heights(4.6, 3.6 + _KEY_ROWS * -(-len(shown) // _columns(shown)))


def paint_time(figure: "Figure", facts: Facts) -> None:
    """Peak memory against step time; the line joins what nothing beats in both."""
    shown = points(facts)
    axes = figure.add_subplot()
    at = _scatter(axes, shown, [one.seconds * 1e3 for one in shown])
    unit = " (CPU time)" if facts.on_cpu else ""
    axes.set(
        ylabel=f"step time{unit}, ms",
        title=joined(figure, (f"Step time{unit}", "against peak memory")),
    )
    axes.set_xlabel(_memory_words(figure, facts, shown))
    _name(figure, axes, shown, at)


def paint_throughput(figure: "Figure", facts: Facts) -> None:
    """Peak memory and throughput of the settings that nothing beats, the others faint."""
    shown = points(facts)
    axes = figure.add_subplot()
    at = _scatter(axes, shown, [one.tokens_per_second for one in shown])
    unit = " (CPU time)" if facts.on_cpu else ""
    axes.set(
        ylabel=f"{facts.tokens_unit}{unit}",
        title=joined(figure, (f"Throughput{unit}", "against peak memory")),
    )
    axes.set_xlabel(_memory_words(figure, facts, shown))
    _name(figure, axes, shown, at)


def _memory_words(figure: "Figure", facts: Facts, shown: Sequence[Point]) -> str:
    unit = _unit(shown)[1]
    return joined(figure, (f"peak {facts.peak} memory", f"of the fullest rank, {unit}"))


def _name(figure: "Figure", axes: "Axes", shown: Sequence[Point], at: "Places") -> None:
    """Names beside the points; on a phone, which has no room for them, numbers and their key."""
    together = grouped((at[one.number], one) for one in shown)
    if is_narrow(figure):
        for place, own in together.items():
            text = ", ".join(str(one.number) for one in own)
            axes.annotate(text, place, xytext=(6, 6), textcoords="offset points", fontsize=9)
        _key(figure, shown)
    else:
        names = {place: ", ".join(one.name for one in own) for place, own in together.items()}
        name_points(axes, names)


Places = dict[int, tuple[float, float]]
"""Number of a point -> memory and height, as drawn."""


def _scatter(axes: "Axes", shown: Sequence[Point], heights: Sequence[float]) -> Places:
    """Draw the points and their front; where they lie."""
    scale, _ = _unit(shown)
    best = best_of(shown)
    at = {one.number: (one.memory_bytes / scale, y) for one, y in zip(shown, heights, strict=True)}
    line = [at[one.number] for one in best]
    axes.plot(
        *zip(*line, strict=True), color=SKY, zorder=1, drawstyle="steps-post", label="Pareto front"
    )
    groups = (
        ("Pareto front", "o", BLUE, [at[one.number] for one in best]),
        ("dominated", "s", FAINT, [at[o.number] for o in shown if o not in best]),
    )
    for label, marker, colour, places in groups:
        if places:
            x, y = zip(*places, strict=True)
            axes.scatter(
                x,
                y,
                s=46,
                marker=marker,
                color=colour,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
                label=label,
            )
    doubtful = [at[one.number] for one in shown if not one.stable]
    if doubtful:
        x, y = zip(*doubtful, strict=True)
        axes.scatter(
            x, y, s=130, facecolors="none", edgecolors=VERMILION, zorder=2, label="unstable"
        )
    axes.margins(0.12)
    soften(axes)
    axes.legend(loc="best")
    return at


def _key(figure: "Figure", shown: Sequence[Point]) -> None:
    """Which number is which setting."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="none", label=f"{p.number}  {p.name}") for p in shown]
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=_columns(shown),
        handlelength=0,
        handletextpad=0,
    )


def _columns(shown: Sequence[Point]) -> int:
    """So many that the longest name fits; 54 characters of a key are as wide as a phone's page."""
    longest = max((len(one.name) for one in shown), default=1) + 8
    return max(1, min(4, 54 // longest))


def _unit(shown: Sequence[Point]) -> tuple[int, str]:
    return unit_of([one.memory_bytes for one in shown])


class Panel(Struct, frozen=True, kw_only=True):
    """One quantity, predicted against measured. band: relative, with whose it is."""

    title: str
    unit: str
    scale: float
    pairs: tuple[tuple[float, float], ...]
    band: float | None = None
    whose: str = ""


def panels(facts: Facts) -> tuple[Panel, ...]:
    """Quantities that were both predicted and measured."""
    found = facts.found
    kept = _pairs([outcome.saved_per_layer for outcome in found])
    peak = _pairs([outcome.peak_allocated for outcome in found])
    steps = _pairs([outcome.step_time for outcome in found])
    limit = METRICS[ALLOCATED].limit
    bands = [
        one.step_time_error
        for name in calibration_names(facts)
        if (one := find_calibration(name)) is not None
    ]
    made = []
    for title, pairs in (("kept per layer", kept), ("peak allocated", peak)):
        if pairs:
            scale, unit = unit_of([number for pair in pairs for number in pair])
            made.append(
                Panel(
                    title=title,
                    unit=unit,
                    scale=scale,
                    pairs=pairs,
                    band=limit,
                    whose="limit of harness compare",
                )
            )
    if steps:
        made.append(
            Panel(
                title="step time",
                unit="ms",
                scale=1e-3,
                pairs=steps,
                band=max(bands, default=None),
                whose="calibration",
            )
        )
    return tuple(made)


def _pairs(pairs: Sequence[Pair]) -> tuple[tuple[float, float], ...]:
    """Measured and predicted, where both are known."""
    return tuple((m, p) for p, m in known(one.both for one in pairs))


def paint_predicted(figure: "Figure", facts: Facts) -> None:
    """Each quantity in a square: on the line nothing is wrong."""
    shown = panels(facts)
    columns = 1 if is_narrow(figure) else len(shown)
    for number, panel in enumerate(shown):
        axes = figure.add_subplot(-(-len(shown) // columns), columns, number + 1)
        _identity(axes, panel)


def _identity(axes: "Axes", panel: Panel) -> None:
    measured = [pair[0] / panel.scale for pair in panel.pairs]
    predicted = [pair[1] / panel.scale for pair in panel.pairs]
    low, high = min(measured + predicted), max(measured + predicted)
    margin = 0.12 * (high - low) or 0.12 * high or 1.0
    ends = [max(0.0, low - margin), high + margin]
    axes.plot(ends, ends, color=INK, linewidth=1)
    title = panel.title
    if panel.band is not None:
        below, above = ([end * (1 + sign * panel.band) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, below, above, color=GREEN, alpha=0.25, linewidth=0)
        title += f"\nband: ±{panel.band * 100:.0f} % ({panel.whose})"
    axes.scatter(
        measured, predicted, s=40, color=VERMILION, edgecolors="white", linewidths=0.6, zorder=3
    )
    axes.set(
        xlim=ends,
        ylim=ends,
        aspect="equal",
        xlabel=f"measured, {panel.unit}",
        ylabel=f"predicted, {panel.unit}",
    )
    axes.set_title(title, fontsize=10)
    axes.locator_params(nbins=4)
    soften(axes)
