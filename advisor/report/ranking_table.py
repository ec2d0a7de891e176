"""The ranking as a table: one row a candidate, with a memory bar as wide as the page allows."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from advisor.answer.answer import RankedEvaluation
from advisor.base.fields import join_key_values
from advisor.base.grouping import grouped
from advisor.base.units import percent, signed_percent
from advisor.report.blocks import (
    Block,
    Column,
    Indented,
    Line,
    Span,
    Table,
    Text,
    group,
    spec_cell,
    table,
)
from advisor.report.wording import reserved_gib, seconds

if TYPE_CHECKING:
    from advisor.report.job_changes import LayoutColumns

_USUAL_ROWS: Final = 10
_NAMED: Final = 4
_INDENT: Final = 5


class Rows(Struct, frozen=True, kw_only=True):
    """How a page is cut: `top` rows as they are ranked, or where it is None the first ten that are
    not folded; of the Pareto front alone, all of it. `kept`: ranks that are never folded."""

    top: int | None = None
    front: bool = False
    kept: Collection[int] = ()

    def shown(self, candidates: Sequence[RankedEvaluation]) -> tuple[RankedEvaluation, ...]:
        """The rows, in their order."""
        rows = self._listed(candidates)
        if self.top is not None:
            return tuple(rows[: self.top])
        return tuple(rows if self.front else rows[:_USUAL_ROWS])

    def _listed(self, candidates: Sequence[RankedEvaluation]) -> list[RankedEvaluation]:
        """What is shown where all of it is wanted."""
        rows = [c for c in candidates if c.pareto or not self.front]
        if self.top is not None:
            return rows
        return [c for c in rows if not c.folded or c.rank in self.kept]

    def count_words(self, candidates: Sequence[RankedEvaluation]) -> str:
        """How many rows there are, and how to see more of them; empty where all are shown, except
        those that are folded."""
        shown, listed = len(self.shown(candidates)), len(self._listed(candidates))
        if self.front:
            front = sum(c.pareto for c in candidates)
            more = f", {shown} of them shown, more with --top N" if shown < front else ""
            return f"Pareto front: {front} of {len(candidates)} rows{more}"
        return f"{shown} of {len(candidates)} rows, more with --top N" if shown < listed else ""

    def folded_words(self, candidates: Sequence[RankedEvaluation]) -> str:
        """How many rows are folded and why, and how to see them; empty where none is."""
        folded = [c for c in candidates if c.folded and c.rank not in self.kept]
        if self.top is not None or self.front or not folded:
            return ""
        same = sum(c.same_as is not None for c in folded)
        inside = sum(c.same_as is None and c.pareto for c in folded)
        later = len(self._listed(candidates)) - len(self.shown(candidates))
        parts = (
            (len(folded) - same - inside, "no better than another row"),
            (same, "equal to another"),
            (inside, "between two shown"),
            (later, f"after the first {_USUAL_ROWS}"),
        )
        words = [f"{n} {why}" for n, why in parts if n]
        return f"{', '.join(words)}: --top {len(candidates)} shows all"


def overhead_words(
    candidates: Sequence[RankedEvaluation], shown: Sequence[RankedEvaluation]
) -> str:
    """Over which row the overhead of the rows `shown` is; empty where that row is among them."""
    nones = [c for c in candidates if c.evaluation.setting.spec == "none"]
    jobs = [c.evaluation.job for c in nones if c in shown]
    slower = [c.evaluation.job for c in shown if c.evaluation.recompute_overhead]
    open_jobs = [job for job in slower if job not in jobs]
    if not open_jobs:
        return ""
    if len(nones) == 1 and all(job == nones[0].evaluation.job for job in open_jobs):
        return f"over the step time of none (row {nones[0].rank}, not shown)"
    return "over the step time of none on the same layout"


def remarks(
    candidates: Sequence[RankedEvaluation],
    shown: Sequence[RankedEvaluation],
    columns: "LayoutColumns | None",
) -> dict[int, Block]:
    """What stands below a row, by its rank: what it changes that no column says, and the folded
    rows that run like it."""
    found: dict[int, Block] = {}
    common = shared_changes(shown, columns)
    visible = {candidate.rank for candidate in shown}
    twins = grouped(
        (candidate.same_as, candidate)
        for candidate in candidates
        if candidate.folded and candidate.same_as in visible and candidate.rank not in visible
    )
    for candidate in shown:
        others = columns.others(candidate.evaluation.job) if columns else {}
        own = {path: value for path, value in others.items() if path not in common}
        lines = [
            *([f"with {join_key_values(own)}"] if own else []),
            *([_alike(candidate, twins[candidate.rank])] if candidate.rank in twins else []),
        ]
        if lines:
            texts = (Text(line, "dim") for line in lines)
            found[candidate.rank] = group(*(Indented(text, _INDENT) for text in texts))
    return found


def shared_changes(
    shown: Sequence[RankedEvaluation], columns: "LayoutColumns | None"
) -> Mapping[str, Any]:
    """What no column says and all of several rows change."""
    if columns is None or len(shown) < 2:
        return {}
    first, *rest = (columns.others(candidate.evaluation.job) for candidate in shown)
    return {
        path: value
        for path, value in first.items()
        if all(path in other and other[path] == value for other in rest)
    }


def _alike(row: RankedEvaluation, twins: Sequence[RankedEvaluation]) -> str:
    """``same result: 9 full:uniform:2 · 10 mlp``: their ranks, and what they have instead."""
    from advisor.report.job_changes import apart

    words = []
    for twin in twins[:_NAMED]:
        spec = twin.evaluation.setting.spec
        same = spec == row.evaluation.setting.spec
        layout = apart(twin.evaluation.job, row.evaluation.job)
        words.append(" ".join(filter(None, [str(twin.rank), layout, "" if same else spec])))
    if len(twins) > _NAMED:
        words.append(f"and {len(twins) - _NAMED} more")
    return f"same result: {' · '.join(words)}"


_BAR_CELLS = 16
_SMALLEST_BAR = 4
_GAP = 2
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_MARKS = " ▶"  # next to a bar
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
        title_room = max(len(self._peak_title) - len(_peaks(self.shown)[0]), 0)  # the title's room
        cells = min(_BAR_CELLS, spare + title_room - len(_MARKS))
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
            found.add_row(*row, style=_style(candidate), below=self.below.get(candidate.rank))
        return found

    def _rows(self, bar_cells: int) -> list[list[Block]]:
        smallest = min(c.evaluation.step_time_seconds for c in self.shown)
        rows: list[list[Block]] = []
        for candidate, peak in zip(self.shown, _peaks(self.shown), strict=True):
            one = candidate.evaluation
            share = one.peak_reserved_bytes / one.budget_bytes
            row: list[Block] = [
                f" {candidate.rank}",
                spec_cell(one.setting.spec + " (preset)" * candidate.preset),
                Gauge(peak, share, bar_cells) if bar_cells else peak,
                seconds(one.step_time_seconds, smallest),
                f"{one.tflops_per_gpu:.0f}",
                signed_percent(one.recompute_overhead),
                percent(one.fit_probability),
            ]
            rows.append(row)
        return rows


def _peaks(shown: Sequence[RankedEvaluation]) -> list[str]:
    """``72.4 (0)``: the worst rank's GiB and its stage, as wide as each other; ``~72.4 (0)`` where
    the allocator was not simulated."""
    peaks = [candidate.evaluation.peak for candidate in shown]
    sizes = [reserved_gib(candidate.evaluation) for candidate in shown]
    widest = max(map(len, sizes))
    cells = [f"{size:>{widest}} ({p.stage})" for size, p in zip(sizes, peaks, strict=True)]
    return [cell.ljust(max(map(len, cells))) for cell in cells]


class Gauge(Struct, frozen=True):
    """A figure and a bar: `share` of `cells`, with an arrow after what is more than all."""

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
    by_column = [
        [cell.replace("all_gather", "ag") for cell in one] for one in zip(*table, strict=True)
    ]
    widths = [max(map(len, column)) for column in by_column]
    return [" ".join(map(str.rjust, row, widths)) for row in zip(*by_column, strict=True)]


def _style(candidate: RankedEvaluation) -> str:
    if not candidate.evaluation.fits:
        return "yellow"
    if candidate.rank == 1:
        return "bold"
    return "" if candidate.pareto else "dim"
