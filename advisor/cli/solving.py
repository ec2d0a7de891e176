"""`--solve`, and `--gpus` with several GPUs: many requests answered, and shown as one table."""

import sys
from typing import TYPE_CHECKING

from advisor.api.answering import check_prices
from advisor.base.errors import UserError
from advisor.base.units import either
from advisor.cli.arguments import OutputFormat, RankingOptions
from advisor.cli.outcome import FITS, NOTHING_FITS, Outcome

if TYPE_CHECKING:
    from advisor.answer.solution import Solution
    from advisor.search.inverse import Solved, Tried

_FORMATS = (OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.CSV)
_OF_ONE_ANSWER = (
    *("explain", "verify", "front", "show_rejected", "plot_kind", "against", "row", "trace"),
    *("memory_snapshot", "top"),
)


def solve(options: RankingOptions) -> Outcome:
    """The outcome; UserError where the request is wrong, or asks for what one answer alone has."""
    from advisor.report.solution_page import plain_solution
    from advisor.search import inverse

    gpus = [one.strip() for one in options.request.gpus.split(",")]
    _check(options, len(gpus))
    if options.solve is None:
        solved = inverse.compare(options.request, gpus, _tell)
    else:
        solved = inverse.solve(options.request, options.solve, _tell)
    solution = plain_solution(solved, options.request, options.prices)
    talk = _draw(options, solution)
    outcome = Outcome(exit_code=FITS if solution.best else NOTHING_FITS, talk=talk)
    if options.written is None:
        return outcome._replace(text=_render(options, solution, solved))
    from advisor.cli.writing import into_file

    return into_file(outcome, options.written, lambda: _render(options, solution, solved))


def _check(options: RankingOptions, count: int) -> None:
    check_prices(options.prices, count)
    flag = f"--solve {options.solve}" if options.solve else "several --gpus"
    if options.solve and count > 1:
        raise UserError("--solve", options.solve, "takes one --gpus COUNTxTYPE", "leave one out")
    if options.output not in _FORMATS:
        relation, names = f"cannot be combined with {flag}", either(_FORMATS)
        raise UserError("--format", options.output, relation, f"use --format {names}")
    for name in _OF_ONE_ANSWER:
        if getattr(options, name) not in (None, False):
            relation = f"cannot be combined with {flag}"
            raise UserError(f"--{name.replace('_', '-')}", None, relation, "leave it out")
    from advisor.cli.writing import check_files, check_output

    check_output(options.written, options.output)
    check_files(options)


def _tell(tried: "Tried") -> None:
    """A line of the terminal for each value."""
    if sys.stderr.isatty():
        what = "refused" if tried.refused else "fits" if tried.fits else "does not fit"
        print(f"advise: {tried.value:,} on {tried.request.gpus}: {what}", file=sys.stderr)


def _draw(options: RankingOptions, solution: "Solution") -> tuple[str, ...]:
    if options.plot is None:
        return ()
    from advisor.report.figures.solution_figure import write_solution_figure

    write_solution_figure(solution, options.plot)
    return (f"advise: wrote {options.plot}",)


def _render(options: RankingOptions, solution: "Solution", solved: "Solved") -> str:
    if options.output is OutputFormat.JSON:
        return solution.to_json()
    if options.output is OutputFormat.CSV:
        from advisor.report.plain_advice import csv_of

        return csv_of(solution.rows())
    from advisor.report.solution_page import solution_page
    from advisor.report.text import on_screen

    return on_screen(solution_page(solution, solved))
