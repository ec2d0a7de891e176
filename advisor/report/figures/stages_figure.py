"""`--plot-kind stages`: memory of a rank of every pipeline stage by component, and the budget."""

from typing import TYPE_CHECKING

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.units import GIB
from advisor.report.figures.palette import (
    COMPONENT_LOOKS,
    draw_budget,
    legend_patches,
    row_title,
)
from advisor.report.wording import gib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def stages_figure(advice: Answer, row: RankedEvaluation) -> "Figure":
    """One stacked bar a stage at its peak, its total and microbatches in flight beside it; the
    worst stage in bold."""
    from matplotlib.figure import Figure

    evaluation = row.evaluation
    stages, worst = evaluation.stages, evaluation.peak
    figure = Figure(figsize=(10, max(3.0, 2.0 + 0.34 * len(stages))), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(row_title(advice, row), fontsize=11)
    places, start = list(range(len(stages))), [0.0] * len(stages)
    for component, look in COMPONENT_LOOKS.items():
        sizes = [getattr(stage.memory_bytes, component) / GIB for stage in stages]
        axes.barh(places, sizes, left=start, height=0.7, **look.fill)
        start = [before + size for before, size in zip(start, sizes, strict=True)]
    draw_budget(axes, evaluation.budget_bytes)
    edge = max(*start, evaluation.budget_bytes / GIB)
    for place, stage in zip(places, stages, strict=True):
        words = (
            f"{gib(stage.peak_reserved_bytes)} GiB, {stage.in_flight_microbatches:.3g} in flight"
        )
        axes.text(
            edge * 1.015,
            place,
            words,
            fontsize=8,
            verticalalignment="center",
            fontweight="bold" if stage is worst else "normal",
        )
    axes.set_yticks(places, [f"stage {stage.stage}" for stage in stages])
    for tick, stage in zip(axes.get_yticklabels(), stages, strict=True):
        tick.set_fontweight("bold" if stage is worst else "normal")
    axes.invert_yaxis()
    axes.set_xlim(0, edge * 1.3)
    axes.set_xlabel("reserved memory of a rank at its peak (GiB), and microbatches in flight")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    handles = [*legend_patches(list(COMPONENT_LOOKS.values())), *axes.lines]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure
