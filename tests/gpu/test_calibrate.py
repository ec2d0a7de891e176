"""What only a GPU can show of harness.calibration."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from advisor.hardware.calibration import Provenance
from harness.calibration.bench.cases import ATTENTION, LATENT_ATTENTION, Case, CaseKind
from harness.calibration.bench.kernel_runs import Bench
from harness.calibration.bench.shapes import BURST, GROUPED_VARIANTS, HOST_CASES, SUSTAINED
from harness.calibration.bench.timer import time_call
from harness.trial.trial import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture
def bench() -> Bench:
    return Bench(Device.CUDA, wanted_seconds=0.05, hold_seconds=1.0)


@pytest.mark.parametrize("variant", ["tn", "nn", "nt"])
def test_a_large_gemm_reaches_a_plausible_rate(bench: Bench, variant: str) -> None:
    sample = bench.measure(Case(kind=CaseKind.GEMM, sizes=(8192, 8192, 8192), variant=variant))
    assert 2e13 < sample.rate < 3e15


def test_fp8_is_no_slower_than_bf16(bench: Bench) -> None:
    case = Case(kind=CaseKind.GEMM_FP8, sizes=(8192, 8192, 8192))
    if not bench.runs(case):
        pytest.skip("no 8-bit tensor cores")
    wide = bench.measure(Case(kind=CaseKind.GEMM, sizes=case.sizes, variant="tn"))
    narrow = bench.measure(case)
    assert narrow.rate > wide.rate


@pytest.mark.parametrize("kind", ATTENTION)
def test_flash_attention_with_and_without_groups(bench: Bench, kind: CaseKind) -> None:
    for groups in (32, 8):
        sample = bench.measure(Case(kind=kind, sizes=(1, 4096, 32, groups, 128), variant="flash"))
        assert sample.rate > 1e13


def test_short_kernels_are_timed_without_gaps(bench: Bench) -> None:
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    plain = time_call(lambda _: x + x, Device.CUDA, wanted_seconds=0.02)
    graphed = time_call(lambda _: x + x, Device.CUDA, wanted_seconds=0.02, graph=True)
    assert graphed.seconds <= plain.seconds * 1.1


@pytest.mark.parametrize("kind", [CaseKind.TO_DEVICE, CaseKind.TO_HOST, CaseKind.COPY])
def test_copies(bench: Bench, kind: CaseKind) -> None:
    sample = bench.measure(Case(kind=kind, sizes=(2**28,)))
    assert sample.rate > 1e9


@pytest.mark.parametrize("variant", GROUPED_VARIANTS)
def test_experts_at_once_and_one_by_one(bench: Bench, variant: str) -> None:
    case = Case(kind=CaseKind.GROUPED_GEMM, sizes=(8, 1024, 4096, 4096), variant=variant)
    sample = bench.measure(case)
    if sample is None and variant == "grouped":
        pytest.skip(bench.refused[case.key])  # torch._grouped_mm: an old torch, another GPU
    assert sample is not None, bench.refused
    assert 1e13 < sample.rate < 3e15


def test_grouped_gemms_compute_what_single_ones_do(bench: Bench) -> None:
    experts, m, n, k = 3, 48, 64, 32
    rows, weights = bench.inputs.tensor(experts * m, k), bench.inputs.tensor(experts, n, k)
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * m
    if not hasattr(torch, "_grouped_mm") or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no grouped GEMM")
    found = torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    single = torch.cat([part @ own.t() for part, own in zip(rows.split(m), weights, strict=True)])
    torch.testing.assert_close(found, single, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("kind", LATENT_ATTENTION)
def test_attention_of_192_and_128_channels(bench: Bench, kind: CaseKind) -> None:
    """As the native backend runs it, which takes cuDNN's."""
    case = Case(kind=kind, sizes=(1, 4096, 16, 192, 128))
    sample = bench.measure(case)
    if sample is None:
        pytest.skip(bench.refused[case.key])
    assert sample.rate > 1e13


def test_a_held_gemm_is_hardly_faster_than_its_burst(bench: Bench) -> None:
    burst, held = bench.measure(BURST), bench.measure(SUSTAINED)
    assert burst is not None, bench.refused
    assert held is not None, bench.refused
    assert 0.4 < held.rate / burst.rate < 1.1
    load = held.load
    if load.sm_clock_mhz is not None:
        assert 200 < load.sm_clock_mhz <= (load.max_sm_clock_mhz or 4000)
    if load.power_watts is not None:
        assert 50 < load.power_watts < 2000


@pytest.mark.parametrize("case", HOST_CASES, ids=lambda case: case.key)
def test_the_host_queues_in_microseconds(bench: Bench, case: Case) -> None:
    sample = bench.measure(case)
    assert sample is not None, bench.refused
    least, most = (5e-7, 1e-4) if case.kind is CaseKind.HOST_LAUNCH else (1e-4, 0.1)
    assert least < sample.seconds < most


def test_a_small_budget_gives_a_calibration(tmp_path: Path) -> None:
    """In a process of its own: memory that stays here is taken from the tests that follow."""
    path = tmp_path / "calibration" / "here.yaml"
    command = ["calibrate", "--device", "cuda", "--budget", "20s", "--out", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "attention: flash attention, as the native backend runs it" in done.stdout
    assert "of the burst rate" in done.stdout
    values = yaml.safe_load(path.read_text())
    assert values["provenance"] == Provenance.MEASURED
    for field in ("gemm_efficiency", "attention_forward_efficiency", "bandwidth_efficiency"):
        (line,) = [line for line in path.read_text().splitlines() if line.startswith(field)]
        assert "# measured" in line
        assert 0.1 < values[field] <= 1.0
    assert 5e-7 < values["kernel_seconds"] < 2e-5
