"""What `advise` writes beside its answer: pictures, and the step of one row."""

from typing import TYPE_CHECKING

from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.answer.answer import Answer
    from advisor.cli.arguments import Options


def check_files(options: "Options") -> None:
    """UserError where a file cannot be written, or a flag says something of none."""
    if options.plot:
        from advisor.report.figures.plot import check_figure

        check_figure(options.plot)
    elif options.plot_kind is not None:
        raise UserError(
            "--plot-kind", options.plot_kind, "needs --plot FILE", "add e.g. --plot out.svg"
        )
    if options.row is not None and not _shows_a_row(options):
        raise UserError("--row", options.row, "needs a picture of one row", _PICTURE)


_PICTURE = "add e.g. --plot out.svg --plot-kind timeline"


def _shows_a_row(options: "Options") -> bool:
    from advisor.report.figures.plot import OF_ONE_ROW

    return options.plot_kind in OF_ONE_ROW


def write_files(advice: "Answer", options: "Options") -> tuple[str, ...]:
    """Write them; a line for each."""
    from advisor.api.answering import check_rank

    check_rank(advice, options.row, "--row")
    written = []
    if options.plot:
        from advisor.report.figures.plot import write_figure

        write_figure(advice, options.plot, options.plot_kind, top=options.top, row=options.row)
        written.append(options.plot)
    return tuple(f"advise: wrote {path}" for path in written)
