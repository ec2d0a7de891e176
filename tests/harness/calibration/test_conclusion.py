"""From samples to files that the advisor reads."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.hardware.calibration import Provenance, load_calibration
from advisor.hardware.catalogue import load_gpu
from harness.calibration.bench.cases import ATTENTION, COLLECTIVES, Case, CaseKind, Sample
from harness.calibration.bench.shapes import BURST, SUSTAINED, preset_cases, with_attention
from harness.calibration.calibration_file import CalibrationDocument, hardware_path
from harness.calibration.conclusion import band, conclude
from harness.calibration.reference import DeviceFacts, reference
from harness.trial.result import GpuLoad

ENVIRONMENT: Mapping[str, Any] = {
    "software": {"torch": "2.9.0", "nccl": None},
    "gpus": [{"driver": "580.65"}],
}
H200 = DeviceFacts(
    name="NVIDIA H200",
    is_cpu=False,
    memory_bytes=140 * 2**30,
    processors=132,
    compute_capability=9.0,
)
XEON = DeviceFacts(
    name="Intel(R) Xeon(R) CPU E5-2690 @ 2.60GHz",
    is_cpu=True,
    memory_bytes=64 * 2**30,
    processors=8,
    compute_capability=1.0,
)


@cache
def some_cases() -> tuple[Case, ...]:
    return tuple(c for c in with_attention(preset_cases(), ("flash",))[::18] if c != BURST)


def samples(flops: float = 650e12, stream: float = 3.6e12) -> list[Sample]:
    """A device that reaches `flops` in all matmuls and `stream` in the rest, 4 µs a kernel."""
    return [
        Sample(
            case=case,
            seconds=case.flops / flops
            + (0 if case.flops else case.work / stream)
            + 4e-6 * case.kernels,
        )
        for case in some_cases()
        if case.kind not in COLLECTIVES
    ]


def held(ratio: float, flops: float = 650e12) -> list[Sample]:
    """One GEMM in a burst, and held at `ratio` of its rate."""
    load = GpuLoad(sm_clock_mhz=1755.0, max_sm_clock_mhz=1980.0, power_watts=690.4)
    return [
        Sample(case=BURST, seconds=BURST.flops / flops),
        Sample(case=SUSTAINED, seconds=SUSTAINED.flops / (ratio * flops), load=load),
    ]


def test_a_known_gpu_is_measured_against_its_datasheet(tmp_path: Path) -> None:
    path = tmp_path / "calibration" / "mine.yaml"
    outcome = conclude(samples(), H200, ENVIRONMENT, path)
    gpu = load_gpu("H200", tmp_path)
    assert gpu.calibration == "mine"
    assert replace(gpu, calibration=None) == replace(load_gpu("H200"), calibration=None)
    calibration = load_calibration(gpu, tmp_path)
    assert calibration.name == "mine"
    assert calibration.provenance is Provenance.MEASURED
    # tiles and traffic, which these samples do not have, are 3 % of the advisor's GEMMs
    assert calibration.gemm_efficiency == pytest.approx(1.03 * 650e12 / gpu.bf16_flops, rel=0.03)
    assert calibration.gemm_training_share == calibration.gemm_sustained_share == 1
    assert calibration.fp8_gemm_efficiency == pytest.approx(1.03 * 650 / 1979, rel=0.03)
    assert calibration.bandwidth_efficiency == pytest.approx(3.6e12 / 4.8e12, rel=0.03)
    assert calibration.kernel_seconds == pytest.approx(4e-6, rel=0.3)
    assert calibration.step_time_error == 0.10, "an exact machine; steps scatter more than kernels"
    assert outcome.hardware_path == tmp_path / "hardware" / f"{gpu.name}.yaml"


def test_lasting_load_is_reported_and_scales_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    burst = conclude(samples(), H200, ENVIRONMENT, path).calibration
    outcome = conclude(samples() + held(0.9), H200, ENVIRONMENT, path)
    for field in ("gemm_efficiency", "attention_forward_efficiency", "bandwidth_efficiency"):
        fitted = getattr(outcome.calibration, field)
        assert fitted == pytest.approx(getattr(burst, field), rel=0.01)
    said = "# sustained 0.90 of the burst rate, SM clock 1,755 of 1,980 MHz, 690 W"
    assert said in path.read_text()


def test_the_fitted_attention_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    slower = [
        replace(s, case=replace(s.case, variant="cudnn"), seconds=s.seconds / 1.25)
        for s in samples()
        if s.case.kind in ATTENTION
    ]
    outcome = conclude(samples() + slower, H200, ENVIRONMENT, path)
    assert outcome.calibration.attention_forward_efficiency == pytest.approx(650 / 989, rel=0.03)
    words = "flash attention, as the native backend runs it"
    assert outcome.notes["attention_forward_efficiency"].endswith(words)
    assert f"# attention: {words}\n" in path.read_text()
    assert (
        "cuDNN attention compared with flash (not in the fit): forward 1.25 times"
        in path.read_text()
    )
    flash = sum(s.case.kind is CaseKind.ATTENTION_FORWARD for s in samples())
    assert f"attention_forward: {flash} shapes" in outcome.calibration.fitted_on
    assert outcome.remarks


def test_what_was_not_measured_is_taken_over_and_said(tmp_path: Path) -> None:
    outcome = conclude(samples(), H200, ENVIRONMENT, tmp_path / "mine.yaml")
    base = load_calibration(load_gpu("H200"))
    for field in (
        *("nvlink_efficiency", "internode_efficiency", "hidden_fraction", "step_seconds"),
        "collective_seconds",
    ):
        assert getattr(outcome.calibration, field) == getattr(base, field)
        assert outcome.notes[field] == f"not measured here: value of `{base.name}`"
    assert outcome.notes["gemm_efficiency"].startswith("measured: ")


def test_the_file_tells_device_date_environment_and_errors(tmp_path: Path) -> None:
    conclude(samples(), H200, ENVIRONMENT, tmp_path / "mine.yaml")
    text = (tmp_path / "mine.yaml").read_text()
    assert "# device: NVIDIA H200\n" in text
    assert "# software.torch: 2.9.0\n" in text
    assert "# gpus.0.driver: 580.65\n" in text
    assert "nccl" not in text, "what is unknown is not said"
    values = yaml.safe_load(text)
    assert "each fifth of the shapes left out of the fit in turn" in values["left_out_error"]
    assert values["fitted_on"][0].startswith("NVIDIA H200, 20")
    assert any(row.startswith("gemm: ") for row in values["fitted_on"])


def test_a_cpu_is_measured_against_its_own_best_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calibration" / "mine.yaml"
    outcome = conclude(samples(1e11, 1e10), XEON, ENVIRONMENT, path)
    assert outcome.hardware == "CPU-Intel-Xeon-E5-2690"
    gpu = load_gpu(outcome.hardware, tmp_path)
    assert gpu.bf16_flops == pytest.approx(1e11, rel=0.02)
    assert gpu.memory_bandwidth_bytes_per_second == pytest.approx(1e10, rel=0.02)
    assert gpu.memory_bytes == 64 * 2**30
    calibration = load_calibration(gpu, tmp_path)
    assert 0.9 < calibration.gemm_efficiency <= 1.0
    record = outcome.hardware_path.read_text()
    assert "no datasheet value: best GEMM measured here, gemm:" in record
    assert "this device has no datasheet" in path.read_text()


def test_an_unknown_gpu_is_measured_against_its_own_best() -> None:
    slice_of_one = replace(H200, name="NVIDIA H200 MIG 1g.18gb")
    relative_to = reference(slice_of_one, samples())
    assert relative_to.measured
    assert relative_to.record.name == "GPU-H200-MIG-1g-18gb"
    assert relative_to.base.name == "datasheet"


def test_more_than_the_datasheet_is_cut_and_said(tmp_path: Path) -> None:
    outcome = conclude(samples(2000e12), H200, ENVIRONMENT, tmp_path / "mine.yaml")
    assert outcome.calibration.gemm_efficiency == 1.0
    assert "limited to 1 (measured: 2.0" in outcome.notes["gemm_efficiency"]


@pytest.mark.parametrize(
    ("one_node", "field", "peak"),
    [(True, "nvlink_efficiency", 450e9), (False, "internode_efficiency", 50e9)],
)
def test_collectives_calibrate_the_link_they_ran_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_node: bool, field: str, peak: float
) -> None:
    rate, ranks = 0.6 * peak, 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks if one_node else 8))
    gathers = [
        Sample(case=case, seconds=case.work * (ranks - 1) / ranks / rate)
        for case in preset_cases()
        if case.kind is CaseKind.ALL_GATHER
    ]
    outcome = conclude(samples() + gathers, H200, ENVIRONMENT, tmp_path / "m.yaml", ranks)
    assert getattr(outcome.calibration, field) == pytest.approx(0.6, rel=0.02)
    assert outcome.notes[field].startswith("measured")


def test_too_little_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="before a GEMM was timed"):
        conclude([], XEON, ENVIRONMENT, tmp_path / "mine.yaml")
    one = [Sample(case=Case(kind=CaseKind.GEMM, sizes=(64, 64, 64)), seconds=1e-3)]
    with pytest.raises(UserError, match="before a memory-bound kernel was timed"):
        conclude(one, XEON, ENVIRONMENT, tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


def test_the_band_covers_nine_of_ten_and_is_never_narrow() -> None:
    assert band([0.01] * 10) == 0.10
    assert band([0.2, -0.2, 0.2, -0.4] * 5) == pytest.approx(0.4)
    assert band([]) == pytest.approx(0.30)


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 1.234567e-7, 3.0, 12345.678])
def test_numbers_are_numbers_for_yaml(seconds: float) -> None:
    h100 = replace(load_calibration(load_gpu("H100")), own_errors=())
    calibration = replace(h100, step_seconds=seconds)
    document = CalibrationDocument(
        calibration=calibration, notes={}, device="d", date="2026-01-01", environment={}
    )
    value = yaml.safe_load(document.text())["step_seconds"]
    assert isinstance(value, float | int)
    assert value == pytest.approx(seconds, rel=0.005)


def test_the_record_lies_where_config_dir_looks() -> None:
    inside = Path("x/calibration/mine.yaml")
    assert hardware_path(inside, "CPU-1") == Path("x/hardware/CPU-1.yaml")
    assert hardware_path(Path("x/mine.yaml"), "CPU-1") == Path("x/mine.hardware.yaml")
