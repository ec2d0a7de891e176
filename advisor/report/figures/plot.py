"""`--plot FILE --plot-kind KIND`: which picture is drawn, and of which row.

matplotlib (extra `report`) is imported when a picture is asked for, never before.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.answer.answer import Answer
from advisor.base.errors import UserError, missing_package
from advisor.report.figures.kit import save, styled
from advisor.report.wording import row_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg", ".pdf")
OF_ONE_ROW: Final = ("waterfall", "stages", "timeline", "layer")
"""Kinds of pictures."""


def check_figure(path: Path, flag: str = "--plot") -> None:
    """UserError where `path` cannot become a picture or matplotlib is missing."""
    from importlib.util import find_spec

    from advisor.base.output_file import check_output_file

    if path.suffix.lower() not in SUFFIXES:
        hint = f"end the name in {', '.join(SUFFIXES)}"
        raise UserError(flag, path, "must name a picture file", hint)
    check_output_file(flag, path, "memory.svg")
    if find_spec("matplotlib") is None:
        raise missing_package(f"{flag} {path}", "matplotlib", "report")


def write_figure(
    advice: Answer,
    path: Path,
    kind: str | None = None,
    *,
    top: int | None = None,
    row: int | None = None,
) -> None:
    """Draw `advice` into `path`, whose suffix gives the format. Kinds of all rows draw the `top`
    best (those that a picture has room for), the others one `row` by its rank, the choice where it
    is None."""
    check_figure(path)
    if not advice.candidates:
        raise UserError("--plot", path, "nothing to draw: every setting is rejected")
    with styled("advise"):
        save(_drawn(advice, kind or "ranking", top, row), path)


def _drawn(advice: Answer, kind: str, top: int | None, rank: int | None) -> "Figure":
    """Each kind's module is imported when it is drawn."""
    if kind not in OF_ONE_ROW:
        from advisor.report.figures import rows_figures

        if kind == "pareto":
            return rows_figures.pareto_figure(advice)
        draw = rows_figures.time_figure if kind == "time" else rows_figures.ranking_figure
        return draw(advice, top)
    row = row_of(advice, rank)
    if kind == "timeline":
        from advisor.report.figures.timeline_figure import timeline_figure

        return timeline_figure(advice, row)
    if kind == "layer":
        from advisor.report.figures.layer_figure import layer_figure

        return layer_figure(advice, row)
    from advisor.report.figures import memory_figures as memory

    return (memory.stages_figure if kind == "stages" else memory.waterfall_figure)(advice, row)
