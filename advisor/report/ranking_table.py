"""The ranking as a table: one row a candidate, with a memory bar as wide as the page allows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from advisor.answer.answer import RankedEvaluation
from advisor.base.units import percent, signed_percent
from advisor.report.blocks import Block, Column, Line, Span, Table, table
from advisor.report.breaking import spec_cell
from advisor.report.wording import reserved_gib, seconds

if TYPE_CHECKING:
    from advisor.report.job_changes import LayoutColumns

_BAR_CELLS = 16
_SMALLEST_BAR = 4
_GAP = 2
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_MARKS = " ▶"  # beside a bar
_UNBOUNDED = 10_000


class Ranking(Struct, frozen=True):
    """Head and rows in the width at hand; `columns` tell layouts apart where they are ranked,
    `below` has by rank what stands below a row.

    A narrow page does without the bars, then breaks the settings, then leaves columns out.
    """

    shown: Sequence[RankedEvaluation]
    columns: "LayoutColumns | None" = None
    below: Mapping[int, Block] = field(default_factory=dict)

    def lines(self, width: int) -> list[Line]:
        """The table that fits."""
        return self._table(self.bar_cells(width)).lines(width)

    def bar_cells(self, width: int) -> int:
        """Length of a full bar, 0 where there is no room for bars."""
        spare = width - self._table().natural_width(_UNBOUNDED)
        beside = max(len(self._peak_title) - len(_peaks(self.shown)[0]), 0)  # the title's room
        cells = min(_BAR_CELLS, spare + beside - len(_MARKS))
        return cells if cells >= _SMALLEST_BAR else 0

    def widest(self, width: int) -> int:
        """All that there is: the bars take what the other columns leave."""
        return width

    def narrowest(self) -> int:
        """Without the columns that may be left out."""
        return self._table().fitting(0).narrowest()

    @property
    def _peak_title(self) -> str:
        return "GiB (stage)" if self.columns else "peak GiB (stage)"

    def _table(self, bar_cells: int = 0) -> Table:
        """All columns; the bars are `bar_cells` long, or none."""
        columns = [
            Column(title=""),
            Column(title="recompute", left=True, wrap=True),
            Column(title=self._peak_title, left=True),
            Column(title="step s"),
            Column(title="TFLOP/s" if self.columns else "TFLOP/s/GPU", spare=1),
            Column(title="overhead", spare=2),
            Column(title="fits"),
        ]
        rows = self._rows(bar_cells)
        if self.columns:
            title, *cells = _layout_cells(self.shown, self.columns)
            columns.insert(1, Column(title=title, left=True))
            for row, cell in zip(rows, cells, strict=True):
                row.insert(1, cell)
        found = table(columns, gap=_GAP)
        for candidate, row in zip(self.shown, rows, strict=True):
            below = self.below.get(candidate.rank)
            found.add_row(*row, style=_style(candidate), below=below)
        return found

    def _rows(self, bar_cells: int) -> list[list[Block]]:
        smallest = min(c.evaluation.step_time_seconds for c in self.shown)
        rows: list[list[Block]] = []
        for candidate, peak in zip(self.shown, _peaks(self.shown), strict=True):
            evaluation = candidate.evaluation
            share = evaluation.peak_reserved_bytes / evaluation.budget_bytes
            rows.append(
                [
                    f" {candidate.rank}",
                    spec_cell(_spec(candidate)),
                    Gauge(peak, share, bar_cells) if bar_cells else peak,
                    seconds(evaluation.step_time_seconds, smallest),
                    f"{evaluation.tflops_per_gpu:.0f}",
                    signed_percent(evaluation.recompute_overhead),
                    percent(evaluation.fit_probability),
                ]
            )
        return rows


def _spec(candidate: RankedEvaluation) -> str:
    """The setting, marked where it is the preset's own."""
    return candidate.evaluation.setting.spec + " (preset)" * candidate.preset


def _peaks(shown: Sequence[RankedEvaluation]) -> list[str]:
    """``72.4 (0)``: the worst rank's GiB and its stage, as wide as each other; ``~72.4 (0)`` where
    the allocator was not replayed."""
    peaks = [candidate.evaluation.peak for candidate in shown]
    sizes = [reserved_gib(candidate.evaluation) for candidate in shown]
    widest = max(map(len, sizes))
    cells = [f"{size:>{widest}} ({p.stage})" for size, p in zip(sizes, peaks, strict=True)]
    return [cell.ljust(max(map(len, cells))) for cell in cells]


class Gauge(Struct, frozen=True):
    """A figure and a bar: `share` of `cells`, with an arrow behind what is more than all."""

    figure: str
    share: float
    cells: int

    def lines(self, width: int) -> list[Line]:
        """One line, in eighths of a cell."""
        full, eighths = divmod(int(self.cells * 8 * min(self.share, 1)), 8)
        bar = "█" * full + _EIGHTHS[eighths]
        return [(Span(f"{self.figure} {bar}{'▶' if self.share > 1 else ''}"),)]

    def widest(self, width: int) -> int:
        """All cells and the arrow, whatever the share."""
        return len(self.figure) + self.cells + len(_MARKS)

    def narrowest(self) -> int:
        """The same: a bar is as long as the page allows."""
        return self.widest(0)


def _layout_cells(shown: Sequence[RankedEvaluation], columns: "LayoutColumns") -> list[str]:
    """Head and one cell a row: the degrees in narrow columns of their own."""
    table = [columns.titles, *(columns.cells(candidate.evaluation.job) for candidate in shown)]
    by_column = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in by_column]
    return [" ".join(map(str.rjust, row, widths)) for row in zip(*by_column, strict=True)]


def _style(candidate: RankedEvaluation) -> str:
    if not candidate.evaluation.fits:
        return "yellow"
    if candidate.rank == 1:
        return "bold"
    return "" if candidate.pareto else "dim"
