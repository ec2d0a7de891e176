"""Predicted and measured: the error of each setting, and whether following the advisor paid."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

from advisor.base.errors import UserError, require
from advisor.base.units import DASH, MIB, signed_percent, unit_of
from advisor.report.blocks import Block, Column, group, table
from advisor.report.breaking import spec_cell
from advisor.report.text import on_screen
from harness.base.collections import known
from harness.trial.result import TrialResult, TrialStatus, most, reason
from harness.trial.run_plan import PlannedSetting, RunPlan
from harness.trial.trial import Prediction

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
        if self.predicted is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return self.predicted / self.measured - 1


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
    found = []
    for setting in plan.settings:
        names = [trial.name for trial in setting.trials()]
        own = [results[name] for name in names if name in results]
        if own:
            found.append(_outcome(setting, plan.name_of(setting.trial.workload), own))
    return tuple(found)


def _outcome(setting: PlannedSetting, name: str, results: Sequence[TrialResult]) -> SettingOutcome:
    prediction = setting.trial.prediction or Prediction()
    worst = next((r for r in results if r.status not in _TIMED), None)
    worst = worst or next((r for r in results if r.status is TrialStatus.UNSTABLE), results[0])
    steps = [median(r.times.seconds) for r in results if r.times and r.times.seconds]
    peaks = [peak for result in results for peak in result.memory]
    return SettingOutcome(
        setting=setting,
        name=name,
        status=worst.status,
        step_time=Pair(prediction.step_time_seconds, median(steps) if steps else None),
        peak_allocated=Pair(prediction.peak_allocated_bytes, most(peaks, "allocated")),
        saved_per_layer=Pair(
            prediction.saved_bytes_per_layer, most(peaks, "saved_bytes_per_layer")
        ),
        reason=_reason(worst),
    )


def _reason(result: TrialResult) -> str:
    """Why there is no time, or why it deserves no trust."""
    if result.evidence is not None:
        return reason(result.evidence)
    return "; ".join(map(str, result.fatal))


def kendall(pairs: Sequence[Pair]) -> float | None:
    """Kendall's tau-b; None and UserError as for `correlation`."""
    return correlation("kendalltau", pairs)


def correlation(name: str, pairs: Sequence[Pair]) -> float | None:
    """The rank correlation that scipy.stats calls `name`, of the pairs with both numbers; None for
    fewer than three of them or where one side does not vary, UserError without scipy."""
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
            rho, tau = correlation("spearmanr", pairs), kendall(pairs)
        except UserError as error:
            return [f"No rank correlation: {error.relation}; {error.nearest}"]
        if rho is not None and tau is not None:
            lines.append(f"Rank correlation of {words}: Spearman {rho:+.2f}, Kendall {tau:+.2f}.")
    return lines


def followed(found: Sequence[SettingOutcome]) -> float | None:
    """Throughput of the advisor's first choice over the best measured; 1 is no regret, 0 a first
    choice that did not run. None where nothing was measured."""
    times = {o.setting.rank: o.step_time.measured for o in found if o.setting.rank is not None}
    measured = known(times.values())
    if not measured or 1 not in times:
        return None
    first = times[1]
    return 0.0 if first is None else min(measured) / first


def page(plan: RunPlan, results: Mapping[str, TrialResult]) -> str:
    """The table, what went wrong, and the two figures that judge the advisor."""
    found = outcomes(plan, results)
    peaks = (size for outcome in found for size in astuple(outcome.peak_allocated))
    unit, unit_name = unit_of(known(peaks))
    rows = table(
        [
            Column(title="#"),
            Column(title="setting", left=True, wrap=True, above=True),
            Column(title="status", left=True),
            Column(title="kept MiB per layer", spare=1),
            Column(title=_MEASURED, spare=2),
            Column(title=f"peak {unit_name}"),
            Column(title=_MEASURED),
            Column(title="step ms"),
            Column(title=_MEASURED),
        ]
    )
    for outcome in found:
        rows.add_row(*_row(outcome, unit))
    reasons = [f"{o.name}: {o.reason}" for o in found if o.reason]
    notes = [f"Note: {text}." for text in plan.assumptions]
    place = f"{plan.experiment} on {plan.device_name}"
    title = f"{place}; each value predicted, then measured with the error"
    return on_screen(group(title, "", rows, *reasons, "", *judgement(found), *notes))


def _row(outcome: SettingOutcome, unit: int) -> list[Block]:
    return [
        or_dash(outcome.setting.rank, str),
        spec_cell(outcome.name),
        str(outcome.status),
        *_cells(outcome.saved_per_layer, lambda n: f"{n / MIB:.2f}"),
        *_cells(outcome.peak_allocated, lambda n: f"{n / unit:.2f}"),
        *_cells(outcome.step_time, lambda s: f"{s * 1e3:.1f}"),
    ]


def _cells(pair: Pair, write: Callable[[float], str]) -> list[str]:
    """Predicted; and measured, followed by the error."""
    predicted, measured, error = cells(pair, write)
    return [predicted, f"{measured} {error:>8}"]


_MEASURED: Final = "measured, error"


def judgement(found: Sequence[SettingOutcome]) -> list[str]:
    """Whether the order was right, and whether following the advisor's first choice paid; nothing
    where no time was predicted, as for a CPU."""
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
