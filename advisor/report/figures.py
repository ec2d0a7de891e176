"""`--plot FILE`: memory against step time, and memory by component beside the budget; or the front.

Colours are Okabe and Ito's, which colour-blind readers tell apart; marks differ in shape as well.
matplotlib (extra `report`) is imported when a picture is asked for, never before.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.errors import UserError, missing_package
from advisor.base.units import GIB, human_count
from advisor.report.breaking import spec_lines
from advisor.report.explain_page import COMPONENTS
from advisor.report.job_changes import LayoutColumns
from advisor.report.wording import chosen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg", ".pdf")
MAX_CANDIDATES: Final = 24
_LABEL_WIDTH: Final = 30  # characters
_BLUE, _VERMILION, _GREY = "#0072B2", "#D55E00", "#666666"
_COMPONENT_COLOURS: Final = dict(
    zip(
        COMPONENTS,
        ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7"),
        strict=True,
    )
)
_COMPONENT_HATCHES: Final = dict(zip(COMPONENTS, ("", "///", "", "", "...", "\\\\\\"), strict=True))


def check_figure(path: Path) -> None:
    """UserError where `path` cannot become a picture or matplotlib is missing."""
    from importlib.util import find_spec

    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            "--plot", path, "must name a picture file", f"end the name in {', '.join(SUFFIXES)}"
        )
    if not path.resolve().parent.is_dir():
        raise UserError("--plot", path, f"there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise missing_package(f"--plot {path}", "matplotlib", "report")


def write_figure(
    advice: Answer, path: Path, kind: str | None = None, *, top: int | None = None
) -> None:
    """Draw `advice` into `path`, whose suffix gives the format: the `top` best candidates (24 at
    most), or all with their front where `kind` is ``front``."""
    check_figure(path)
    import matplotlib as mpl

    if not advice.candidates:
        raise UserError("--plot", path, "nothing to draw: every setting is rejected")
    # Text stays text, and the same answer gives the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "advise", "font.size": 9}):
        if kind == "front":
            from advisor.report.front_figure import front_figure

            figure = front_figure(advice, _title(advice))
        else:
            figure = _ranking(advice, top)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata)


def _ranking(advice: Answer, top: int | None) -> "Figure":
    from matplotlib.figure import Figure

    shown = advice.candidates[: min(top or MAX_CANDIDATES, MAX_CANDIDATES)]
    labels = [_label(candidate, shown) for candidate in shown]
    num_lines = sum(label.count("\n") + 1.6 for label in labels)
    figure = Figure(figsize=(12, max(4.6, 1.8 + 0.19 * num_lines)), layout="constrained")
    scatter, bars = figure.subplots(1, 2, width_ratios=(5, 6))
    figure.suptitle(_title(advice), fontsize=11)
    draw_pareto(scatter, shown)
    draw_components(bars, shown, labels, chosen(advice))
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower right", ncols=7, fontsize=8)
    return figure


def _title(advice: Answer) -> str:
    from advisor.layers.parameters import parameter_count

    job = advice.job
    return (
        f"{job.model.name} ({human_count(parameter_count(job.model).total)} parameters), "
        f"{job.num_gpus} x {job.gpu.name}, {job.config.precision}, "
        f"sequence {job.config.seq_length}, global batch {job.config.global_batch_size}"
    )


def draw_pareto(axes: "Axes", shown: Sequence[RankedEvaluation]) -> None:
    """Peak memory (GiB) against step time (s); numbers are ranks, the line joins the Pareto set."""
    front = sorted((_point(c) for c in shown if c.pareto), key=lambda point: point[0])
    axes.plot(
        [x for x, _ in front],
        [y for _, y in front],
        color=_GREY,
        linewidth=1,
        zorder=1,
        label="not beaten in both",
    )
    for fits, marker, colour in ((True, "o", _BLUE), (False, "X", _VERMILION)):
        points = [_point(c) for c in shown if c.evaluation.fits is fits]
        if points:
            label = "fits" if fits else "does not fit"
            x, y = zip(*points, strict=True)
            axes.scatter(
                x,
                y,
                s=42,
                marker=marker,
                color=colour,
                edgecolors="white",
                linewidths=0.6,
                zorder=2,
                label=label,
            )
    for point, ranks in _ranks_at(shown).items():
        text = ", ".join(str(rank) for rank in ranks)
        axes.annotate(text, point, xytext=(5, 5), textcoords="offset points", fontsize=8)
    _draw_budget(axes, shown)
    axes.set(xlabel="peak reserved memory of the worst rank (GiB)", ylabel="step time (s)")
    axes.set_title("Step time (s) against peak memory (GiB), by rank")
    axes.margins(0.1)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)


def draw_components(
    axes: "Axes",
    shown: Sequence[RankedEvaluation],
    labels: Sequence[str],
    best: RankedEvaluation | None,
) -> None:
    """One stacked bar a candidate, GiB of its worst rank by component, and the budget."""
    places = list(range(len(shown)))
    start = [0.0] * len(shown)
    for component in COMPONENTS:
        sizes = [getattr(c.evaluation.peak.memory_bytes, component) / GIB for c in shown]
        axes.barh(
            places,
            sizes,
            left=start,
            label=component,
            height=0.72,
            color=_COMPONENT_COLOURS[component],
            hatch=_COMPONENT_HATCHES[component],
            edgecolor="white",
            linewidth=0.4,
        )
        start = [before + size for before, size in zip(start, sizes, strict=True)]
    axes.set_yticks(places, labels, fontsize=8)
    for tick, candidate in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_fontweight("bold" if candidate is best else "normal")
    axes.invert_yaxis()
    _draw_budget(axes, shown)
    axes.set_xlabel("memory of the worst rank at its peak (GiB)")
    axes.set_title("Peak memory by component (GiB)")


def _draw_budget(axes: "Axes", shown: Sequence[RankedEvaluation]) -> None:
    budget = shown[0].evaluation.budget_bytes / GIB
    axes.axvline(
        budget, color="black", linestyle="--", linewidth=1.2, label=f"budget {budget:.1f} GiB"
    )


def _point(candidate: RankedEvaluation) -> tuple[float, float]:
    evaluation = candidate.evaluation
    return evaluation.peak_reserved_bytes / GIB, evaluation.step_time_seconds


def _ranks_at(shown: Sequence[RankedEvaluation]) -> dict[tuple[float, float], list[int]]:
    """Ranks by point, so that settings that come to the same share one label."""
    ranks: dict[tuple[float, float], list[int]] = {}
    for candidate in shown:
        ranks.setdefault(_point(candidate), []).append(candidate.rank)
    return ranks


def _label(candidate: RankedEvaluation, shown: Sequence[RankedEvaluation]) -> str:
    """Rank and setting, and the layout where the candidates differ in it."""
    evaluation = candidate.evaluation
    spec = "\n".join(spec_lines(evaluation.setting.spec, _LABEL_WIDTH))
    label = f"{candidate.rank}  {spec}"
    if all(other.evaluation.job == evaluation.job for other in shown):
        return label
    columns = LayoutColumns([one.evaluation.job for one in shown], shown[0].evaluation.job)
    cells = zip(columns.titles, columns.cells(evaluation.job), strict=True)
    return f"{label}\n{' '.join(f'{title} {cell}' for title, cell in cells)}"
