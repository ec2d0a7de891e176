"""Predicted beside measured: the error of each setting, and whether following the advisor paid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

from advisor.base.units import MIB, signed_percent, unit_of
from advisor.report.text import MAX_WIDTH, Column, table_lines, wrap
from harness.run.progress import reason
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.run_plan import PlannedSetting, RunPlan

_TIMED: Final = (TrialStatus.OK, TrialStatus.UNSTABLE)
_DASH: Final = "—"
_FEWEST_RANKS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A number as predicted and as measured; None where there is none."""

    predicted: float | None = None
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """Signed, relative to what was measured; None where it cannot be said."""
        if self.predicted is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingOutcome:
    """One setting over all its repeats.

    step_time: median over processes of each one's median step, seconds. peak_allocated: largest of
    all ranks and repeats. status: that of the first repeat that gave no times, else the worst.
    """

    setting: PlannedSetting
    status: TrialStatus
    step_time: Pair
    peak_allocated: Pair
    saved_per_layer: Pair
    replayed_flops: Pair
    reason: str = ""


def outcomes(plan: RunPlan, results: Mapping[str, TrialResult]) -> tuple[SettingOutcome, ...]:
    """What became of every setting that has a result, in the plan's order."""
    found = []
    for setting in plan.settings:
        names = [trial.name for trial in setting.trials()]
        own = [results[name] for name in names if name in results]
        if own:
            found.append(_outcome(setting, own))
    return tuple(found)


def _outcome(setting: PlannedSetting, results: Sequence[TrialResult]) -> SettingOutcome:
    prediction = setting.trial.prediction
    worst = next((r for r in results if r.status not in _TIMED), None)
    worst = worst or next((r for r in results if r.status is TrialStatus.UNSTABLE), results[0])
    steps = [median(r.times.seconds) for r in results if r.times and r.times.seconds]
    peaks = [peak for result in results for peak in result.memory]
    allocated = [peak.allocated for peak in peaks if peak.allocated is not None]
    saved = [p.saved_bytes_per_layer for p in peaks if p.saved_bytes_per_layer is not None]
    replayed = [r.flops.replayed_per_layer for r in results if r.flops is not None]
    counted = [flops for flops in replayed if flops is not None]
    return SettingOutcome(
        setting=setting,
        status=worst.status,
        step_time=Pair(
            predicted=prediction.step_time_seconds if prediction else None,
            measured=median(steps) if steps else None,
        ),
        peak_allocated=Pair(
            predicted=prediction.peak_allocated_bytes if prediction else None,
            measured=max(allocated, default=None),
        ),
        saved_per_layer=Pair(
            predicted=prediction.saved_bytes_per_layer if prediction else None,
            measured=max(saved, default=None),
        ),
        replayed_flops=Pair(
            predicted=prediction.replayed_flops_per_layer if prediction else None,
            measured=max(counted, default=None),
        ),
        reason=_reason(worst),
    )


def _reason(result: TrialResult) -> str:
    """Why there is no time, or why it deserves no trust."""
    if result.evidence is not None:
        return reason(result.evidence)
    fatal = [concern for concern in result.concerns if concern.fatal]
    return "; ".join(f"{c.name}: {c.seen} (limit {c.limit}); {c.advice}" for c in fatal)


def rank_correlation(pairs: Sequence[Pair]) -> float | None:
    """Spearman's: Pearson's of the ranks, ties sharing their mean; None for fewer than three pairs
    or where one side does not vary."""
    whole = [(p.predicted, p.measured) for p in pairs]
    known = [(a, b) for a, b in whole if a is not None and b is not None]
    if len(known) < _FEWEST_RANKS:
        return None
    first, second = (_ranks([pair[side] for pair in known]) for side in (0, 1))
    middle = (len(known) + 1) / 2
    spread = [sum((r - middle) ** 2 for r in ranks) for ranks in (first, second)]
    if not spread[0] or not spread[1]:
        return None
    shared = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return float(shared / (spread[0] * spread[1]) ** 0.5)


def kendall(pairs: Sequence[Pair]) -> float | None:
    """Kendall's tau-b: concordant minus discordant pairs of settings over those that are not tied;
    None where `rank_correlation` is."""
    whole = [(p.predicted, p.measured) for p in pairs]
    known = [(a, b) for a, b in whole if a is not None and b is not None]
    if len(known) < _FEWEST_RANKS:
        return None
    signs = [(_sign(a - c), _sign(b - d)) for (a, b), (c, d) in combinations(known, 2)]
    untied = [sum(map(abs, side)) for side in zip(*signs, strict=True)]
    if not all(untied):
        return None
    return float(sum(a * b for a, b in signs) / (untied[0] * untied[1]) ** 0.5)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their places."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values), start=1):
        places.setdefault(value, []).append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def followed(found: Sequence[SettingOutcome]) -> float | None:
    """Throughput of the advisor's first choice over the best measured; 1 is no regret, 0 a first
    choice that did not run. None where nothing was measured."""
    times = {o.setting.rank: o.step_time.measured for o in found if o.setting.rank is not None}
    known = [seconds for seconds in times.values() if seconds is not None]
    if not known or 1 not in times:
        return None
    first = times[1]
    return 0.0 if first is None else min(known) / first


def page(plan: RunPlan, results: Mapping[str, TrialResult]) -> str:
    """The table, what went wrong, and the two figures that judge the advisor."""
    found = outcomes(plan, results)
    lines = [f"{plan.experiment} on {plan.device_name}; predicted beside measured", ""]
    unit, unit_name = unit_of(_sizes(found))
    titles = [title.format(unit=unit_name) for title in _TITLES]
    columns = [Column(title=title, left=title in _LEFT) for title in titles]
    rows = [_row(outcome, unit) for outcome in found]
    wide = table_lines(columns, rows, indent=0)
    fits = max(map(len, wide)) <= MAX_WIDTH
    lines += wide if fits else table_lines(columns, rows, indent=0, gap=1)
    reasons = [f"{o.setting.spec}: {o.reason}" for o in found if o.reason]
    for text in (*reasons, "", *judgement(found), *(f"Note: {text}." for text in plan.assumptions)):
        lines += wrap(text, MAX_WIDTH) or [""]
    return "\n".join(lines) + "\n"


def _sizes(found: Sequence[SettingOutcome]) -> list[float]:
    """All peaks, predicted and measured, bytes."""
    pairs = [outcome.peak_allocated for outcome in found]
    return [size for p in pairs for size in (p.predicted, p.measured) if size is not None]


def _row(outcome: SettingOutcome, unit: int) -> list[str]:
    rank = outcome.setting.rank
    return [
        _DASH if rank is None else str(rank),
        outcome.setting.spec,
        str(outcome.status),
        *cells(outcome.saved_per_layer, lambda n: f"{n / MIB:.2f}"),
        *cells(outcome.peak_allocated, lambda n: f"{n / unit:.2f}"),
        *cells(outcome.step_time, lambda s: f"{s * 1e3:.1f}"),
    ]


def judgement(found: Sequence[SettingOutcome]) -> list[str]:
    """Whether the order was right, and whether following the advisor's first choice paid."""
    lines = []
    times = [outcome.step_time for outcome in found]
    spearman, tau = rank_correlation(times), kendall(times)
    if spearman is not None and tau is not None:
        lines.append(
            "Rank correlation of predicted and measured step time: "
            f"Spearman {spearman:+.2f}, Kendall {tau:+.2f}."
        )
    timed = sum(pair.measured is not None for pair in times)
    share = followed(found)
    if share == 0:
        lines.append("The advisor's first choice did not run.")
    elif share is not None and timed > 1:  # alone it is the best measured, which says nothing
        words = f"Following the advisor gives {share * 100:.1f} % of the best measured throughput"
        words += f": a regret of {(1 - share) * 100:.1f} %" if share < 1 else ""
        doubted = any(outcome.status is TrialStatus.UNSTABLE for outcome in found)
        lines.append(words + (", as far as unstable times tell." if doubted else "."))
    return lines


def cells(pair: Pair, write: Callable[[float], str]) -> list[str]:
    """Predicted, measured, and the signed error, as text."""
    error = pair.error
    return [
        _DASH if pair.predicted is None else write(pair.predicted),
        _DASH if pair.measured is None else write(pair.measured),
        _DASH if error is None else signed_percent(error) if error else "0 %",
    ]


_TITLES: Final = (
    "\n#",
    "\nsetting",
    "\nstatus",
    "kept/layer\nMiB",
    "meas-\nured",
    "\nerror",
    "peak\n{unit}",
    "meas-\nured",
    "\nerror",
    "step\nms",
    "meas-\nured",
    "\nerror",
)
_LEFT: Final = ("\nsetting", "\nstatus")
