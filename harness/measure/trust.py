"""Reasons to distrust a measurement. A fatal one makes it unstable: neither a pass nor a fail."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from statistics import median, quantiles
from typing import Final

from msgspec import Struct, convert

from advisor.base.configuration import load_yaml, packaged_configs
from harness.measure.nvml import GpuReading
from harness.trial.result import Concern
from harness.trial.trial import Device, MeasurementPlan

LEVEL: Final = 0.95


def median_at_least(seconds: Sequence[float], level: float = LEVEL) -> float | None:
    """The median of what `seconds` are drawn from is not below this with probability `level`,
    whatever their distribution: the largest order statistic with a binomial tail below 1 - level
    (David and Nagaraja 2003, Order Statistics, section 7.1). None for fewer than five of them at 95
    %. Steps of one process are correlated: the limit must leave room for how processes differ."""
    count, below, tail = len(seconds), 0, 0.0
    while below < count:
        tail += comb(count, below) * 0.5**count
        if tail > 1 - level:
            break
        below += 1
    return sorted(seconds)[below - 1] if below else None


_AGREEING_STEPS: Final = 3


def is_warm(seconds: Sequence[float], plan: MeasurementPlan) -> bool:
    """Whether min_warmup_steps were run and the last three agree, or max_warmup_steps were run."""
    if len(seconds) >= max(plan.min_warmup_steps, plan.max_warmup_steps):
        return True
    return len(seconds) >= plan.min_warmup_steps and settled(seconds, plan.warmup_tolerance)


def settled(seconds: Sequence[float], tolerance: float) -> bool:
    """Whether the last three steps lie within `tolerance` of their median."""
    last = seconds[-_AGREEING_STEPS:]
    if len(last) < _AGREEING_STEPS:
        return False
    return max(last) - min(last) <= tolerance * median(last)


class SeriesLimits(Struct, frozen=True, kw_only=True):
    """What a series may show. Ratios of the median step, except for `clock_range` (of the highest).
    times_count: whether steps that scatter or drift make a trial unstable."""

    spread: float = 0.05
    drift: float = 0.05
    clock_range: float = 0.10
    host_difference: float = 0.02
    least_steps: int = 5
    times_count: bool = True


LIMITS: Final = {
    Device.CUDA: SeriesLimits(),
    Device.CPU: SeriesLimits(spread=0.15, drift=0.15, times_count=False),
}
"""A CPU is shared with the rest of the system: its times are shown, and judge nothing."""

_DAMAGING: Final = frozenset(
    ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
)
HARMLESS_REASONS: Final = frozenset(("gpu_idle", "applications_clocks_setting"))
"""They hold no working clock back below what was set."""


class SeenSteps(Struct, frozen=True, kw_only=True):
    """What was seen while the steps ran; None where nobody could tell."""

    seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...] = ()
    host_seconds: tuple[float, ...] = ()
    readings: tuple[GpuReading, ...] = ()
    other_processes: int | None = None
    allocator_retries: int = 0
    uncorrected_ecc_errors: int | None = None


def concerns(seen: SeenSteps, plan: MeasurementPlan, device: Device) -> tuple[Concern, ...]:
    """Everything that speaks against the numbers, fatal ones first."""
    limits = LIMITS[device]
    found = [*_of_series(seen, plan, limits), *_of_device(seen, limits)]
    return tuple(sorted(found, key=lambda concern: not concern.fatal))


def spread(seconds: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for fewer than two steps."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


def drift(seconds: Sequence[float]) -> float:
    """Change from the first step to the last over the median, along the Theil-Sen line (median of
    the slopes of all pairs), which single slow steps do not bend."""
    if len(seconds) < 3:
        return 0.0
    slopes = [
        (later - earlier) / (j - i)
        for (i, earlier), (j, later) in combinations(enumerate(seconds), 2)
    ]
    return median(slopes) * (len(seconds) - 1) / median(seconds)


_ADVICE: Final[Mapping[str, str]] = convert(
    load_yaml(packaged_configs() / "failures" / "measured_concerns.yaml").values, dict[str, str]
)
_FATAL: Final = ("allocator_retries", "other_processes", "throttling")


def _concern(name: str, seen: str, limit: float | str, times_count: bool = True) -> Concern:
    """Where times do not count, those that are about times alone are no reason for anything."""
    of_times = name in ("spread", "drift")
    return Concern(
        name=name,
        seen=seen,
        limit=limit if isinstance(limit, str) else _percent(limit),
        advice="CPU times are not judged" if of_times and not times_count else _ADVICE[name],
        fatal=name in _FATAL or (of_times and times_count),
    )


def _of_series(seen: SeenSteps, plan: MeasurementPlan, limits: SeriesLimits) -> Iterator[Concern]:
    seconds, judged = seen.seconds, limits.times_count
    scatter, moved = spread(seconds), drift(seconds)
    if scatter > limits.spread:
        yield _concern("spread", f"IQR {_percent(scatter)} of the median", limits.spread, judged)
    if abs(moved) > limits.drift:
        yield _concern("drift", f"{moved * 100:+.1f} % over the window", limits.drift, judged)
    if len(seconds) < limits.least_steps:
        yield _concern("few_steps", f"{len(seconds)} steps", str(limits.least_steps))
    warmup = seen.warmup_seconds
    most = judged and len(warmup) >= plan.max_warmup_steps
    if most and not settled(warmup, plan.warmup_tolerance):
        late = f"the last of {len(warmup)} warm-up steps do not agree"
        yield _concern("warmup", late, plan.warmup_tolerance)
    total = sum(seen.host_seconds)
    difference = sum(seconds) / total - 1 if total else 0.0
    if abs(difference) > limits.host_difference:
        apart = f"events {difference * 100:+.1f} % against the host clock"
        yield _concern("clocks_disagree", apart, limits.host_difference)


def _of_device(seen: SeenSteps, limits: SeriesLimits) -> Iterator[Concern]:
    """Heat and power brakes spoil times; the power cap is how a GPU at full load runs."""
    reasons = {reason for reading in seen.readings for reason in reading.throttle_reasons or ()}
    if damaging := sorted(reasons & _DAMAGING):
        yield _concern("throttling", ", ".join(damaging), "none")
    if mild := sorted(reasons - _DAMAGING - HARMLESS_REASONS):
        yield _concern("power_cap", ", ".join(mild), "none")
    clocks = [r.sm_clock_mhz for r in seen.readings if r.sm_clock_mhz]
    if clocks and (max(clocks) - min(clocks)) / max(clocks) > limits.clock_range:
        between = f"SM clock {min(clocks)} to {max(clocks)} MHz"
        yield _concern("clock_range", between, limits.clock_range)
    if seen.allocator_retries:
        yield _concern("allocator_retries", str(seen.allocator_retries), "0")
    if seen.other_processes:
        yield _concern("other_processes", f"{seen.other_processes} on the same GPU", "0")
    if seen.uncorrected_ecc_errors:
        yield _concern("ecc_errors", f"{seen.uncorrected_ecc_errors} uncorrected since boot", "0")


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"
