"""`--solve`, and `--gpus` with several GPUs: many requests answered, and shown as one table."""

import sys
from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError, either
from advisor.cli.arguments import OutputFormat, RankingOptions
from advisor.cli.outcome import FITS, NOTHING_FITS, Outcome

if TYPE_CHECKING:
    from advisor.answer.solution import Solution, Trial

_FORMATS: Final = (OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.CSV)
_OF_ONE_ANSWER: Final = (
    *("top", "front", "show_rejected", "explain", "verify", "against", "plot_kind", "row", "trace"),
    "memory_snapshot",
)


def solve(options: RankingOptions) -> Outcome:
    """The outcome; UserError where the request is wrong, or asks for what one answer alone has."""
    from advisor.api.asked_files import check_files
    from advisor.api.solutions import compared, solved
    from advisor.cli.writing import check_output, into_file

    request, gpus = options.request, [one.strip() for one in options.request.gpus.split(",")]
    several = f"--solve {options.solve}" if options.solve else "several --gpus"
    wrong = [
        f"--{name.replace('_', '-')}"
        for name in _OF_ONE_ANSWER
        if getattr(options, name) not in (None, False)
    ]
    if options.output not in _FORMATS:
        wrong.append(f"--format {options.output}")
    if options.solve and len(gpus) > 1:
        wrong.append("several --gpus")
    if wrong:
        relation = f"cannot be combined with {several}"
        raise UserError(wrong[0], None, relation, f"it has --format {either(_FORMATS)}, and --plot")
    check_output(options.written, options.output)
    check_files(options)
    if options.solve:
        solution = solved(request, options.solve, options.prices, _tell)
    else:
        solution = compared(request, gpus, options.prices, _tell)
    talk: tuple[str, ...] = ()
    if options.plot is not None:
        from advisor.report.figures.solution_figure import write_solution_figure

        write_solution_figure(solution, options.plot)
        talk = (f"advise: wrote {options.plot}",)
    outcome = Outcome(exit_code=FITS if solution.best else NOTHING_FITS, talk=talk)
    if options.written is not None:
        return into_file(outcome, options.written, lambda: _text(solution, options.output))
    return outcome._replace(text=_text(solution, options.output))


def _tell(trial: "Trial") -> None:
    """A line of the terminal for each value."""
    if sys.stderr.isatty():
        what = "refused" if trial.refused else "fits" if trial.fits else "does not fit"
        print(f"advise: {trial.value:,} on {trial.gpus}: {what}", file=sys.stderr)


def _text(solution: "Solution", output: OutputFormat) -> str:
    from advisor.report.plain_advice import csv_of

    if output is OutputFormat.JSON:
        return solution.to_json()
    if output is OutputFormat.CSV:
        return csv_of(solution.rows())
    from advisor.frameworks.registry import label_of
    from advisor.report.solution_page import solution_page
    from advisor.report.text import on_screen

    return on_screen(solution_page(solution, label_of(solution.framework)))
