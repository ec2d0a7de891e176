"""`--plot-kind waterfall` and `stages`: memory of one row by component, from no recompute to its
own setting on the worst rank, and of a rank of every pipeline stage.
"""

from typing import TYPE_CHECKING, Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.base.units import GIB
from advisor.frameworks.registry import parts_of
from advisor.plan.recompute_plan import recomputes
from advisor.report.blocks import spec_lines
from advisor.report.figures import kit
from advisor.report.figures.titles import row_title
from advisor.report.wording import gib
from advisor.search.evaluate import Evaluator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN: Final = GIB // 20
"""A smaller change is not shown."""
_THIN: Final = 0.01
"""A change of a smaller share of the budget is drawn as a line, which a bar would hide in."""
_WIDE: Final = 0.62


def waterfall_figure(advice: Answer, row: RankedEvaluation) -> "Figure":
    """`none` on the row's layout, the changes, the row; of `none` itself, its components one by
    one. GiB of the rank that reserves most."""
    from matplotlib.figure import Figure

    evaluation = row.evaluation
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(row_title(advice, row), fontsize=11)
    if recomputes(evaluation.setting):
        _draw_changes(axes, without_recompute(advice, evaluation), evaluation)
    else:
        _draw_parts(axes, evaluation)
    kit.draw_budget(axes, evaluation.budget_bytes, horizontal=True)
    axes.set_ylabel(f"reserved memory of the worst rank{_where(evaluation)} (GiB)")
    axes.set_ylim(0, 1.1 * axes.dataLim.y1)
    kit.soften(axes, "y")
    handles = [*kit.legend_patches(kit.COMPONENT_LOOKS.values()), axes.lines[-1]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def without_recompute(advice: Answer, evaluation: Evaluation) -> Evaluation:
    """`none` on the same job: a row of the answer, or evaluated."""
    for row in advice.candidates:
        one = row.evaluation
        if one.job == evaluation.job and not recomputes(one.setting):
            return one.simulated
    none = parts_of(evaluation.job.config.framework).settings.none
    return Evaluator(evaluation.job, evaluation.calibration).evaluate(none).simulated


def _where(evaluation: Evaluation) -> str:
    return " in the update" * bool(evaluation.phases)


def _draw_changes(axes: "Axes", none: Evaluation, evaluation: Evaluation) -> None:
    names = [f"none\nstage {none.peak.stage}"]
    level = _draw_stack(axes, 0, none)
    for component, look in kit.COMPONENT_LOOKS.items():
        change = getattr(evaluation.peak.memory_bytes, component)
        change -= getattr(none.peak.memory_bytes, component)
        if abs(change) < _SHOWN:
            level += change / GIB
            continue
        place = len(names)
        axes.bar(place, change / GIB, bottom=level, width=_WIDE, **look.fill)
        if abs(change) < _THIN * evaluation.budget_bytes:
            axes.hlines(level, place - _WIDE / 2, place + _WIDE / 2, look.colour, linewidth=2.5)
        _join(axes, place - 1, level)
        _label(axes, place, max(level, level + change / GIB), f"{change / GIB:+.1f}")
        level += change / GIB
        names.append(component)
    spec = "\n".join(spec_lines(evaluation.setting.spec, 22))
    _join(axes, len(names) - 1, level)
    _draw_stack(axes, len(names), evaluation)
    names.append(f"{spec}\nstage {evaluation.peak.stage}")
    axes.set_xticks(range(len(names)), names)


def _draw_parts(axes: "Axes", evaluation: Evaluation) -> None:
    """What the whole is made of, one on top of the other."""
    level = 0.0
    names: list[str] = []
    for component, look in kit.COMPONENT_LOOKS.items():
        size = getattr(evaluation.peak.memory_bytes, component) / GIB
        axes.bar(len(names), size, bottom=level, width=_WIDE, **look.fill)
        _label(axes, len(names), level + size, f"{size:.1f}")
        level += size
        _join(axes, len(names), level)
        names.append(component)
    _draw_stack(axes, len(names), evaluation)
    names.append(f"{evaluation.setting.spec}\nstage {evaluation.peak.stage}")
    axes.set_xticks(range(len(names)), names)


def _draw_stack(axes: "Axes", place: int, evaluation: Evaluation) -> float:
    """The components of one evaluation in a bar; where it ends."""
    level = 0.0
    for component, look in kit.COMPONENT_LOOKS.items():
        size = getattr(evaluation.peak.memory_bytes, component) / GIB
        axes.bar(place, size, bottom=level, width=_WIDE, **look.fill)
        level += size
    _label(axes, place, level, f"{gib(evaluation.peak.peak_reserved_bytes)} GiB")
    return level


def _join(axes: "Axes", place: int, level: float) -> None:
    """A line from a bar to the next."""
    axes.plot(
        [place + _WIDE / 2, place + 1 - _WIDE / 2], [level] * 2, color=kit.GREY, linewidth=0.8
    )


def _label(axes: "Axes", place: int, level: float, text: str) -> None:
    axes.annotate(
        text,
        (place, level),
        xytext=(0, 3),
        textcoords="offset points",
        horizontalalignment="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def stages_figure(advice: Answer, row: RankedEvaluation) -> "Figure":
    """One stacked bar a stage at its peak, its total and microbatches in flight next to it; the
    worst stage in bold."""
    from matplotlib.figure import Figure

    evaluation = row.evaluation
    stages, worst = evaluation.stages, evaluation.peak
    figure = Figure(figsize=(10, max(3.0, 2.0 + 0.34 * len(stages))), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(row_title(advice, row), fontsize=11)
    ends = kit.stacked_bars(
        axes, kit.memory_parts([one.memory_bytes for one in stages]), height=0.7
    )
    kit.draw_budget(axes, evaluation.budget_bytes)
    edge = max(*ends, evaluation.budget_bytes / GIB)
    for place, stage in enumerate(stages):
        size = gib(stage.peak_reserved_bytes)
        axes.text(
            edge * 1.015,
            place,
            f"{size} GiB, {stage.in_flight_microbatches:.3g} in flight",
            fontsize=8,
            verticalalignment="center",
            fontweight="bold" if stage is worst else "normal",
        )
    axes.set_yticks(range(len(stages)), [f"stage {stage.stage}" for stage in stages])
    kit.bold_tick(axes, (stage is worst for stage in stages))
    axes.invert_yaxis()
    axes.set_xlim(0, edge * 1.3)
    words = f"of a rank at its peak{_where(evaluation)} (GiB), and microbatches in flight"
    axes.set_xlabel(f"reserved memory {words}")
    kit.soften(axes, "x")
    handles = [*kit.legend_patches(kit.COMPONENT_LOOKS.values()), *axes.lines]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure
