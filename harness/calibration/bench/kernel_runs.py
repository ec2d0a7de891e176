"""Times the kernel of a case, by the clock that its kind is timed with."""

from contextlib import suppress
from typing import Final

import torch

from harness.calibration.bench.cases import (
    HOST_COPIES,
    HOST_TIMES,
    LATENT_ATTENTION,
    Case,
    CaseKind,
    Sample,
)
from harness.calibration.bench.kernel_calls import CALLS, FOOTPRINT, HOST_CALLS, Inputs
from harness.calibration.bench.timer import Call, Timing, time_call, time_queueing, time_sustained
from harness.measure.nvml import open_current_gpu
from harness.trial.result import GpuLoad
from harness.trial.trial import Device

_GRAPHED: Final = (
    CaseKind.GEMM,
    CaseKind.GEMM_FP8,
    CaseKind.NORM,
    CaseKind.ADD,
    CaseKind.SWIGLU,
    CaseKind.COPY,
)
ON_A_GPU: Final = (
    *HOST_COPIES,
    *HOST_TIMES,
    *LATENT_ATTENTION,
    CaseKind.SUSTAINED_GEMM,
    CaseKind.GROUPED_GEMM,
)
"""On a CPU there is nothing to copy to or to queue for, its attention has no kernel for values of
another width, and experts take it minutes."""
_FP8_CAPABILITY: Final = (8, 9)


class Bench:
    """Kernels of one device; `refused`: why a case gave no sample, by its key."""

    def __init__(
        self, device: Device, *, wanted_seconds: float = 0.1, hold_seconds: float = 5.0
    ) -> None:
        self.device = device
        self.inputs = Inputs(device)
        self.refused: dict[str, str] = {}
        self._wanted_seconds, self._hold_seconds = wanted_seconds, hold_seconds

    def attention_variants(self) -> tuple[str, ...]:
        """Implementations of flash attention that torch has here, the native backend's first."""
        return ("flash", "cudnn") if self.device is Device.CUDA else ("torch",)

    def runs(self, case: Case) -> bool:
        """Whether the device has such a kernel and room for it."""
        if case.kind is CaseKind.GEMM_FP8 and not _has_fp8(self.device):
            return False
        if case.kind in ON_A_GPU and self.device is Device.CPU:
            return False
        return case.num_bytes * FOOTPRINT <= self.inputs.limits.memory_bytes

    def measure(self, case: Case) -> Sample | None:
        """Time a case; None where torch refuses it (an old version, a head size, no memory).

        Whatever is raised is this case's alone: the others are timed.
        """
        try:
            timing, load = self._time(case, CALLS[case.kind](self.inputs, case))
        except Exception as error:
            self.refused[case.key] = f"{type(error).__name__}: {error}".splitlines()[0]
            if self.device is Device.CUDA:
                with suppress(RuntimeError):
                    torch.cuda.empty_cache()
            return None
        return Sample(
            case=case, seconds=timing.seconds, spread=timing.spread, runs=timing.runs, load=load
        )

    def _time(self, case: Case, call: Call) -> tuple[Timing, GpuLoad | None]:
        """By the clock that the case's kind is timed with."""
        if case.kind is CaseKind.SUSTAINED_GEMM:
            gpu = open_current_gpu()
            return time_sustained(call, self.device, hold_seconds=self._hold_seconds, gpu=gpu)
        if case.kind in HOST_TIMES:
            return time_queueing(call, self.device, calls=HOST_CALLS[case.kind]), None
        graph = case.kind in _GRAPHED
        wanted = self._wanted_seconds
        return time_call(call, self.device, wanted_seconds=wanted, graph=graph), None


def _has_fp8(device: Device) -> bool:
    if device is Device.CPU or not hasattr(torch, "_scaled_mm"):
        return False
    return torch.cuda.get_device_capability() >= _FP8_CAPABILITY
