"""NVML absent, refusing, and answering; the binding is a stand-in, as CI has no driver."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.measure.nvml import GpuIdentity, GpuReading, load_of, open_current_gpu, open_gpu
from harness.measure.nvml import throttle_reasons as names
from harness.trial.result import GpuLoad


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError("Not Supported")


class Binding(SimpleNamespace):
    """A driver that refuses every call that the test does not give."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            return refuse
        raise AttributeError(name)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(**calls: Any) -> None:
        calls = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"index {index}",
        } | calls
        monkeypatch.setitem(sys.modules, "pynvml", Binding(**calls))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


def test_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu() is None


def test_none_is_opened_without_a_driver_or_where_it_would_be_a_guess(install: Any) -> None:
    install(nvmlInit=refuse)
    assert open_gpu() is None
    install(nvmlDeviceGetCount=lambda: 8)
    assert open_gpu() is None
    install()
    assert open_gpu("GPU-unknown") is None
    if not torch.cuda.is_available():
        assert open_current_gpu() is None


def test_a_gpu_that_refuses_everything_is_unknown_in_everything(install: Any) -> None:
    install()
    gpu = open_gpu()
    assert gpu.reading() == GpuReading()
    assert gpu.identity() == GpuIdentity()
    assert gpu.other_processes() is None


def test_a_reading_in_our_units(install: Any) -> None:
    install(
        nvmlDeviceGetClockInfo=lambda _, clock: {1: 1980, 2: 2619}[clock],
        nvmlDeviceGetPowerUsage=lambda _: 612_500,
        nvmlDeviceGetTemperature=lambda *_: 54,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=3 * 2**30),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4,  # an older driver's name
    )
    gpu = open_gpu()
    assert gpu.reading() == GpuReading(
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        power_watts=612.5,
        temperature_celsius=54,
        throttle_reasons=("sw_power_cap",),
        used_bytes=3 * 2**30,
    )


def test_memory_without_what_the_driver_keeps(install: Any) -> None:
    def ask(_: Any, version: int = 1) -> SimpleNamespace:
        return SimpleNamespace(used=2**30 if version == 2 else 2**30 + 2**29)

    install(nvmlDeviceGetMemoryInfo=ask, nvmlMemory_v2=2)
    gpu = open_gpu()
    assert gpu.reading().used_bytes == 2**30


def test_readings_as_one_state(install: Any) -> None:
    install(nvmlDeviceGetMaxClockInfo=lambda _, clock: 1000 * (1 + clock))
    gpu = open_gpu()
    highest = gpu.identity().max_sm_clock_mhz
    assert highest is not None
    assert load_of((), gpu) is None
    assert load_of((GpuReading(),), None) is None
    assert load_of((GpuReading(),), gpu) == GpuLoad(max_sm_clock_mhz=highest)
    rows = ((1980, 650.0, 50, ()), (1700, 699.0, 58, ("sw_power_cap",)), (1720, 698.0, 57, None))
    names = ("sm_clock_mhz", "power_watts", "temperature_celsius", "throttle_reasons")
    busy = [GpuReading(**dict(zip(names, row, strict=True))) for row in rows]
    assert load_of(busy, gpu) == GpuLoad(
        sm_clock_mhz=1720,
        max_sm_clock_mhz=highest,
        power_watts=698.0,
        temperature_celsius=58,
        throttle_reasons=("sw_power_cap",),
    )
    braked = [GpuReading(throttle_reasons=("hw_slowdown",)), *busy]
    found = load_of(braked, gpu)
    assert found.throttle_reasons == ("hw_slowdown", "sw_power_cap")


def test_identity(install: Any) -> None:
    install(
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda _, clock: 1000 * clock,
        nvmlDeviceGetEccMode=lambda _: [1, 1],
        nvmlDeviceGetTotalEccErrors=lambda *_: 0,
        nvmlDeviceGetMigMode=lambda _: [0, 0],
    )
    gpu = open_gpu()
    assert gpu.identity() == GpuIdentity(
        name="NVIDIA H200",
        driver="580.65.06",
        power_limit_watts=700.0,
        max_sm_clock_mhz=1000,
        max_memory_clock_mhz=2000,
        ecc_enabled=True,
        uncorrected_ecc_errors=0,
        mig_enabled=False,
        persistence_mode=None,
    )


@pytest.mark.parametrize(("listed", "others"), [([], 0), ([7], 0), ([7, 8, 9], 2)])
def test_one_of_the_listed_processes_is_ours(install: Any, listed: list[int], others: int) -> None:
    install(nvmlDeviceGetComputeRunningProcesses=lambda _: listed)
    gpu = open_gpu()
    assert gpu.other_processes() == others


def test_a_uuid_is_found_in_bytes_where_the_binding_wants_bytes(install: Any) -> None:
    def by_uuid(uuid: Any) -> str:
        if not isinstance(uuid, bytes):
            raise NVMLError
        return "found"

    install(nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetName=lambda handle: handle)
    gpu = open_gpu("GPU-1")
    assert gpu.identity().name == "found"


def test_a_uuid_that_is_not_known_falls_back_to_the_bus(install: Any) -> None:
    install(nvmlDeviceGetHandleByPciBusId=lambda bus: bus, nvmlDeviceGetName=lambda handle: handle)
    gpu = open_gpu("MIG-1", "00000000:3B:00.0")
    assert gpu.identity().name == "00000000:3B:00.0"


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0, ()), (0x4 | 0x40, ("sw_power_cap", "hw_thermal_slowdown")), (0x1000, ("0x1000",))],
)
def test_bits_of_the_throttle_mask(bits: int, reasons: tuple[str, ...]) -> None:
    assert names(bits) == reasons
