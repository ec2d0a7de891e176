"""Rows of a comparison: each metric of a trial's golden against the same of its repeats; losses are
compared step by step, as with the same seed they follow the same curve."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, nearest_names
from advisor.base.grouping import grouped
from advisor.base.units import human_bytes
from harness.judge import metrics, stats
from harness.judge.golden import Golden, by_day
from harness.judge.golden_update import session_of, sessions_of
from harness.judge.identity import EnvironmentDifference
from harness.judge.verdict import Judgement, Verdict, judge
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Device


class ComparisonRow(Struct, frozen=True):
    """One line of a comparison. label, workload_key: whose. metric: empty where the row is about
    the trial as a whole. golden, new: medians in the metric's unit. change: new / golden - 1;
    interval: where it lies with 95 % confidence. limit: the change at which it is a regression,
    signed. shown: golden and new as text. notes: what to know of the numbers. two_sided: the limit
    holds in both directions. cpu_time: the numbers are times of a CPU."""

    label: str
    workload_key: str
    verdict: Verdict
    metric: str = ""
    golden: float | None = None
    new: float | None = None
    change: float | None = None
    interval: stats.Interval | None = None
    limit: float | None = None
    two_sided: bool = False
    cpu_time: bool = False
    shown: tuple[str, str] = ("", "")
    reason: str = ""
    needed: stats.Needed | None = None
    notes: tuple[str, ...] = ()

    @property
    def identifier(self) -> str:
        """Name of the row in other tools: label and metric."""
        return f"{self.label} {self.metric}".strip()


class EnvironmentChange(Struct, frozen=True, kw_only=True):
    """What is not as in a trial's golden. unrecorded: what the golden does not say of it."""

    label: str
    differences: tuple[EnvironmentDifference, ...] = ()
    unrecorded: tuple[str, ...] = ()


def describe(result: TrialResult) -> str:
    """Evidence of a trial that is not ok: phase, rank, how far over, last words."""
    if (evidence := result.evidence) is None:
        return ""
    where = f" in {evidence.phase}" + ("" if evidence.rank is None else f" on rank {evidence.rank}")
    over = f", {human_bytes(evidence.over_bytes)} over" if evidence.over_bytes else ""
    words = " ".join(evidence.message.split())
    return f"{where}{over}: {words}" if words else where + over


class LossDeviation(Struct, frozen=True):
    """Where two loss curves are furthest apart. change: new / golden - 1, or infinite."""

    step: int
    golden: float
    new: float
    change: float
    steps: int


def furthest(new: metrics.Processes, golden: metrics.Processes) -> LossDeviation | None:
    """The worst step of those that both have, by the median of several processes; None for none."""
    old, now = _curve(golden), _curve(new)
    shared = sorted(old.keys() & now.keys())
    if not shared:
        return None
    changes = {step: _change(old[step], now[step]) for step in shared}
    worst = max(shared, key=lambda step: abs(changes[step]))
    return LossDeviation(worst, old[worst], now[worst], changes[worst], len(shared))


def _curve(processes: metrics.Processes) -> dict[int, float]:
    """Training step -> median loss over processes; NaN where one of them is."""
    series = (one[metrics.LOSS] for one in processes if metrics.LOSS in one)
    return {
        step: median(values) if all(map(math.isfinite, values)) else math.nan
        for step, values in grouped(pair for one in series for pair in one.values.items()).items()
    }


def _change(old: float, new: float) -> float:
    if not math.isfinite(new) or not math.isfinite(old):
        return math.inf
    return (new - old) / abs(old) if old else (0.0 if new == old else math.inf)


FEW_PROCESSES = 5


class CompareOptions(Struct, frozen=True, kw_only=True):
    """How to compare. allow_env_change: compare across environments, which are then shown first.
    strict: a stale golden fails. allow_unmatched: vanished and appeared trials do not decide.
    exact_loss: bit by bit. limits: metric and relative limit, before the golden's and defaults."""

    allow_env_change: bool = False
    strict: bool = False
    allow_unmatched: bool = False
    exact_loss: bool = False
    limits: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        known = (*metrics.METRICS, metrics.LOSS)
        for name, limit in self.limits:
            if name.partition(".stage")[0] not in known:
                raise UserError("--limit", name, "is not a metric", nearest_names(name, known))
            if not 0 < limit < 1:
                given = f"{name}={limit * 100:g}%"
                raise UserError("--limit", given, "must lie between 0 % and 100 %")

    def limit(self, name: str, golden: Golden, default: float) -> float:
        """Relative limit of a metric; that of a metric holds for its pipeline stages too."""
        base = name.partition(".stage")[0]
        for limits in (golden.limits, dict(self.limits)):
            default = limits.get(name, limits.get(base, default))
        return default


def measured_rows(
    label: str,
    key: str,
    results: Sequence[TrialResult],
    golden: Golden,
    options: CompareOptions,
    others: Sequence[Golden] = (),
) -> list[ComparisonRow]:
    """One row for each metric of the golden. others: goldens that show how sessions differ."""
    about = ComparisonRow(label=label, workload_key=key, verdict=Verdict.PASS)
    processes = [metrics.series_of(result) for result in results]
    doubted = (one for one in results if one.fatal or one.status is TrialStatus.UNSTABLE)
    doubts = (str(one.fatal[0]) if one.fatal else f"{one.name} is unstable" for one in doubted)
    unstable = next(doubts, "")  # why times of these processes are not to be trusted
    device = Device(str(results[0].trial["workload"].get("device", Device.CUDA)))
    rows = []
    for name in metrics.metric_names(golden.processes):
        metric = metrics.find_metric(name)
        if name == metrics.LOSS:
            rows.append(_loss_row(about, processes, golden, options))
        elif metric is not None and not metrics.is_judged(name, device):
            rows += _shown_rows(replace(about, metric=name), metric, processes, golden)
        elif metric is not None:
            metric = metric.on(device)
            limit = options.limit(name, golden, metric.limit)
            signed = limit if metric.better is metrics.Better.LOWER else -limit
            noise = metric.assumed_noise(device)
            if metric.timing:
                noise = replace(noise, history=seen_between(golden, others, name))
            new = by_day((session_of(one, "") for one in sessions_of(results)), name)
            row = replace(about, metric=name, limit=signed)
            rows.append(_metric_row(row, metric, noise, new, golden, unstable))
    return rows


def _shown_rows(
    row: ComparisonRow, metric: metrics.Metric, processes: metrics.Processes, golden: Golden
) -> Iterator[ComparisonRow]:
    """The step time of a CPU next to the golden's, where both are there; rates say the same."""
    old, new = (metrics.samples(one, metric.name) for one in (golden.processes, processes))
    if metric.name != metrics.STEP_TIME or not old or not new:
        return
    before, after = stats.centre(old), stats.centre(new)
    yield replace(
        row,
        verdict=Verdict.UNJUDGED,
        golden=before,
        new=after,
        change=after / before - 1 if before else None,
        cpu_time=True,
        shown=(metric.show(before), metric.show(after)),
    )


def _metric_row(
    row: ComparisonRow,
    metric: metrics.Metric,
    noise: stats.Noise,
    new: stats.Sessions,
    golden: Golden,
    unstable: str,
) -> ComparisonRow:
    """`row` judged; noise: what is assumed where little is seen."""
    old = golden.samples(metric.name)
    gone = replace(row, verdict=Verdict.VANISHED)
    if not new:
        return replace(gone, reason="in the golden, but not in the results")
    if not old:
        return replace(gone, reason="the golden has no finite value for it")
    before, after = ([steps for one in side for steps in one] for side in (old, new))
    if min(map(min, (*before, *after))) <= 0:
        return replace(gone, reason="must be positive in the golden and in the result")
    shift = stats.relative_shift(new, old, noise, golden.exact(metric.name))
    was, now = stats.centre(before), stats.centre(after)
    judged = Judgement(verdict=Verdict.UNSTABLE, reason=unstable)
    if not unstable and metric.timing and set(after) <= set(before):
        judged = Judgement(verdict=Verdict.PASS, reason="these very numbers are in the golden")
    elif not (unstable and metric.timing):
        judged = judge(shift, metric, abs(row.limit or 0.0), now - was)
    return replace(
        row,
        verdict=judged.verdict,
        reason=judged.reason,
        needed=judged.needed,
        golden=was,
        new=now,
        change=shift.ratio - 1,
        interval=stats.Interval(low=shift.interval.low - 1, high=shift.interval.high - 1),
        shown=(metric.show(was), metric.show(now)),
        notes=_notes(shift, metric),
    )


def _loss_row(
    about: ComparisonRow, processes: metrics.Processes, golden: Golden, options: CompareOptions
) -> ComparisonRow:
    """The step where the losses are furthest apart, against a limit in both directions."""
    limit = 0.0 if options.exact_loss else options.limit(metrics.LOSS, golden, metrics.LOSS_LIMIT)
    row, worst = replace(about, metric=metrics.LOSS), furthest(processes, golden.processes)
    if worst is None:
        shared = "the golden and the result share no training step"
        return replace(row, verdict=Verdict.VANISHED, reason=shared)
    return replace(
        row,
        verdict=Verdict.REGRESSION if abs(worst.change) > limit else Verdict.PASS,
        golden=worst.golden,
        new=worst.new,
        change=worst.change,
        limit=limit,
        two_sided=True,
        shown=(f"{worst.golden:.6g}", f"{worst.new:.6g}"),
        reason=f"largest difference at step {worst.step}; {worst.steps} steps compared",
    )


def _notes(shift: stats.Shift, metric: metrics.Metric) -> tuple[str, ...]:
    """Where the interval rests on less than it should."""
    spread, now, notes = shift.spread, shift.processes, []
    if not spread.within.freedom and spread.process:
        noise = f"{math.sqrt(spread.process) * 100:.2g} %"
        notes.append(f"one process a session: a scatter of {noise} between processes is assumed")
    elif metric.timing and min(now, shift.golden_processes or now) < FEW_PROCESSES:
        notes.append(f"few processes: {now} now, {shift.golden_processes or 1} in the golden")
    if metric.timing and not spread.between.freedom:
        noise = f"{math.sqrt(spread.assumed) * 100:.2g} %"
        notes.append(f"one session: a scatter of {noise} between sessions is assumed")
    if metric.timing and shift.drift:
        notes.append("the golden's sessions drift (harness golden history): so may what follows")
    return tuple(notes)


def seen_between(golden: Golden, others: Sequence[Golden], name: str) -> stats.Seen:
    """Variance of a timing between sessions that other goldens of this GPU show. Those of one
    machine and day share its weather, so that they count once."""
    kind = golden.identity.full_gpus.rpartition("x")[2]
    same = (one for one in others if one is not golden)
    found = [one for one in same if one.identity.full_gpus.rpartition("x")[2] == kind]
    samples = (one.samples(name) for one in found)
    good = (one for one in samples if all(min(steps) > 0 for part in one for steps in part))
    seen = stats.Seen.pooled(map(stats.session_centres, good))
    days = {(one.host, one.started_at[:10]) for each in found for one in each.sessions}
    return replace(seen, freedom=min(seen.freedom, max(len(days) - 1, 0)))
