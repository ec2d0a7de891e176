"""Predicted and measured: the error of each setting, and whether following the advisor paid."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from advisor.base.errors import UserError, require
from advisor.base.units import DASH, MIB, signed_percent, unit_of
from advisor.report.blocks import Column, group, spec_cell, table
from advisor.report.text import on_screen
from harness.base.collections import known
from harness.trial.result import TrialResult, TrialStatus, most, reason
from harness.trial.trial import PlannedSetting, Prediction, RunPlan

Value = TypeVar("Value")
_TIMED: Final = (TrialStatus.OK, TrialStatus.UNSTABLE)
_FEWEST_RANKS: Final = 3


class Pair(Struct, frozen=True):
    """A number as predicted and as measured; None where there is none."""

    predicted: float | None = None
    measured: float | None = None

    @property
    def both(self) -> tuple[float, float] | None:
        """Predicted and measured; None where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted, self.measured

    @property
    def error(self) -> float | None:
        """Signed, relative to what was measured; None where it cannot be said."""
        if self.both is None:
            return None
        predicted, measured = self.both
        return predicted / measured - 1 if measured else None if predicted else 0.0

    @property
    def difference(self) -> float | None:
        """Predicted minus measured."""
        return None if self.both is None else self.both[0] - self.both[1]


class SettingOutcome(Struct, frozen=True, kw_only=True):
    """One setting over all its repeats, and what it is called in its plan. step_time: median over
    processes of each one's median step, seconds. peak_allocated: largest of all ranks and repeats.
    status: that of the first repeat that gave no times, else the worst."""

    setting: PlannedSetting
    name: str
    status: TrialStatus
    step_time: Pair
    peak_allocated: Pair
    saved_per_layer: Pair
    reason: str = ""


def outcomes(plan: RunPlan, results: Mapping[str, TrialResult]) -> tuple[SettingOutcome, ...]:
    """What became of every setting that has a result, in the plan's order."""
    each = ((s, known(results.get(one.name) for one in s.trials())) for s in plan.settings)
    return tuple(_outcome(s, plan.name_of(s.trial.workload), own) for s, own in each if own)


def _outcome(setting: PlannedSetting, name: str, results: Sequence[TrialResult]) -> SettingOutcome:
    prediction = setting.trial.prediction or Prediction()
    worst = next((r for r in results if r.status not in _TIMED), None)
    worst = worst or next((r for r in results if r.status is TrialStatus.UNSTABLE), results[0])
    steps = [median(r.times.seconds) for r in results if r.times and r.times.seconds]
    peaks = [peak for result in results for peak in result.memory]
    saved = most(peaks, "saved_bytes_per_layer")
    return SettingOutcome(
        setting=setting,
        name=name,
        status=worst.status,
        step_time=Pair(prediction.step_time_seconds, median(steps) if steps else None),
        peak_allocated=Pair(prediction.peak_allocated_bytes, most(peaks, "allocated")),
        saved_per_layer=Pair(prediction.saved_bytes_per_layer, saved),
        reason=reason(worst.evidence) if worst.evidence else "; ".join(map(str, worst.fatal)),
    )


def correlation(name: str, pairs: Sequence[Pair]) -> float | None:
    """scipy.stats' `name` (spearmanr; kendalltau: tau-b) of pairs with both numbers; None for fewer
    than three or where one side does not vary, UserError without scipy."""
    whole = known(pair.both for pair in pairs)
    sides = list(zip(*whole, strict=True))
    if len(whole) < _FEWEST_RANKS or any(len(set(side)) == 1 for side in sides):
        return None
    stats = require("scipy.stats", "rank correlation", "harness")
    return float(getattr(stats, name)(*sides).statistic)


def order_lines(groups: Mapping[str, Sequence[Pair]]) -> list[str]:
    """The rank correlations of each group that has an order, one line a group; without scipy one
    line that says so, for a page must not fail at the end of a run."""
    lines = []
    for words, pairs in groups.items():
        try:
            rho, tau = correlation("spearmanr", pairs), correlation("kendalltau", pairs)
        except UserError as error:
            return [f"No rank correlation: {error.relation}; {error.nearest}"]
        if rho is not None and tau is not None:
            lines.append(f"Rank correlation of {words}: Spearman {rho:+.2f}, Kendall {tau:+.2f}.")
    return lines


def followed(found: Sequence[SettingOutcome]) -> float | None:
    """Throughput of the first choice over the best measured; 0: did not run; None: nothing."""
    times = {o.setting.rank: o.step_time.measured for o in found if o.setting.rank is not None}
    measured, first = known(times.values()), times.get(1)
    if not measured or 1 not in times:
        return None
    return 0.0 if first is None else min(measured) / first


def page(plan: RunPlan, results: Mapping[str, TrialResult]) -> str:
    """The table, what went wrong, and the two figures that judge the advisor."""
    found = outcomes(plan, results)
    peaks = (size for outcome in found for size in astuple(outcome.peak_allocated))
    unit, unit_name = unit_of(known(peaks))
    words = Column(title="setting", left=True, wrap=True, above=True)
    kept = Column(title="kept MiB per layer", spare=1), Column(title=_MEASURED, spare=2)
    figures = (Column(title=one) for one in (f"peak {unit_name}", _MEASURED, "step ms", _MEASURED))
    rows = table([Column(title="#"), words, Column(title="status", left=True), *kept, *figures])
    for outcome in found:
        rows.add_row(
            or_dash(outcome.setting.rank, str),
            spec_cell(outcome.name),
            str(outcome.status),
            *_cells(outcome.saved_per_layer, lambda n: f"{n / MIB:.2f}"),
            *_cells(outcome.peak_allocated, lambda n: f"{n / unit:.2f}"),
            *_cells(outcome.step_time, lambda s: f"{s * 1e3:.1f}"),
        )
    reasons = [f"{o.name}: {o.reason}" for o in found if o.reason]
    notes = [f"Note: {text}." for text in plan.assumptions]
    place = f"{plan.experiment} on {plan.device_name}"
    title = f"{place}; each value predicted, then measured with the error"
    return on_screen(group(title, "", rows, *reasons, "", *judgement(found), *notes))


def _cells(pair: Pair, write: Callable[[float], str]) -> list[str]:
    """Predicted; and measured, followed by the error."""
    predicted, measured, error = cells(pair, write)
    return [predicted, f"{measured} {error:>8}"]


_MEASURED: Final = "measured, error"


def judgement(found: Sequence[SettingOutcome]) -> list[str]:
    """Whether the order was right, and the first choice paid; nothing without predicted times."""
    times = [outcome.step_time for outcome in found]
    if all(pair.predicted is None for pair in times):
        return []
    lines = order_lines({"predicted and measured step time": times})
    timed = sum(pair.measured is not None for pair in times)
    share = followed(found)
    if share == 0:
        lines.append("The advisor's first choice did not run.")
    elif share is not None and timed > 1:  # alone it is the best measured, which says nothing
        words = f"Following the advisor gives {share * 100:.1f} % of the best measured throughput"
        words += f": a regret of {(1 - share) * 100:.1f} %" if share < 1 else ""
        doubted = any(outcome.status is TrialStatus.UNSTABLE for outcome in found)
        lines.append(words + (" (some times are unstable)." if doubted else "."))
    return lines


def cells(pair: Pair, write: Callable[[float], str]) -> list[str]:
    """Predicted, measured, and the signed error, as text."""
    return [
        or_dash(pair.predicted, write),
        or_dash(pair.measured, write),
        or_dash(pair.error, lambda error: signed_percent(error) if error else "0 %"),
    ]


def or_dash(value: Value | None, write: Callable[[Value], str]) -> str:
    """A value as text; a dash where it is not known."""
    return DASH if value is None else write(value)
