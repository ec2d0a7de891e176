"""Files that are written next to an answer: pictures of it, and the step and memory of one row."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from advisor.api.answering import check_rank
from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.answer.advice import Advice
    from advisor.answer.answer import Answer
    from advisor.request.request import Request


class PlotKind(StrEnum):
    """`--plot-kind`: of the best rows memory and time, memory against time, the step by phase; of
    one row what it saves of `none`, the memory of its stages, its step, its layers."""

    RANKING = "ranking"
    PARETO = "pareto"
    TIME = "time"
    WATERFALL = "waterfall"
    STAGES = "stages"
    TIMELINE = "timeline"
    LAYER = "layer"


class AskedFiles(Struct, frozen=True, kw_only=True):
    """Files that are asked for; `row`: the rank that those of one row show, None the choice;
    `written`: the file of the answer itself, None stdout."""

    plot: Path | None = None
    plot_kind: PlotKind | None = None
    row: int | None = None
    trace: Path | None = None
    memory_snapshot: Path | None = None
    written: Path | None = None

    @property
    def writes_files(self) -> bool:
        """Whether a file is asked for next to the answer, or a flag that says something of one."""
        return any((self.plot, self.plot_kind, self.row, self.trace, self.memory_snapshot))


def check_files(files: AskedFiles) -> None:
    """UserError where a file cannot be written, or a flag says something of none."""
    if files.plot:
        from advisor.report.figures.plot import check_figure

        check_figure(files.plot)
    elif kind := files.plot_kind:
        raise UserError("--plot-kind", kind, "needs --plot FILE", "add e.g. --plot out.svg")
    if files.trace:
        from advisor.report.exports.chrome_trace import SUFFIXES

        check_path("--trace", files.trace, SUFFIXES)
    if files.memory_snapshot:
        check_path("--memory-snapshot", files.memory_snapshot, (".pickle",))
    _check_each_has_its_own(files)
    if files.row is not None and not (files.trace or files.memory_snapshot):
        from advisor.report.figures.plot import OF_ONE_ROW

        if files.plot_kind not in OF_ONE_ROW:
            nearest = "add e.g. --plot out.svg --plot-kind timeline, or --trace step.json"
            raise UserError("--row", files.row, "needs a file that shows one row", nearest)


def check_path(flag: str, path: Path, suffixes: tuple[str, ...]) -> None:
    """UserError where a file with one of these endings cannot be written there."""
    from advisor.base.output_file import check_output_file

    if not path.name.lower().endswith(suffixes):
        raise UserError(flag, path, f"must end in {' or '.join(suffixes)}")
    check_output_file(flag, path, f"step{suffixes[0]}")


def _check_each_has_its_own(files: AskedFiles) -> None:
    flags: dict[Path, str] = {}
    paths = (files.written, files.plot, files.trace, files.memory_snapshot)
    for flag, path in zip(("-o", "--plot", "--trace", "--memory-snapshot"), paths, strict=True):
        if path is not None and (first := flags.setdefault(path.resolve(), flag)) != flag:
            raise UserError(flag, path, f"must not be the file of {first}", "name another file")


def write_files(
    advice: "Answer", files: AskedFiles, asked: str, top: int | None = None
) -> tuple[str, ...]:
    """Write them; a line for each. asked: the command or call that asked for them. UserError where
    there is no such row, or every setting is rejected."""
    check_rank(advice, files.row, "--row")
    written = []
    if files.plot:
        from advisor.report.figures.plot import write_figure

        write_figure(advice, files.plot, files.plot_kind, top=top, row=files.row)
        written.append(f"advise: wrote {files.plot}")
    if not (path := files.trace or files.memory_snapshot):
        return tuple(written)
    if not advice.candidates:
        flag = "--trace" if files.trace else "--memory-snapshot"
        raise UserError(flag, path, "there is nothing to write: every setting is rejected")
    from advisor.report.exports.export_origin import origin_of
    from advisor.report.wording import row_of

    row = row_of(advice, files.row)
    origin = origin_of(advice, row, asked)
    if path := files.trace:
        from advisor.report.exports.chrome_trace import write_trace

        write_trace(row, path, origin)
        written.append(f"advise: wrote {path}: open it at ui.perfetto.dev or chrome://tracing")
    if path := files.memory_snapshot:
        from advisor.report.exports.torch_snapshot import write_snapshot

        detail = write_snapshot(row, path, origin)
        written.append(f"advise: wrote {path}: open it at pytorch.org/memory_viz; {detail}")
    return tuple(written)


def write_answer(
    path: Path, answer: "Answer", advice: "Advice", request: "Request", asked: str
) -> None:
    """Write the answer as the file's ending says: the explorer, JSON or CSV."""
    from advisor.explorer.explorer_data import explorer_page
    from advisor.report.plain_advice import csv_report

    ending = path.suffix.lower()
    text = explorer_page(answer, request, asked) if ending == ".html" else csv_report(advice)
    path.write_text(advice.to_json() if ending == ".json" else text, encoding="utf-8")
