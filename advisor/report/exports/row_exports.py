"""Which files of one row are written for other tools."""

from pathlib import Path

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.report.exports.export_origin import origin_of
from advisor.report.wording import row_of


def write_exports(
    advice: Answer,
    rank: int | None,
    trace: Path | None,
    snapshot: Path | None,
    words: tuple[str, ...],
) -> list[str]:
    """Write the step of the row of a rank, or of the choice, as a trace and as a snapshot of
    memory; a line for each. words: the command line of `advise`.

    UserError where every setting is rejected.
    """
    if not advice.candidates:
        flag, path = ("--trace", trace) if trace else ("--memory-snapshot", snapshot)
        raise UserError(flag, path, "there is nothing to write: every setting is rejected")
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
