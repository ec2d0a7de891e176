"""`--solve … --plot FILE` and several GPUs: memory, step time and cost of each value."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.answer.advice import Candidate
from advisor.answer.solution import Solution
from advisor.base.errors import UserError
from advisor.base.units import GIB, amount
from advisor.report.figures import kit
from advisor.report.figures.plot import check_figure
from advisor.report.solution_page import TITLES, value_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FITS, _OVER = kit.Look("fits", kit.BLUE), kit.Look("does not fit", kit.VERMILION, "///")
_MARGIN, _TICKS = 0.18, 4
_BEHIND: Final = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
"""Of a number, where the line of the budget may run."""


def write_solution_figure(solution: Solution, path: Path) -> None:
    """Draw the values that fit and the first that does not; UserError where there is none."""
    check_figure(path)
    shown = {
        value_words(one, solution.quantity): one.best
        for one in solution.trials
        if one.best and (one.fits or one == solution.next_harder or solution.best is None)
    }
    if not shown:
        raise UserError("--plot", path, "nothing to draw: every value is refused")
    with kit.styled("solve"):
        kit.save(_figure(solution, shown), path)


def _figure(solution: Solution, shown: dict[str, Candidate]) -> "Figure":
    from matplotlib.figure import Figure

    rows = [*shown.values()]
    costs = [one.price_per_trillion_tokens for one in rows]
    priced = None not in costs
    columns: dict[str, list[float]] = {
        "GiB reserved on the worst rank": [one.peak_reserved_bytes / GIB for one in rows],
        "step time (s)": [one.step_time_seconds for one in rows],
        f"{'cost' if priced else 'GPU-hours'} of 10^12 tokens": [
            (one.price_per_trillion_tokens if priced else one.gpu_hours_per_trillion_tokens) or 0.0
            for one in rows
        ],
    }
    figure = Figure(figsize=(kit.WIDE, 1.8 + 0.34 * len(rows)), layout="constrained")
    figure.suptitle(solution.verdict.partition(". ")[0], fontsize=11, x=0.01, ha="left")
    figure.subplots(1, len(columns), sharey=True)
    for axes, (title, sizes) in zip(figure.axes, columns.items(), strict=True):
        axes.set_xlabel(title)
        for place, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            axes.barh(place, size, height=0.7, **(_FITS if row.fits else _OVER).fill)
            kit.note(axes, amount(size), (size, place), bbox=_BEHIND)
        axes.margins(x=_MARGIN)
        axes.locator_params(axis="x", nbins=_TICKS)
        axes.xaxis.set_major_formatter(lambda value, _: amount(value))
        kit.soften(axes, "x")
    first = figure.axes[0]
    first.set_yticks(range(len(rows)), shown)
    first.set_ylim(len(rows) - 0.5, -0.5)
    first.set_ylabel(TITLES[solution.quantity])
    best = solution.best.best if solution.best else None
    kit.bold_tick(first, [row == best for row in rows])
    if len({one.budget_bytes for one in rows}) == 1:
        kit.draw_budget(first, rows[0].budget_bytes)
    looks = [look for look in (_FITS, _OVER) if look is _FITS or not all(one.fits for one in rows)]
    handles = [*kit.legend_patches(looks), *first.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    return figure
