"""What the head of a calibration says besides its numbers."""

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from harness.calibration.bench.cases import ATTENTION, LATENT_ATTENTION, Case, CaseKind, Sample
from harness.calibration.bench.shapes import BURST, SUSTAINED
from harness.calibration.calibration_file import HardwareRecord
from harness.calibration.efficiencies import fit
from harness.calibration.reference import DeviceFacts, Reference, reference
from harness.calibration.remarks import Lasting, lasting, remarks
from harness.trial.result import GpuLoad

_FACTS = {"is_cpu": False, "memory_bytes": 1, "processors": 132, "compute_capability": 9.0}
H200 = reference(DeviceFacts(name="NVIDIA H200", **_FACTS), ())
LOAD = GpuLoad(
    sm_clock_mhz=1755.0,
    max_sm_clock_mhz=1980,
    power_watts=689.7,
    throttle_reasons=("gpu_idle", "sw_power_cap"),
)


def said(samples: list[Sample], relative_to: Reference = H200) -> str:
    return "\n".join(remarks(relative_to, fit(samples), samples))


def at(rate: float, kind: CaseKind, *sizes: int, variant: str = "") -> Sample:
    case = Case(kind=kind, sizes=sizes, variant=variant)
    return Sample(case=case, seconds=case.work / rate)


def test_only_the_reference_is_named_of_nothing() -> None:
    (line,) = said([]).splitlines()
    words = f"efficiencies are fractions of the peaks in hardware/{H200.gpu.name}.yaml"
    assert line.startswith(words)


def test_a_device_without_a_datasheet() -> None:
    gpu = load_gpu("H200")
    record = HardwareRecord(name=gpu.name, datasheet=H200.record.datasheet)
    unknown = Reference(gpu=gpu, record=record, base=load_calibration(gpu), measured=True)
    assert "this device has no datasheet" in said([], unknown)


def test_cudnn_with_flash_where_both_ran() -> None:
    """Three sizes of both, at 1.1, 1.2 and 1.3 of flash; a fourth ran in one of them alone."""
    found = []
    for kind in ATTENTION:
        for number, faster in enumerate((1.1, 1.2, 1.3), start=1):
            sizes = (1, 4096 * number, 8, 8, 128)
            found.append(at(500e12, kind, *sizes, variant="flash"))
            found.append(at(500e12 * faster, kind, *sizes, variant="cudnn"))
        found.append(at(9e14, kind, 1, 512, 8, 8, 128, variant="cudnn"))
    text = said(found)
    assert "attention: flash attention, as the native backend runs it" in text
    assert (
        "cuDNN attention compared with flash (not in the fit): "
        "forward 1.20 times as fast (3 shapes), backward 1.20 times as fast (3 shapes)"
    ) in text
    assert "cuDNN attention compared" not in said([s for s in found if s.case.variant == "flash"])


def test_kinds_without_a_constant_are_reported() -> None:
    found = [
        at(400e12, CaseKind.GROUPED_GEMM, 8, 4096, 4096, 4096, variant="grouped"),
        at(300e12, CaseKind.GROUPED_GEMM, 8, 4096, 4096, 4096, variant="one_by_one"),
        at(450e12, LATENT_ATTENTION[0], 1, 4096, 16, 192, 128),
        at(350e12, LATENT_ATTENTION[1], 1, 4096, 16, 192, 128),
    ]
    text = said(found)
    assert "large expert GEMMs: grouped 400 TFLOP/s, one by one 300 TFLOP/s;" in text
    assert (
        "latent attention (MLA), large shapes: forward 450 TFLOP/s, backward 350 TFLOP/s;" in text
    )
    assert text.count("measured, but not used by the fit") == 2
    assert fit(found).of == {}


def test_the_hosts_times() -> None:
    launch = Sample(case=Case(kind=CaseKind.HOST_LAUNCH, sizes=(256,)), seconds=4.2e-6)
    layers = [
        Sample(case=Case(kind=CaseKind.HOST_LAYER, sizes=(64, 256), variant=name), seconds=seconds)
        for name, seconds in (("dense", 1.234e-3), ("moe", 3e-3))
    ]
    assert (
        "host: 4.2 µs to queue a kernel; forward and backward of a native layer: "
        "dense 1.23 ms, moe 3.00 ms"
    ) in said([launch, *layers])
    replayed = Sample(
        case=Case(kind=CaseKind.HOST_REPLAY, sizes=(64, 256), variant="dense"), seconds=2e-3
    )
    assert said([*layers, replayed]).endswith("; with a replay of the whole layer: dense 2.00 ms")
    assert said([replace(launch, seconds=5e-6)]).endswith("host: 5.0 µs to queue a kernel")


FAST = Sample(case=BURST, seconds=2.7e-3)


@pytest.mark.parametrize(("seconds", "ratio"), [(3.0e-3, 0.9), (2.7e-3, 1.0), (2.5e-3, 1.0)])
def test_the_ratio_is_of_one_gemm_and_never_more_than_one(seconds: float, ratio: float) -> None:
    held = Sample(case=SUSTAINED, seconds=seconds)
    assert lasting([FAST, held]) == Lasting(ratio=pytest.approx(ratio), load=GpuLoad())
    assert lasting([FAST]) is lasting([held]) is lasting([]) is None, "it takes both"


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (GpuLoad(), ""),
        (GpuLoad(sm_clock_mhz=1755.0), ", SM clock 1,755 MHz"),
        (LOAD, ", SM clock 1,755 of 1,980 MHz, 690 W, sw_power_cap"),
    ],
)
def test_words(load: GpuLoad, words: str) -> None:
    assert Lasting(ratio=0.931, load=load).words == f"sustained 0.93 of the burst rate{words}"
