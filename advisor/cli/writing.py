"""What `advise` writes beside its answer: pictures, and the step of one row."""

from pathlib import Path
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
    if options.trace:
        from advisor.report.exports.chrome_trace import SUFFIXES

        _check_path("--trace", options.trace, SUFFIXES)
    if options.memory_snapshot:
        _check_path("--memory-snapshot", options.memory_snapshot, (".pickle",))
    if options.row is not None and not _shows_a_row(options):
        raise UserError("--row", options.row, "needs a file of one row", _OF_ONE_ROW)


_OF_ONE_ROW = "add e.g. --plot out.svg --plot-kind timeline, or --trace step.json"


def _shows_a_row(options: "Options") -> bool:
    from advisor.report.figures.plot import OF_ONE_ROW

    return bool(options.trace or options.memory_snapshot or options.plot_kind in OF_ONE_ROW)


def _check_path(flag: str, path: Path, suffixes: tuple[str, ...]) -> None:
    if not path.name.lower().endswith(suffixes):
        raise UserError(flag, path, "has another ending", f"end it in {' or '.join(suffixes)}")
    if not path.resolve().parent.is_dir():
        raise UserError(flag, path, f"there is no folder {path.parent}")


def write_files(advice: "Answer", options: "Options") -> tuple[str, ...]:
    """Write them; a line for each."""
    from advisor.api.answering import check_rank

    check_rank(advice, options.row, "--row")
    written = []
    if options.plot:
        from advisor.report.figures.plot import write_figure

        write_figure(advice, options.plot, options.plot_kind, top=options.top, row=options.row)
        written.append(f"advise: wrote {options.plot}")
    if options.trace or options.memory_snapshot:
        from advisor.report.exports.row_exports import write_exports

        written += write_exports(
            advice, options.row, options.trace, options.memory_snapshot, options.arguments
        )
    return tuple(written)
