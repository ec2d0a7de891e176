"""Rows of a trial that was measured: each metric of its golden against the same of its repeats."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import nearest_names
from harness.judge.goldens.golden import Golden
from harness.judge.goldens.series import Process, metric_names, samples
from harness.judge.loss import furthest
from harness.judge.metrics import (
    LOSS,
    LOSS_LIMIT,
    METRICS,
    STEP_TIME,
    Better,
    Metric,
    find_metric,
    is_judged,
    process_of,
)
from harness.judge.rows import Row
from harness.judge.stats import Interval, Shift, centre, relative_shift
from harness.judge.verdict import Judgement, Verdict, judge
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Device

FEW_PROCESSES = 5


class Options(Struct, frozen=True, kw_only=True):
    """How to compare. allow_env_change: compare across environments, which are then shown first.
    strict: a stale golden fails. allow_unmatched: vanished and appeared trials do not decide.
    exact_loss: bit by bit. limits: metric and relative limit, before the golden's and the default.
    """

    allow_env_change: bool = False
    strict: bool = False
    allow_unmatched: bool = False
    exact_loss: bool = False
    limits: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        known = (*METRICS, LOSS)
        for name, limit in self.limits:
            if name.partition(".stage")[0] not in known:
                raise UserError("--limit", name, "is not a metric", nearest_names(name, known))
            if not 0 < limit < 1:
                raise UserError(
                    "--limit", f"{name}={limit * 100:g}%", "must lie between 0 % and 100 %"
                )

    def limit(self, name: str, golden: Golden, default: float) -> float:
        """Relative limit of a metric; that of a metric holds for its pipeline stages too."""
        given, base = dict(self.limits), name.partition(".stage")[0]
        for limits in (given, golden.limits):
            for key in (name, base):
                if key in limits:
                    return limits[key]
        return default


def measured_rows(
    label: str, key: str, results: Sequence[TrialResult], golden: Golden, options: Options
) -> list[Row]:
    """One row for each metric of the golden."""
    about = Row(label=label, workload_key=key, verdict=Verdict.PASS)
    processes = tuple(process_of(result) for result in results)
    unstable = _unstable(results)
    device = Device(str(results[0].trial["workload"].get("device", Device.CUDA)))
    rows = []
    for name in metric_names(golden.processes):
        metric = find_metric(name)
        if name == LOSS:
            rows.append(_loss_row(about, processes, golden, options))
        elif metric is not None and not is_judged(name, device):
            rows += _shown_rows(replace(about, metric=name), metric, processes, golden)
        elif metric is not None:
            metric = metric.on(device)
            limit = options.limit(name, golden, metric.limit)
            row = replace(
                about,
                metric=name,
                limit=limit if metric.better is Better.LOWER else -limit,
            )
            noise = metric.assumed_noise(device)
            new = samples(processes, name)
            rows.append(_metric_row(row, metric, noise, new, golden, unstable))
    return rows


def _shown_rows(
    row: Row, metric: Metric, processes: tuple[Process, ...], golden: Golden
) -> Iterator[Row]:
    """The step time of a CPU beside the golden's, where both are there; rates say the same."""
    old, new = samples(golden.processes, metric.name), samples(processes, metric.name)
    if metric.name != STEP_TIME or not old or not new:
        return
    before, after = centre(old), centre(new)
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
    row: Row,
    metric: Metric,
    noise: float,
    new: tuple[tuple[float, ...], ...],
    golden: Golden,
    unstable: str,
) -> Row:
    """`row` judged; noise: between processes, where none is seen."""
    old = samples(golden.processes, metric.name)
    gone = replace(row, verdict=Verdict.VANISHED)
    if not new:
        return replace(gone, reason="in the golden, but not in the results")
    if not old:
        return replace(gone, reason="the golden has no finite value for it")
    if min(map(min, (*new, *old))) <= 0:
        return replace(gone, reason="must be positive in the golden and in the result")
    shift = relative_shift(new, old, noise, golden.exact(metric.name))
    before, after = centre(old), centre(new)
    judged = Judgement(verdict=Verdict.UNSTABLE, reason=unstable)
    if not (unstable and metric.timing):
        judged = judge(shift, metric, abs(row.limit or 0.0), after - before)
    return replace(
        row,
        verdict=judged.verdict,
        reason=judged.reason,
        repeats=judged.repeats,
        golden=before,
        new=after,
        change=shift.ratio - 1,
        interval=Interval(low=shift.interval.low - 1, high=shift.interval.high - 1),
        shown=(metric.show(before), metric.show(after)),
        notes=_notes(shift, metric),
    )


def _loss_row(about: Row, processes: tuple[Process, ...], golden: Golden, options: Options) -> Row:
    """The step where the losses are furthest apart, against a limit in both directions."""
    limit = 0.0 if options.exact_loss else options.limit(LOSS, golden, LOSS_LIMIT)
    row, worst = replace(about, metric=LOSS), furthest(processes, golden.processes)
    if worst is None:
        return replace(
            row, verdict=Verdict.VANISHED, reason="the golden and the result share no training step"
        )
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


def _unstable(results: Sequence[TrialResult]) -> str:
    """Why times of these processes are not to be trusted; empty where they are."""
    for result in results:
        if result.fatal:
            return str(result.fatal[0])
        if result.status is TrialStatus.UNSTABLE:
            return f"{result.name} is unstable"
    return ""


def _notes(shift: Shift, metric: Metric) -> tuple[str, ...]:
    """Where the interval rests on less than it should."""
    if shift.noise_assumed and shift.noise:
        noise = f"{shift.noise * 100:.2g} %"
        return (f"one process per side: a scatter of {noise} between processes is assumed",)
    fewest = min(shift.processes, shift.golden_processes or shift.processes)
    if metric.timing and fewest < FEW_PROCESSES:
        return (
            f"few processes: {shift.processes} now, {shift.golden_processes or 1} in the golden",
        )
    return ()
