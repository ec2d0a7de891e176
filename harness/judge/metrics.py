"""What is compared: each metric's unit, good direction, limit and floor, and where it comes from.
Limits are those of measuring practice: 5 % for times and throughput (as Megatron-LM and Megatron
Bridge have it), 2 % for allocated peaks, which are nearly deterministic, 5 % for reserved ones,
which hold the allocator's rounding. Below the floor a difference of memory does not count."""

import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.units import MIB, human_bytes, significant
from harness.judge.stats import Noise
from harness.trial.result import MemoryPeak, TrialResult, most
from harness.trial.trial import Device, world_size


class Series(Struct, frozen=True, kw_only=True):
    """One metric of one process: training step, counted from 1 as Megatron does (warm-up steps are
    counted though not held), -> number. A scalar of the whole process, such as a peak, is held
    once, at its last step. ValueError for a finite number that is too large to be squared."""

    values: dict[Annotated[int, Meta(ge=0, le=LARGEST)], int | float]

    def __post_init__(self) -> None:
        for value in self.finite:
            if abs(value) > LARGEST_FLOAT:
                raise ValueError(f"{value} is too large; at most {LARGEST_FLOAT:g}")

    @property
    def finite(self) -> tuple[float, ...]:
        """Values that are numbers, without NaN and infinities."""
        return tuple(value for value in self.values.values() if math.isfinite(value))


Processes = Collection[Mapping[str, Series]]
"""What each process (repeat of a trial) gave, by metric."""


def samples(processes: Processes, metric: str) -> tuple[tuple[float, ...], ...]:
    """process -> finite steps of one metric; processes without any are left out."""
    found = (one[metric].finite for one in processes if metric in one)
    return tuple(values for values in found if values)


def metric_names(processes: Processes) -> tuple[str, ...]:
    """All metrics that a process has, in their first order."""
    return tuple(dict.fromkeys(name for one in processes for name in one))


LOSS: Final = "loss"
STEP_TIME: Final = "step_time_seconds"
TFLOPS: Final = "tflops_per_gpu"
TOKENS: Final = "tokens_per_second_per_gpu"
ENERGY: Final = "joules_per_token"
ALLOCATED: Final = "peak_allocated_bytes"
ACTIVE: Final = "peak_active_bytes"
RESERVED: Final = "peak_reserved_bytes"
NVML: Final = "peak_nvml_used_bytes"

PEAKS: Final = {ALLOCATED: "allocated", ACTIVE: "active", RESERVED: "reserved", NVML: "nvml_used"}
"""Peaks of a rank: metric -> field of MemoryPeak."""

TIME_NOISE: Final = {Device.CUDA: 0.01, Device.CPU: 0.05}
"""Usual relative standard deviation between processes: 1 % on one GPU node, 5 % on a shared CPU."""
SESSION_NOISE: Final = 0.02
"""Relative standard deviation between sessions that is assumed where few were seen: "diurnal 1-2%
throughput variation based on time-of-day" (The Llama 3 Herd of Models, section 3.3.4, arXiv
2407.21783), the whole of it taken as the standard deviation."""


class Better(StrEnum):
    """Which way is an improvement."""

    HIGHER = "higher"
    LOWER = "lower"


class Metric(Struct, frozen=True, kw_only=True):
    """One metric. limit: how far it may worsen (relative); floor: from which difference on (in its
    unit); memory_noise: what is assumed between processes."""

    name: str
    better: Better
    limit: float
    floor: float = 0.0
    memory_noise: float | None = None

    @property
    def timing(self) -> bool:
        """Whether it depends on time, so that an unstable process says nothing about it."""
        return self.memory_noise is None

    def on(self, device: Device) -> "Metric":
        """The metric as it is judged on `device`: every byte of a CPU counts."""
        exact = device is Device.CPU and not self.timing
        return replace(self, floor=0.0, memory_noise=0.0) if exact else self

    def assumed_noise(self, device: Device) -> Noise:
        """What is assumed where little is seen. Bytes do not depend on the day."""
        if self.memory_noise is not None:
            return Noise(process=self.memory_noise)
        return Noise(process=TIME_NOISE[device], session=SESSION_NOISE)

    def show(self, value: float) -> str:
        """A value with its unit, where the name does not say it."""
        if self.name.partition(".")[0].endswith("_bytes"):
            return human_bytes(value)
        if self.name == STEP_TIME:
            return f"{value:.4g} s"
        return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


_FLOOR: Final = 64 * MIB


def _memory(name: str, limit: float, noise: float) -> Metric:
    return Metric(name=name, better=Better.LOWER, limit=limit, floor=_FLOOR, memory_noise=noise)


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric(name=TFLOPS, better=Better.HIGHER, limit=0.05),
        Metric(name=TOKENS, better=Better.HIGHER, limit=0.05),
        Metric(name=STEP_TIME, better=Better.LOWER, limit=0.05),
        Metric(name=ENERGY, better=Better.LOWER, limit=0.05),
        _memory(ALLOCATED, 0.02, 0.001),
        _memory(ACTIVE, 0.02, 0.001),
        _memory(RESERVED, 0.05, 0.005),
        _memory(NVML, 0.05, 0.005),
    )
}
LOSS_LIMIT: Final = 0.02


def find_metric(name: str) -> Metric | None:
    """The metric called `name`; one of a pipeline stage is called ``NAME.stage2``."""
    base = METRICS.get(name.partition(".stage")[0])
    return None if base is None else replace(base, name=name)


def is_judged(name: str, device: Device) -> bool:
    """Whether a metric is held against its golden on `device`: times of a CPU are shown alone."""
    metric = find_metric(name)
    return device is not Device.CPU or metric is None or not metric.timing


def series_of(result: TrialResult) -> dict[str, Series]:
    """What a trial that was measured gives to compare, by metric."""
    found = _timings(result) | _memory_series(result)
    if result.loss:
        found[LOSS] = _series(_steps(result, len(result.loss)), result.loss)
    return found


def _series(steps: Iterable[int], values: Iterable[float]) -> Series:
    return Series(values=dict(zip(steps, values, strict=True)))


def _timings(result: TrialResult) -> dict[str, Series]:
    """Seconds of a step; model TFLOP/s (recompute not counted) and tokens per second, a GPU, by
    what the framework's own log reports, else derived; joules of one GPU for each of its tokens, by
    the watts that NVML read meanwhile, without hosts, switches and cooling."""
    seconds = result.times.seconds if result.times else ()
    if not seconds:
        return {}
    workload, steps = result.trial["workload"], _steps(result, len(seconds))
    gpus = world_size(workload)
    work, length, batch = {}, workload.get("seq_length"), workload.get("global_batch_size")
    if length and batch:  # a log may not tell them
        work[TOKENS] = length * batch / gpus
    if result.flops is not None:
        work[TFLOPS] = result.flops.model / gpus / 1e12
    found = {STEP_TIME: _series(steps, seconds)}
    for name, amount in work.items():
        # what is derived is not written more precisely than measured
        found[name] = _series(steps, (significant(amount / one, 7) for one in seconds))
    given = result.reported
    rates = {TFLOPS: given.tflops_per_gpu, TOKENS: given.tokens_per_second_per_gpu} if given else {}
    found |= {name: _series(steps, reported) for name, reported in rates.items() if reported}
    watts = result.load.power_watts if result.load else None
    if watts is not None and TOKENS in found:
        energy = {step: significant(watts / rate, 7) for step, rate in found[TOKENS].values.items()}
        found[ENERGY] = Series(values=energy)
    return found


def _memory_series(result: TrialResult) -> dict[str, Series]:
    """Peaks over all ranks and, where there are several pipeline stages, over those of each."""
    peaks: dict[str, tuple[MemoryPeak, ...]] = {"": result.memory}
    stages = sorted({peak.stage for peak in result.memory})
    for stage in stages if len(stages) > 1 else ():
        peaks[f".stage{stage}"] = tuple(p for p in result.memory if p.stage == stage)
    last = _steps(result, len(result.times.seconds) if result.times else 1)[-1:] or (1,)
    found = {
        f"{name}{suffix}": most(ranks, field)
        for suffix, ranks in peaks.items()
        for name, field in PEAKS.items()
    }
    return {name: _series(last, (value,)) for name, value in found.items() if value is not None}


def _steps(result: TrialResult, count: int) -> tuple[int, ...]:
    """Training steps, from 1, of the measured ones: those after warm-up."""
    if result.times and len(result.times.steps) == count:
        return result.times.steps
    first = len(result.times.warmup_seconds) + 1 if result.times else 1
    return tuple(range(first, first + count))
