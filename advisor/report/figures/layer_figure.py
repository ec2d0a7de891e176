"""`--plot-kind layer`: the operators of a layer in order, what becomes of the bytes that the
backward needs of each, and their seconds."""

from typing import TYPE_CHECKING, Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.units import MIB, counted
from advisor.report.figures import kit
from advisor.report.figures.titles import row_title
from advisor.step.layer_drawing import DrawnLayer, DrawnOperator, Fate, drawn_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS: Final = 3
"""Different layers of one picture, those that the model has most of."""
FATES: Final = {
    Fate.KEPT: kit.Look("kept on the GPU", kit.GREEN),
    Fate.OFFLOADED: kit.Look("offloaded to the host", kit.YELLOW, "...."),
    Fate.REPLAYED: kit.Look("dropped, recomputed by a replay", kit.REPLAY.colour, kit.REPLAY.hatch),
}
_LINE: Final = 0.2
"""Inches of an operator."""
_WIDTH: Final = 13.0
_LEFT, _MIDDLE, _RIGHT = 2.4, 2.8, 0.25
"""Inches of names, of the tensors' names between the two axes, and at the right."""
_BYTES, _TIMES = 0.6, 0.4
"""Shares of the two axes in the rest."""
_ABOVE, _BETWEEN, _BELOW = 0.75, 0.85, 0.95
_LONGEST: Final = 44  # characters of tensors' names
_NAMED: Final = MIB
"""A smaller tensor has no name."""


def layer_figure(advice: Answer, row: RankedEvaluation) -> "Figure":
    """Each different layer of the model under the row's setting: bytes of one microbatch on one
    rank at the operator that first saves them, and milliseconds forward, backward and replayed."""
    from matplotlib.figure import Figure

    layers = drawn_layers(row.evaluation)
    shown = sorted(layers, key=lambda layer: -layer.layers)[:MOST_LAYERS]
    shown = [layer for layer in layers if layer in shown]
    heights = [_LINE * len(layer.operators) for layer in shown]
    height = _ABOVE + sum(heights) + _BETWEEN * (len(shown) - 1) + _BELOW + 0.35
    figure = Figure(figsize=(_WIDTH, height))
    figure.suptitle(row_title(advice, row), fontsize=11, y=1 - 0.1 / height)
    top = height - _ABOVE - 0.3
    room = _WIDTH - _LEFT - _MIDDLE - _RIGHT
    for layer, tall in zip(shown, heights, strict=True):
        bottom = (top - tall) / height
        sizes = figure.add_axes((_LEFT / _WIDTH, bottom, _BYTES * room / _WIDTH, tall / height))
        left = _LEFT + _BYTES * room + _MIDDLE
        times = figure.add_axes((left / _WIDTH, bottom, _TIMES * room / _WIDTH, tall / height))
        _draw_bytes(sizes, layer)
        _draw_times(times, layer)
        sizes.set_title(_words(layer), fontsize=9, loc="left", x=-_LEFT / (_BYTES * room) * 0.95)
        top -= tall + _BETWEEN
    found = [look for fate, look in FATES.items() if any(one.num_bytes(fate) for one in shown)]
    kit.legend_below(figure, [*found, kit.FORWARD, kit.BACKWARD, kit.REPLAY], columns=6)
    return figure


def _words(layer: DrawnLayer) -> str:
    """What it is, how many there are, and its bytes by fate."""
    words = f"{layer.kind}, {counted(layer.layers, 'layer')}"
    if layer.together > 1:
        words += f", one checkpoint per {layer.together} layers: keeps the input of the first"
    elif layer.together:
        words += ", one checkpoint per layer"
    sizes = ((layer.num_bytes(fate), fate) for fate in FATES)
    parts = [f"{size / MIB:.1f} MiB {fate}" for size, fate in sizes if size]
    return f"{words}; {', '.join(parts)}"


def _draw_bytes(axes: "Axes", layer: DrawnLayer) -> None:
    places = range(len(layer.operators))
    sizes = (
        (look, [operator.num_bytes(fate) / MIB for operator in layer.operators])
        for fate, look in FATES.items()
    )
    ends = kit.stacked_bars(axes, sizes)
    for place, operator in zip(places, layer.operators, strict=True):
        look = {"xycoords": ("axes fraction", "data"), "xytext": (5, 0), "fontsize": 6.5}
        kit.note(axes, _tensor_names(operator), (1, place), **look)
    axes.set_yticks(places, [operator.name for operator in layer.operators], fontsize=8)
    axes.set_ylim(len(places) - 0.4, -0.6)
    _finish(axes, max(ends), "MiB needed by the backward, per microbatch (right: each tensor)")


def _tensor_names(operator: DrawnOperator) -> str:
    """The largest first; what has no room is counted."""
    found = sorted(operator.tensors, key=lambda tensor: -tensor.num_bytes)
    named = [f"{one.name} {one.num_bytes / MIB:.0f}" for one in found if one.num_bytes >= _NAMED]
    words = ""
    for number, name in enumerate(named):
        longer = f"{words}, {name}" if words else name
        if len(longer) > _LONGEST and words:
            return f"{words}, +{len(named) - number}"
        words = longer
    return words


def _draw_times(axes: "Axes", layer: DrawnLayer) -> None:
    """Milliseconds, one after the other."""
    ways = ("forward", kit.FORWARD), ("backward", kit.BACKWARD), ("replay", kit.REPLAY)
    times = (
        (look, [1e3 * getattr(one, f"{name}_seconds") for one in layer.operators])
        for name, look in ways
    )
    ends = kit.stacked_bars(axes, times)
    axes.set_yticks([])
    axes.set_ylim(len(layer.operators) - 0.4, -0.6)
    _finish(axes, max(ends), "ms per microbatch")


def _finish(axes: "Axes", most: float, label: str) -> None:
    axes.set_xlim(0, 1.04 * (most or 1.0))
    axes.set_xlabel(label, fontsize=8, labelpad=2)
    axes.tick_params(axis="x", labelsize=7)
    kit.soften(axes, "x")
