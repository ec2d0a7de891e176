"""A whole calibration of this CPU."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.hardware.calibration import Calibration, Provenance, load_calibration
from advisor.hardware.catalogue import load_gpu
from harness.calibration import measurement as module
from harness.calibration.bench import kernel_runs as kernels
from harness.calibration.bench.cases import (
    ATTENTION,
    BANDWIDTH,
    HOST_TIMES,
    LATENT_ATTENTION,
    Case,
    CaseKind,
    Journal,
    Sample,
)
from harness.calibration.bench.shapes import BURST, SUSTAINED, preset_cases, with_attention
from harness.calibration.efficiencies import fit
from harness.calibration.measurement import calibrate, smallest, stages
from harness.execution.signals import Stop, StopSignals
from harness.trial.trial import Device


def test_the_smallest_of_every_kind_and_variant() -> None:
    cases = smallest(with_attention(preset_cases(), ("flash", "cudnn")))
    assert len({(case.kind, case.variant) for case in cases}) == len(cases)
    assert {case.variant for case in cases if case.kind is CaseKind.GEMM} == {"tn", "nn", "nt"}
    assert [case.kind for case in cases] == sorted(
        (c.kind for c in cases), key=list(CaseKind).index
    )


def test_what_is_fitted_comes_before_what_is_compared() -> None:
    cases = list(with_attention(preset_cases(), ("flash", "cudnn")))
    core, compared, rest = stages(cases, Device.CUDA)
    assert sorted(case.key for case in (*core, *compared, *rest)) == sorted(c.key for c in cases)
    assert {case.variant for case in compared} == {"cudnn"}
    assert not any(case.variant == "cudnn" for case in (*core, *rest))
    assert stages(cases, Device.CPU) == (cases,)


class Simulated:
    """A bench of a GPU of 600 TFLOP/s and 3 TB/s: a case takes a dozen calls, and 40 ms around
    them. It has no grouped GEMMs."""

    now = 0.0

    def __init__(self, device: Device, *, wanted_seconds: float, hold_seconds: float) -> None:
        self.refused: dict[str, str] = {}
        self.timed: list[Case] = []
        self.wanted, self.hold = wanted_seconds, hold_seconds
        Simulated.last = self

    last: "Simulated"

    def attention_variants(self) -> tuple[str, ...]:
        return "flash", "cudnn"

    def runs(self, case: Case) -> bool:
        return case.num_bytes < 20e9

    def measure(self, case: Case) -> Sample | None:
        self.timed.append(case)
        type(self).reported(len(self.timed))
        seconds = case.flops / 600e12 + case.num_bytes / 3e12 + 5e-6
        Simulated.now += self.hold if case == SUSTAINED else self.wanted + 0.04 + 12 * seconds
        if case.kind is CaseKind.GROUPED_GEMM:
            self.refused[case.key] = "RuntimeError: not on this device"
            return None
        return Sample(case=case, seconds=seconds * (1.1 if case == SUSTAINED else 1.0))

    reported: Callable[[int], None] = staticmethod(lambda _: None)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> type[Simulated]:
    monkeypatch.setattr(kernels, "Bench", Simulated)
    monkeypatch.setattr(Simulated, "now", 0.0)
    return Simulated


def test_a_minute_on_a_gpu_gives_what_matters(tmp_path: Path, simulated: type[Simulated]) -> None:
    journal, reported = Journal(tmp_path / "here.jsonl", {}), []
    finished = module._kernels(
        Device.CUDA, 60.0, 60.0, journal, StopSignals(), reported.append, now=lambda: simulated.now
    )
    assert not finished
    assert 55 < simulated.now < 63
    timed, samples = simulated.last.timed, list(journal.samples.values())
    assert len(timed) == len(set(timed)), "nothing twice"
    assert timed.index(BURST) == timed.index(SUSTAINED) - 1 == len(smallest(timed)) - 1
    kinds = [case.kind for case in timed]
    assert kinds.count(CaseKind.GEMM) > 60
    for kind in (*BANDWIDTH, *LATENT_ATTENTION, *HOST_TIMES, CaseKind.GEMM_FP8, CaseKind.TO_HOST):
        assert kind in kinds
    for kind in ATTENTION:
        flash = {c.sizes[1] for c in timed if c.kind is kind and c.variant == "flash"}
        assert flash >= {2048, 4096, 8192, 16384, 32768}
        both = {c.sizes for c in timed if c.kind is kind and c.variant == "cudnn"}
        assert 5 < len(both) < 15
    assert len([line for line in reported if line.startswith("refused: grouped_gemm")]) == 2
    assert fit(samples).kernel_seconds == pytest.approx(5e-6, rel=0.2)


def test_a_signal_ends_the_measuring_and_the_file_is_written(
    tmp_path: Path, simulated: type[Simulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = lambda count: os.kill(os.getpid(), signal.SIGTERM) if count == 90 else None  # noqa: E731
    monkeypatch.setattr(simulated, "reported", staticmethod(stop))
    before = signal.getsignal(signal.SIGTERM)
    outcome = calibrate(Device.CPU, 600.0, tmp_path / "calibration" / "here.yaml")
    assert outcome.stopped.exit_code == 143
    assert not outcome.finished
    assert len(simulated.last.timed) == 90, "the case under way was finished"
    assert len(journal_of(tmp_path)) > 80
    assert calibration_of(tmp_path).provenance is Provenance.MEASURED
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_before_anything_is_measured(tmp_path, simulated, monkeypatch) -> None:
    stop = lambda _: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(simulated, "reported", staticmethod(stop))
    with pytest.raises(Stop) as stopped:
        calibrate(Device.CPU, 600.0, tmp_path / "calibration" / "here.yaml")
    assert stopped.value.exit_code == 130
    assert not (tmp_path / "calibration" / "here.yaml").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This CPU, calibrated within five seconds."""
    folder = tmp_path_factory.mktemp("calibrated")
    outcome = calibrate(Device.CPU, 5.0, folder / "calibration" / "here.yaml")
    assert outcome is not None
    return folder


def calibration_of(folder: Path) -> Calibration:
    (record,) = (folder / "hardware").iterdir()
    return load_calibration(load_gpu(record.stem, folder), folder)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "calibration" / "here.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_small_budget_gives_a_file_that_the_advisor_loads(folder: Path) -> None:
    calibration = calibration_of(folder)
    assert calibration.name == "here"
    assert calibration.provenance is Provenance.MEASURED
    kinds = {line["kind"] for line in journal_of(folder)[1:]}
    assert kinds >= {"gemm", "norm", "add", "adam", "attention_forward", "attention_backward"}


def test_a_second_run_measures_nothing_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = journal_of(folder)
    said: list[str] = []
    monkeypatch.setattr(module, "smallest", lambda _: ())
    ticks: list[tuple[int, int]] = []
    file = folder / "calibration" / "here.yaml"
    calibrate(Device.CPU, 1.0, file, said.append, lambda *counts: ticks.append(counts))
    after = journal_of(folder)
    assert [timed for timed, _ in ticks] == list(range(len(before), len(after)))
    assert len({total for _, total in ticks}) <= 1
    assert after[: len(before)] == before
    keys = [(line["kind"], line["variant"], tuple(line["sizes"])) for line in after[1:]]
    assert len(keys) == len(set(keys))
    assert said[0].startswith(f"continues with {len(before) - 1} samples")


def test_without_a_gpu_cuda_is_refused(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match="torch sees no CUDA GPU here"):
        calibrate(Device.CUDA, 1.0, tmp_path / "mine.yaml")
    assert list(tmp_path.iterdir()) == []
