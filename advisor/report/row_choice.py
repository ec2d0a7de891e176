"""Which rows of a ranking a page shows, and what it says of those that it leaves out."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.answer import RankedEvaluation
from advisor.base.fields import key_values
from advisor.report.blocks import Block, Indented, Text, group

if TYPE_CHECKING:
    from advisor.report.job_changes import LayoutColumns

_USUAL_ROWS: Final = 10
_NAMED: Final = 4
_NONE: Final = "none"
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
        """How many rows there are, and how to see more of them; empty where all are shown, but for
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
        parts = (
            (len(folded) - same, "dominated (another row is no larger and no slower)"),
            (same, "with the same result as another"),
            (
                len(self._listed(candidates)) - len(self.shown(candidates)),
                f"after the first {_USUAL_ROWS}",
            ),
        )
        words = [f"{_rows(number)} {why}" for number, why in parts if number]
        return f"{', '.join(words)}: --top {len(candidates)} shows all"


def overhead_words(
    candidates: Sequence[RankedEvaluation], shown: Sequence[RankedEvaluation]
) -> str:
    """Over which row the overhead of the rows `shown` is; empty where that row is among them."""
    nones = [c for c in candidates if c.evaluation.setting.spec == _NONE]
    jobs = [c.evaluation.job for c in nones if c in shown]
    open_jobs = [
        c.evaluation.job
        for c in shown
        if c.evaluation.recompute_overhead and c.evaluation.job not in jobs
    ]
    if not open_jobs:
        return ""
    if len(nones) == 1 and all(job == nones[0].evaluation.job for job in open_jobs):
        return f"over the step time of none (row {nones[0].rank}, not shown)"
    return "over the step time of none on the same layout"


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


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
    twins: dict[int, list[RankedEvaluation]] = {}
    for candidate in candidates:
        if candidate.folded and candidate.same_as in visible and candidate.rank not in visible:
            twins.setdefault(candidate.same_as or 0, []).append(candidate)
    for candidate in shown:
        others = columns.others(candidate.evaluation.job) if columns else {}
        own = {path: value for path, value in others.items() if path not in common}
        lines = [
            *([f"with {key_values(own)}"] if own else []),
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
