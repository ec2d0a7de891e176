"""Trials of a toy model, plans of many settings, and a launcher of stub trials."""

import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.job.layout import ParallelLayout
from harness.cli.main import main
from harness.execution import launch
from harness.execution.launchers.local import LocalLauncher
from harness.execution.progress import Progress
from harness.execution.runner import Runner
from harness.trial.result import TrialStatus
from harness.trial.store import RunFolder
from harness.trial.trial import (
    Backend,
    Device,
    MeasurementPlan,
    PlannedSetting,
    Prediction,
    RunPlan,
    Trial,
    Workload,
)
from tests.advisor.jobs import batches
from tests.advisor.toys import toy_model
from tests.harness import drive
from tests.harness.drive import STUB

MODEL = toy_model(2, 64, 128, 4, 2, vocab_size=1000, max_position_embeddings=128)
WORKLOAD = Workload(
    model=MODEL,
    layout=ParallelLayout(),
    **batches(32, 1, 2),
    precision=Precision.BF16,
    recompute="none",
    backend=Backend.NATIVE,
    device=Device.CPU,
)
PREDICTION = Prediction(
    step_time_seconds=0.012,
    peak_allocated_bytes=1000,
    peak_reserved_bytes=1200,
    saved_bytes_per_layer=100,
    replayed_flops_per_layer=0,
    calibration="toy",
)
RAN: dict[str, Any] = {
    **{"name": "x", "status": TrialStatus.OK, "trial": {}, "environment": {}},
    **{"started_at": "", "wall_seconds": 1.0},
}
"""What every result of a trial says."""
TRIAL = Trial(workload=WORKLOAD, measurement=MeasurementPlan(timeout_seconds=20.0))

MakePlan = Callable[..., RunPlan]
MakeRunner = Callable[..., Runner]
Harness = Callable[..., CompletedProcess[str]]


@pytest.fixture
def harness_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Harness:
    """The command `harness` in a folder, without the start of a process."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def call(folder: Path, *words: str, **variables: str) -> CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            for name, value in variables.items():
                patch.setenv(name, value)
            capsys.readouterr()
            code = main(words)
        printed = capsys.readouterr()
        return CompletedProcess(words, code, printed.out, printed.err)

    return call


@pytest.fixture
def stubbed_in(harness_in: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Harness:
    """The same with stub trials, each of which takes 20 ms and ends as `faults` says."""

    def call(
        folder: Path, *words: str, faults: Mapping[str, str] | None = None, **variables: str
    ) -> CompletedProcess[str]:
        path = tmp_path / "faults.json"
        path.write_text(json.dumps(faults or {}))
        monkeypatch.setattr(launch, "Runner", drive.stubbed)
        return harness_in(folder, *words, STUB_FAULTS=str(path), **variables)

    return call


@pytest.fixture
def trial() -> Trial:
    return TRIAL


@pytest.fixture
def prediction() -> Prediction:
    return PREDICTION


@pytest.fixture
def make_plan() -> MakePlan:
    """`settings` settings of so many repeats; ranks in their order."""

    def make(settings: int = 3, repeats: int = 1, **measure: float) -> RunPlan:
        measurement = MeasurementPlan(repeats=repeats, **({"timeout_seconds": 20.0} | measure))
        return RunPlan(
            experiment="toy",
            device_name="cpu",
            settings=tuple(
                PlannedSetting(
                    trial=Trial(
                        workload=replace(WORKLOAD, recompute=f"full:block:{number}"),
                        measurement=measurement,
                        prediction=PREDICTION,
                    ),
                    rank=number,
                )
                for number in range(1, settings + 1)
            ),
        )

    return make


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Says how the stub trials end; called again, they end otherwise."""
    path = tmp_path / "faults.json"
    path.write_text("{}")
    monkeypatch.setenv("STUB_FAULTS", str(path))

    def write(faults: Mapping[str, str]) -> None:
        path.write_text(json.dumps(faults))

    return write


@pytest.fixture
def make_runner(tmp_path: Path, faults: Callable[[Mapping[str, str]], None]) -> MakeRunner:
    """A runner of stub trials in a folder that is the same for the length of a test."""

    def make(plan: RunPlan, stream: StringIO | None = None, **options: object) -> Runner:
        total = sum(1 for _ in plan.trials())
        runner = Runner(
            folder=RunFolder(tmp_path / "run"),
            plan=plan,
            progress=Progress(total, stream or StringIO()),
            launcher=lambda _: LocalLauncher(STUB),
            grace_seconds=0.2,
        )
        return replace(runner, **options)

    return make
