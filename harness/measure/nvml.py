"""Clocks, power, throttle reasons and neighbours of one GPU through NVML, where it answers. Every
question may be refused (no driver, no permission, a MIG slice, an old card): its answer is then
None, which means unknown and never zero."""

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Final, TypeVar

from msgspec import Struct

from harness.trial.result import GpuLoad

T = TypeVar("T")

_REASONS: Final = (
    "gpu_idle applications_clocks_setting sw_power_cap hw_slowdown sync_boost sw_thermal_slowdown "
    "hw_thermal_slowdown hw_power_brake_slowdown display_clock_setting"
)
THROTTLE_REASONS: Final = {1 << bit: name for bit, name in enumerate(_REASONS.split())}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason…)."""


class GpuReading(Struct, frozen=True, kw_only=True):
    """State of a GPU at one moment; MHz, watts, degrees Celsius, bytes."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    used_bytes: int | None = None


class GpuIdentity(Struct, frozen=True, kw_only=True):
    """What does not change while a trial runs."""

    name: str | None = None
    driver: str | None = None
    power_limit_watts: float | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    ecc_enabled: bool | None = None
    uncorrected_ecc_errors: int | None = None
    mig_enabled: bool | None = None
    persistence_mode: bool | None = None


class NvmlGpu:
    """One GPU; made by `open_gpu`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def reading(self) -> GpuReading:
        """The state now; about a millisecond."""
        nvml, memory = self._nvml, self._memory()
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # its name before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return GpuReading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_watts=self._watts("nvmlDeviceGetPowerUsage"),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=None if bits is None else throttle_reasons(bits),
            used_bytes=None if memory is None else int(memory.used),
        )

    def identity(self) -> GpuIdentity:
        """Name, driver, limits and error counts."""
        nvml = self._nvml
        ecc, mig, persistence = (
            self._ask(f"nvmlDeviceGet{mode}") for mode in ("EccMode", "MigMode", "PersistenceMode")
        )
        kinds = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
        return GpuIdentity(
            name=_text(self._ask("nvmlDeviceGetName")),
            driver=_text(_quiet(lambda: nvml.nvmlSystemGetDriverVersion())),
            power_limit_watts=self._watts("nvmlDeviceGetEnforcedPowerLimit"),
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            max_memory_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            ecc_enabled=None if ecc is None else bool(ecc[0]),
            uncorrected_ecc_errors=_quiet(
                lambda: int(
                    nvml.nvmlDeviceGetTotalEccErrors(
                        self._handle, *(getattr(nvml, kind) for kind in kinds)
                    )
                )
            ),
            mig_enabled=None if mig is None else bool(mig[0]),
            persistence_mode=None if persistence is None else bool(persistence),
        )

    def other_processes(self) -> int | None:
        """Compute processes on the GPU next to this one. A container's process numbers are not the
        driver's: with a CUDA context of our own, one of those listed is this process."""
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else max(0, len(processes) - 1)

    def _memory(self) -> Any:
        """By the second version of the question, whose `used` leaves out what the driver keeps for
        itself, as torch's total does; by the first where there is no other."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        asked = None if version is None else self._ask("nvmlDeviceGetMemoryInfo", version)
        return self._ask("nvmlDeviceGetMemoryInfo") if asked is None else asked

    def _watts(self, function: str) -> float | None:
        milliwatts = self._ask(function)
        return None if milliwatts is None else milliwatts / 1000

    def _ask(self, function: str, *arguments: Any) -> Any:
        return _quiet(lambda: getattr(self._nvml, function)(self._handle, *arguments))


def load_of(readings: Sequence[GpuReading], gpu: NvmlGpu | None) -> GpuLoad | None:
    """Readings of `gpu` over a stretch of work as one state; None of none."""
    if not readings or gpu is None:
        return None
    clocks = [one.sm_clock_mhz for one in readings if one.sm_clock_mhz]
    watts = [one.power_watts for one in readings if one.power_watts]
    degrees = [one.temperature_celsius for one in readings if one.temperature_celsius]
    known = [one.throttle_reasons for one in readings if one.throttle_reasons is not None]
    return GpuLoad(
        sm_clock_mhz=median(clocks) if clocks else None,
        max_sm_clock_mhz=gpu.identity().max_sm_clock_mhz,
        power_watts=round(median(watts), 1) if watts else None,
        temperature_celsius=max(degrees, default=None),
        throttle_reasons=tuple(sorted(set().union(*known))) if known else None,
    )


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons set in NVML's mask; an unknown bit by its number."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_REASONS)
    return (*known, hex(rest)) if rest else tuple(known)


def open_gpu(uuid: str | None = None, pci_bus_id: str | None = None) -> NvmlGpu | None:
    """The GPU of a UUID, else of a PCI bus id, else the only visible one; None without NVML."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    if _quiet(lambda: nvml.nvmlInit() or True) is None:
        return None
    handle = _handle(nvml, "nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        handle = _handle(nvml, "nvmlDeviceGetHandleByPciBusId", pci_bus_id)
    if handle is None and uuid is None and pci_bus_id is None:
        alone = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if alone and _quiet(lambda: nvml.nvmlDeviceGetCount()) == 1:
            handle = _quiet(lambda: nvml.nvmlDeviceGetHandleByIndex(0))
    return None if handle is None else NvmlGpu(nvml, handle)


def open_current_gpu() -> NvmlGpu | None:
    """The GPU that torch works on now; None where there is none or NVML does not know it."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = getattr(properties, "uuid", None)
    text = None if uuid is None else str(uuid)
    if text is not None and not text.startswith(("GPU-", "MIG-")):
        text = f"GPU-{text}"
    return open_gpu(text, _pci_bus_id(properties)) or open_gpu()


def _pci_bus_id(properties: Any) -> str | None:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in parts:
        return None
    domain, bus, device = (int(part) for part in parts if part is not None)
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def _handle(nvml: Any, function: str, name: str | None) -> Any:
    """The binding takes bytes in some releases, text in others."""
    if name is None:
        return None
    find = getattr(nvml, function)
    handle = _quiet(lambda: find(name))
    return _quiet(lambda: find(name.encode())) if handle is None else handle


def _quiet(question: Callable[[], T]) -> T | None:
    """The answer; None where the driver, or an older binding, has none. NVMLError is the binding's
    own class, so that nothing narrower can be named without it."""
    with suppress(Exception):
        return question()
    return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
