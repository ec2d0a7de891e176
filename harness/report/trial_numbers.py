"""What a trial, and a setting over its repeats, came to."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.hardware.gpu import Gpu
from harness.base.collections import known
from harness.judge.metrics import PEAKS
from harness.judge.stats import iqr
from harness.trial.result import MemoryPeak, TrialResult, most
from harness.trial.trial import world_size


class Numbers(Struct, frozen=True, kw_only=True):
    """One process, or the median of several; of memory the most. None where it is not known.

    step_spread: IQR of the steps over their median. joules_per_token: of one GPU, by the power that
    NVML read of it. model_tflops_per_gpu counts Megatron's model
    FLOPs, hardware_tflops_per_gpu also what is computed again; mfu and hfu are these over the dense
    peak. Peaks are those of the fullest rank.
    """

    step_time_seconds: float | None = None
    step_spread: float | None = None
    tokens_per_second_per_gpu: float | None = None
    joules_per_token: float | None = None
    model_tflops_per_gpu: float | None = None
    hardware_tflops_per_gpu: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_allocated_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_nvml_used_bytes: int | None = None

    def peak_bytes(self, which: str) -> int | None:
        """The peak called ``allocated``, ``active``, ``reserved`` or ``nvml_used``."""
        found: int | None = getattr(self, f"peak_{which}_bytes")
        return found


def numbers_of(result: TrialResult, gpu: Gpu | None) -> Numbers:
    """Of one trial, whether it was measured or not."""
    memory = peaks(result.memory)
    seconds = result.times.seconds if result.times else ()
    if not seconds:
        return memory
    workload, step = result.trial["workload"], median(seconds)
    gpus = world_size(workload)
    per_gpu = 1 / (step * gpus)
    tokens = workload["seq_length"] * workload["global_batch_size"]
    peak = gpu.peak_flops(Precision(workload["precision"])) if gpu else None
    model, hardware = (
        (result.flops.model * per_gpu, result.flops.hardware * per_gpu)
        if result.flops
        else (None, None)
    )
    return replace(
        memory,
        step_time_seconds=step,
        step_spread=iqr(seconds) / step,
        tokens_per_second_per_gpu=tokens * per_gpu,
        joules_per_token=_over(result.load.power_watts if result.load else None, tokens * per_gpu),
        model_tflops_per_gpu=_over(model, 1e12),
        hardware_tflops_per_gpu=_over(hardware, 1e12),
        mfu=_over(model, peak),
        hfu=_over(hardware, peak),
    )


def peaks(ranks: Sequence[MemoryPeak]) -> Numbers:
    """The four peaks, each of the rank that has most."""
    return Numbers(**{name: most(ranks, field) for name, field in PEAKS.items()})


def over_repeats(processes: Sequence[Numbers]) -> Numbers:
    """Median over processes; of memory the most."""
    found = {}
    for name in Numbers.__struct_fields__:
        values = known(getattr(one, name) for one in processes)
        join = max if name.endswith("_bytes") else median
        found[name] = join(values) if values else None
    return Numbers(**found)


def _over(value: float | None, unit: float | None) -> float | None:
    return None if value is None or unit is None else value / unit
