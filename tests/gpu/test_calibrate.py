"""What only a GPU can show of harness.calibrate."""

from pathlib import Path

import pytest
import torch

from advisor.cost.calibration import Provenance
from harness.calibrate.bench.cases import ATTENTION, Case, Kind
from harness.calibrate.bench.kernels import Bench
from harness.calibrate.bench.timer import time_call
from harness.calibrate.measured import calibrate
from harness.trial import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture
def bench() -> Bench:
    return Bench(Device.CUDA, wanted_seconds=0.05)


@pytest.mark.parametrize("variant", ["tn", "nn", "nt"])
def test_a_large_gemm_reaches_a_plausible_rate(bench: Bench, variant: str) -> None:
    sample = bench.measure(Case(kind=Kind.GEMM, sizes=(8192, 8192, 8192), variant=variant))
    assert sample is not None
    assert 2e13 < sample.rate < 3e15


def test_fp8_is_no_slower_than_bf16(bench: Bench) -> None:
    case = Case(kind=Kind.GEMM_FP8, sizes=(8192, 8192, 8192))
    if not bench.runs(case):
        pytest.skip("no 8-bit tensor cores")
    wide = bench.measure(Case(kind=Kind.GEMM, sizes=case.sizes, variant="tn"))
    narrow = bench.measure(case)
    assert wide is not None
    assert narrow is not None
    assert narrow.rate > wide.rate


@pytest.mark.parametrize("kind", ATTENTION)
def test_flash_attention_with_and_without_groups(bench: Bench, kind: Kind) -> None:
    for groups in (32, 8):
        sample = bench.measure(Case(kind=kind, sizes=(1, 4096, 32, groups, 128), variant="flash"))
        assert sample is not None
        assert sample.rate > 1e13


def test_short_kernels_are_timed_without_gaps(bench: Bench) -> None:
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    plain = time_call(lambda _: x + x, Device.CUDA, wanted_seconds=0.02)
    graphed = time_call(lambda _: x + x, Device.CUDA, wanted_seconds=0.02, graph=True)
    assert graphed.seconds <= plain.seconds * 1.1


@pytest.mark.parametrize("kind", [Kind.TO_DEVICE, Kind.TO_HOST, Kind.COPY])
def test_copies(bench: Bench, kind: Kind) -> None:
    sample = bench.measure(Case(kind=kind, sizes=(2**28,)))
    assert sample is not None
    assert sample.rate > 1e9


def test_a_small_budget_gives_a_calibration(tmp_path: Path) -> None:
    outcome = calibrate(Device.CUDA, 20.0, tmp_path / "calibration" / "here.yaml")
    assert outcome is not None
    assert outcome.calibration.provenance is Provenance.MEASURED
    for field in ("gemm_efficiency", "attention_forward_efficiency", "bandwidth_efficiency"):
        assert outcome.notes[field].startswith("measured")
        assert 0.1 < getattr(outcome.calibration, field) <= 1.0
    assert 5e-7 < outcome.calibration.kernel_seconds < 2e-5
