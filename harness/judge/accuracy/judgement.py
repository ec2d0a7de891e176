"""How good the predictions of many rows are: errors, order, what following them costs, verdicts."""

from collections.abc import Iterable, Sequence
from statistics import mean

from msgspec import Struct

from harness.base.collections import grouped, known
from harness.judge.accuracy.cells import NONE, Cell, Row
from harness.judge.predicted import Pair, kendall


class Errors(Struct, frozen=True, kw_only=True):
    """Of `count` rows: mean of the sizes, and the worst with its sign; relative, but for overheads,
    which are ratios already and whose errors are differences."""

    count: int
    mean: float
    worst: float


class Verdicts(Struct, frozen=True, kw_only=True):
    """Rows by what the advisor said of memory and what happened. false_fits ran out of memory;
    false_refusals ran."""

    fits: int = 0
    refusals: int = 0
    false_fits: int = 0
    false_refusals: int = 0


class Judgement(Struct, frozen=True, kw_only=True):
    """Rows judged together. None where they cannot tell.

    tau: Kendall's of step times within each cell, the mean over cells. regret: step time of the
    advisor's first choice over the best measured one that fitted, minus 1, the mean over cells;
    worst_regret is infinite where a first choice ran out of memory.
    """

    name: str
    cells: int
    rows: int
    kept: Errors | None
    allocated: Errors | None
    reserved: Errors | None
    step: Errors | None
    overhead: Errors | None
    tau: float | None
    regret: float | None
    worst_regret: float | None
    verdicts: Verdicts


def judge(name: str, rows: Sequence[Row]) -> Judgement:
    """The judgement of `rows`; means of nothing are None."""
    cells = by_cell(rows)
    taus = known(kendall([row.step for row in own]) for own in cells.values())
    regrets = known(map(regret, cells.values()))
    finite = [lost for lost in regrets if lost != float("inf")]
    return Judgement(
        name=name,
        cells=len(cells),
        rows=len(rows),
        kept=_errors(row.kept.error for row in rows),
        allocated=_errors(row.allocated.error for row in rows),
        reserved=_errors(row.reserved.error for row in rows),
        step=_errors(row.step.error for row in rows),
        overhead=_errors(difference(row.overhead) for row in rows if row.setting != NONE),
        tau=mean(taus) if taus else None,
        regret=mean(finite) if finite else None,
        worst_regret=max(regrets, default=None),
        verdicts=_verdicts(rows),
    )


def by_cell(rows: Iterable[Row]) -> dict[Cell, list[Row]]:
    """Rows of each cell, in the order in which they come."""
    return grouped((row.cell, row) for row in rows)


def first_choice(rows: Sequence[Row]) -> Row | None:
    """The setting of a cell that the advisor would take: the fastest that it says fits."""
    fitting = [row for row in rows if row.predicted_fits and row.step.predicted is not None]
    return min(fitting, key=lambda row: row.step.predicted or 0.0, default=None)


def regret(rows: Sequence[Row]) -> float | None:
    """What the first choice costs over the best measured setting of the cell; infinite where it ran
    out of memory, None where it was not measured or nothing else was."""
    choice = first_choice(rows)
    if choice is None:
        return None
    if choice.measured_fits is False:
        return float("inf")
    times = known(row.step.measured for row in rows)
    if choice.step.measured is None or len(times) < 2:
        return None
    return choice.step.measured / min(times) - 1


def difference(pair: Pair) -> float | None:
    """Predicted minus measured."""
    return None if pair.both is None else pair.both[0] - pair.both[1]


def _errors(errors: Iterable[float | None]) -> Errors | None:
    found = known(errors)
    if not found:
        return None
    return Errors(count=len(found), mean=mean(map(abs, found)), worst=max(found, key=abs))


def _verdicts(rows: Sequence[Row]) -> Verdicts:
    told = [(row.predicted_fits, row.measured_fits) for row in rows]
    return Verdicts(
        fits=told.count((True, True)),
        refusals=told.count((False, False)),
        false_fits=told.count((True, False)),
        false_refusals=told.count((False, True)),
    )
