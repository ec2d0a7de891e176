"""Memory of every setting: what was predicted, by component, and over it what was measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.answer.evaluation import MemoryBreakdown
from advisor.base.units import unit_of
from advisor.report.figures.palette import COMPONENT_LOOKS
from harness.report.facts import Facts
from harness.report.style import FAINT, INK, Heights, is_narrow, joined, soften
from harness.report.trial_numbers import Numbers, numbers_of, over_repeats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    found = []
    for setting in facts.plan.settings:
        prediction = setting.trial.prediction
        if prediction is None or prediction.peak_memory_bytes is None:
            continue
        measured = over_repeats([numbers_of(one, None) for one in facts.of(setting)])
        name, components = facts.name_of(setting), prediction.peak_memory_bytes
        found.append(Bar(name=name, components=components, measured=measured))
    return tuple(found[:MOST_BARS])


def heights_of(shown: Sequence[Bar]) -> Heights:
    """Of the picture; on a phone its legend has more lines."""
    return Heights(1.9 + 0.42 * len(shown), 2.8 + 0.42 * len(shown))


def paint_memory(figure: "Figure", shown: Sequence[Bar]) -> None:
    """Predicted components laid end to end; a dark line over them reaches as far as what was
    measured, with a mark at each measured peak."""
    scale, unit = unit_of([bar.components.total for bar in shown])
    axes = figure.add_subplot()
    names = [bar.name for bar in shown]
    start = [0.0] * len(shown)
    for component, look in COMPONENT_LOOKS.items():
        sizes = [getattr(bar.components, component) / scale for bar in shown]
        axes.barh(names, sizes, left=start, height=0.74, label=look.name, **look.fill)
        start = [before + size for before, size in zip(start, sizes, strict=True)]
    _measured(axes, shown, scale)
    axes.invert_yaxis()
    axes.set_title(joined(figure, ("Memory of the fullest rank,", "predicted and measured")))
    words = ("bars are predicted,", "lines and marks are measured")
    axes.set_xlabel(f"{unit}; {joined(figure, words)}")
    soften(axes)
    axes.grid(visible=False, axis="y")
    columns = 2 if is_narrow(figure) else 5
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda number: labels[number].startswith(MEASURED))
    figure.legend(
        [handles[number] for number in order],
        [labels[number] for number in order],
        loc="outside lower left",
        ncols=columns,
    )


def _measured(axes: "Axes", shown: Sequence[Bar], scale: int) -> None:
    """A line from zero to the largest measured peak of each setting, and a mark at each peak."""
    for label, field, mark in _MARKS:
        sizes = [getattr(bar.measured, field) for bar in shown]
        known = [(place, size / scale) for place, size in enumerate(sizes) if size is not None]
        if not known:
            continue
        places, ends = zip(*known, strict=True)
        axes.hlines(places, 0, ends, color=INK, linewidth=1.6, zorder=3)
        axes.scatter(
            ends,
            places,
            s=34,
            marker=mark,
            color=INK,
            edgecolors=FAINT,
            linewidths=0.8,
            zorder=4,
            label=f"{MEASURED}{label}",
        )
