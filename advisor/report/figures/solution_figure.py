"""`--solve … --plot FILE` and several GPUs: memory, step time and cost of each value."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.answer.solution import Solution, Trial
from advisor.base.errors import UserError
from advisor.base.units import GIB, amount
from advisor.report.figures import kit
from advisor.report.figures.plot import check_figure
from advisor.report.solution_page import TITLES, value_words
from advisor.report.wording import gib, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FITS, _OVER = kit.Look("fits", kit.BLUE), kit.Look("does not fit", kit.VERMILION, "///")


def write_solution_figure(solution: Solution, path: Path) -> None:
    """Draw the values that fit and the one that does not; UserError where there is none."""
    check_figure(path)
    shown = [
        one
        for one in solution.trials
        if not one.refused and (one.fits or one == solution.next_harder or solution.best is None)
    ]
    if not shown:
        raise UserError("--plot", path, "nothing to draw: every value is refused")
    with kit.styled("solve"):
        kit.save(_figure(solution, shown), path)


def _figure(solution: Solution, shown: Sequence[Trial]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(kit.WIDE, 1.8 + 0.34 * len(shown)), layout="constrained")
    figure.suptitle(solution.verdict.partition(". ")[0], fontsize=11, x=0.01, ha="left")
    memory, time, cost = figure.subplots(1, 3, sharey=True)
    names = [value_words(one, solution.quantity) for one in shown]
    memory.set_yticks(range(len(shown)), names)
    memory.set_ylim(len(shown) - 0.5, -0.5)
    kit.bold_tick(memory, [one == solution.best for one in shown])
    memory.set_ylabel(TITLES[solution.quantity])
    sizes = [(one.peak_reserved_bytes or 0) / GIB for one in shown]
    _bars(memory, shown, sizes, [gib(one.peak_reserved_bytes or 0) for one in shown])
    memory.set_xlabel("GiB reserved on the worst rank")
    budgets = {one.budget_bytes for one in shown}
    if len(budgets) == 1:
        kit.draw_budget(memory, budgets.pop() or 0)
    steps = [one.step_time_seconds or 0.0 for one in shown]
    _bars(time, shown, steps, [seconds(one, min(steps)) for one in steps])
    time.set_xlabel("step time (s)")
    priced = all(one.price_per_trillion_tokens is not None for one in shown)
    costs = [
        (one.price_per_trillion_tokens if priced else one.gpu_hours_per_trillion_tokens) or 0.0
        for one in shown
    ]
    _bars(cost, shown, costs, [amount(one) for one in costs])
    cost.set_xlabel(f"{'cost' if priced else 'GPU-hours'} of 10^12 tokens")
    figure.legend(
        handles=kit.legend_patches((_FITS, _OVER)), loc="outside lower center", ncols=2, fontsize=8
    )
    return figure


def _bars(axes: "Axes", shown: Sequence[Trial], sizes: list[float], words: list[str]) -> None:
    """A bar for each value, with its number."""
    for place, (one, size, word) in enumerate(zip(shown, sizes, words, strict=True)):
        axes.barh(place, size, height=0.7, **(_FITS if one.fits else _OVER).fill)
        kit.note(axes, word, (size, place))
    axes.margins(x=0.18)
    axes.locator_params(axis="x", nbins=4)
    kit.soften(axes, "x")
