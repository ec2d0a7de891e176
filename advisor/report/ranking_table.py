"""The ranking as a table: one row a candidate, with a memory bar as wide as the page allows."""

from collections.abc import Sequence

from advisor.answer import Candidate
from advisor.report.text import Column, Screen, Style, bar, break_spec, table_lines
from advisor.report.wording import gib, percent, seconds
from advisor.units import signed_percent

_BAR_CELLS = 16
_SMALLEST_BAR = 4
_SPEC_WIDTHS = (36, 28, 22, 18, 14)  # tried in this order until the table fits
_INDENT, _GAP = 1, 2


def ranking_lines(
    shown: Sequence[Candidate], screen: Screen, *, search_layout: bool = False
) -> list[str]:
    """Head and rows within `screen.width`; the layout's columns where layouts are ranked too."""
    layouts = search_layout or len({c.evaluation.job for c in shown}) > 1
    for spec_width in _SPEC_WIDTHS:
        columns, rows = _table(shown, layouts, spec_width)
        spare = screen.width - max(map(len, table_lines(columns, rows, indent=_INDENT, gap=_GAP)))
        if spare >= 0:
            break
    _append_bars(rows, _peak_column(columns), shown, spare)
    head, *lines = table_lines(columns, rows, indent=_INDENT, gap=_GAP)
    heights = [max(cell.count("\n") + 1 for cell in row) for row in rows]
    styles = [_style(c) for c, height in zip(shown, heights, strict=True) for _ in range(height)]
    return [head, *(screen.paint(x, s) for x, s in zip(lines, styles, strict=True))]


def _table(
    shown: Sequence[Candidate], layouts: bool, spec_width: int
) -> tuple[list[Column], list[list[str]]]:
    """Columns and cells without bars."""
    smallest = min(c.evaluation.step_time_seconds for c in shown)
    columns = [
        Column(title=""),
        Column(title="recompute", left=True),
        Column(title="GiB (stage)" if layouts else "peak GiB (stage)", left=True),
        Column(title="step s"),
        Column(title="TFLOP/s" if layouts else "TFLOP/s/GPU"),
        Column(title="overhead"),
        Column(title="fits"),
    ]
    rows = [_row(candidate, spec_width, smallest) for candidate in shown]
    if layouts:
        title, *cells = _layout_cells(shown)
        columns.insert(1, Column(title=title, left=True))
        for row, cell in zip(rows, cells, strict=True):
            row.insert(1, cell)
    return columns, rows


def _row(candidate: Candidate, spec_width: int, smallest: float) -> list[str]:
    evaluation = candidate.evaluation
    peak = evaluation.peak
    return [
        str(candidate.rank),
        break_spec(evaluation.setting.spec, spec_width),
        f"{gib(peak.peak_reserved_bytes):>5} ({peak.stage})",
        seconds(evaluation.step_time_seconds, smallest),
        f"{evaluation.tflops_per_gpu:.0f}",
        signed_percent(evaluation.recompute_overhead),
        percent(evaluation.fit_probability),
    ]


def _layout_cells(shown: Sequence[Candidate]) -> list[str]:
    """Head and one cell a row: the degrees in narrow columns of their own, CP where it varies."""
    titles = ["TP", "CP", "PP", "VPP", "DP", "mbs"]
    table = [titles, *(_degrees(candidate) for candidate in shown)]
    if all(row[1] == "1" for row in table[1:]):
        table = [row[:1] + row[2:] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [" ".join(map(str.rjust, row, widths)) for row in table]


def _degrees(candidate: Candidate) -> list[str]:
    job = candidate.evaluation.job
    layout = job.layout
    degrees = (
        layout.tensor_model_parallel_size,
        layout.context_parallel_size,
        layout.pipeline_model_parallel_size,
        layout.virtual_pipeline_model_parallel_size,
        layout.data_parallel_size,
        job.config.micro_batch_size,
    )
    tp, *others = map(str, degrees)
    return [f"{tp}+SP" if layout.sequence_parallel else tp, *others]


def _peak_column(columns: Sequence[Column]) -> int:
    return next(i for i, column in enumerate(columns) if "GiB" in column.title)


def _append_bars(
    rows: Sequence[list[str]], at: int, shown: Sequence[Candidate], spare: int
) -> None:
    """A bar behind each peak, as wide as `spare` columns allow; none where they are too few."""
    figures = max(len(row[at]) for row in rows) + 1
    cells = min(_BAR_CELLS, spare + _GAP - len("▶") - 1)
    if cells < _SMALLEST_BAR:
        return
    for row, candidate in zip(rows, shown, strict=True):
        evaluation = candidate.evaluation
        drawn = bar(evaluation.peak.peak_reserved_bytes, evaluation.budget_bytes, cells)
        row[at] = f"{row[at]:<{figures}}{drawn}"


def _style(candidate: Candidate) -> Style | None:
    if not candidate.evaluation.fits:
        return Style.CAUTION
    if candidate.rank == 1:
        return Style.BOLD
    return None if candidate.pareto else Style.DIM
