"""What `advise` writes to files: its answer (`-o`), pictures of it, and the step of one row."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.base.errors import UserError
from advisor.base.output_file import check_output_file
from advisor.cli.arguments import OutputFormat, UsageError
from advisor.cli.outcome import STDOUT_IS_CLOSED, Outcome

if TYPE_CHECKING:
    from advisor.answer.answer import Answer
    from advisor.cli.arguments import RankingOptions


def check_output(path: Path | None, output: OutputFormat) -> None:
    """UserError or UsageError where the answer cannot go to `path` (None: stdout), or is a page and
    would go to a terminal."""
    if path is not None:
        check_output_file("-o", path, "job.html")
    elif sys.stdout is None:
        raise UsageError(STDOUT_IS_CLOSED)
    elif output is OutputFormat.HTML and sys.stdout.isatty():
        raise UserError("--format", output, "cannot be shown in a terminal", "add -o FILE.html")


def into_file(outcome: Outcome, path: Path, render: Callable[[], str]) -> Outcome:
    """The outcome, with the text that `render` makes in `path`, whatever the terminal is like;
    UserError where that cannot be written."""
    with redirect_stdout(StringIO()):
        text = render()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError("-o", path, f"cannot be written: {error.strerror}") from None
    return outcome._replace(talk=(*outcome.talk, f"advise: wrote {path}"))


def check_files(options: "RankingOptions") -> None:
    """UserError where a file cannot be written, or a flag says something of none."""
    if options.plot:
        from advisor.report.figures.plot import check_figure

        check_figure(options.plot)
    elif kind := options.plot_kind:
        raise UserError("--plot-kind", kind, "needs --plot FILE", "add e.g. --plot out.svg")
    if options.trace:
        from advisor.report.exports.chrome_trace import SUFFIXES

        _check_path("--trace", options.trace, SUFFIXES)
    if options.memory_snapshot:
        _check_path("--memory-snapshot", options.memory_snapshot, (".pickle",))
    _check_each_has_its_own(options)
    if options.row is not None and not (options.trace or options.memory_snapshot):
        from advisor.report.figures.plot import OF_ONE_ROW

        if options.plot_kind not in OF_ONE_ROW:
            nearest = "add e.g. --plot out.svg --plot-kind timeline, or --trace step.json"
            raise UserError("--row", options.row, "needs a file that shows one row", nearest)


def _check_path(flag: str, path: Path, suffixes: tuple[str, ...]) -> None:
    if not path.name.lower().endswith(suffixes):
        raise UserError(flag, path, f"must end in {' or '.join(suffixes)}")
    check_output_file(flag, path, f"step{suffixes[0]}")


def _check_each_has_its_own(options: "RankingOptions") -> None:
    flags: dict[Path, str] = {}
    paths = (options.written, options.plot, options.trace, options.memory_snapshot)
    for flag, path in zip(("-o", "--plot", "--trace", "--memory-snapshot"), paths, strict=True):
        if path is not None and (first := flags.setdefault(path.resolve(), flag)) != flag:
            raise UserError(flag, path, f"must not be the file of {first}", "name another file")


def write_files(advice: "Answer", options: "RankingOptions") -> tuple[str, ...]:
    """Write them; a line for each."""
    from advisor.api.answering import check_rank

    check_rank(advice, options.row, "--row")
    written = []
    if options.plot:
        from advisor.report.figures.plot import write_figure

        write_figure(advice, options.plot, options.plot_kind, top=options.top, row=options.row)
        written.append(f"advise: wrote {options.plot}")
    if options.trace or options.memory_snapshot:
        files = options.trace, options.memory_snapshot
        written += write_exports(advice, options.row, *files, options.arguments)
    return tuple(written)


def write_exports(
    advice: "Answer",
    rank: int | None,
    trace: Path | None,
    snapshot: Path | None,
    words: tuple[str, ...],
) -> list[str]:
    """Write the step of the row of a rank, or of the choice, as a trace and a snapshot of memory; a
    line for each. words: the command line. UserError where every setting is rejected."""
    if not advice.candidates:
        flag, path = ("--trace", trace) if trace else ("--memory-snapshot", snapshot)
        raise UserError(flag, path, "there is nothing to write: every setting is rejected")
    from advisor.report.exports.export_origin import origin_of
    from advisor.report.wording import row_of

    row = row_of(advice, rank)
    origin = origin_of(advice, row, words)
    written = []
    if trace:
        from advisor.report.exports.chrome_trace import write_trace

        write_trace(row, trace, origin)
        written.append(f"advise: wrote {trace}: open it at ui.perfetto.dev or chrome://tracing")
    if snapshot:
        from advisor.report.exports.torch_snapshot import write_snapshot

        detail = write_snapshot(row, snapshot, origin)
        written.append(f"advise: wrote {snapshot}: open it at pytorch.org/memory_viz; {detail}")
    return written
