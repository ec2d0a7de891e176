"""Results from folders: of a run that was interrupted, of single trials, of nothing."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.record import as_dict
from advisor.models.presets import load_model
from harness.judge.comparison import compare
from harness.judge.identity import workload_key
from harness.judge.results import load_results, quoted_setting, reproduction_command
from harness.judge.verdict import Verdict
from harness.trial.result import Phase, StepTimes, TrialResult, TrialStatus
from harness.trial.store import RunFolder, StateWriter, encode
from harness.trial.trial import (
    Backend,
    Device,
    MeasurementPlan,
    PlannedSetting,
    RunPlan,
    Trial,
    Workload,
)
from tests.advisor.jobs import batches, experiment_job
from tests.harness.conftest import RAN, WORKLOAD

TRIAL = Trial(
    workload=replace(WORKLOAD, model=load_model("llama3_8b")),
    measurement=MeasurementPlan(repeats=4),
)


def finished(trial: Trial) -> TrialResult:
    return TrialResult(
        **RAN
        | {"name": trial.name, "trial": as_dict(trial), "started_at": "2026-07-01T00:00:00+00:00"},
        times=StepTimes(seconds=(0.5, 0.5), warmup_seconds=(1.0,), clock="host"),
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Four repeats: finished, finished with an unreadable file, killed at work, not begun."""
    folder = RunFolder(tmp_path / "run")
    setting = PlannedSetting(trial=TRIAL, rank=1)
    folder.create(RunPlan(experiment="tiny_cpu", device_name="cpu", settings=(setting,)))
    trials = setting.trials()
    for trial in trials[:3]:
        folder.trial(trial.name).create(trial)
    folder.trial(trials[0].name).write_result(finished(trials[0]))
    (folder.trial(trials[1].name).path / "result.json").write_text('{"half')
    StateWriter(folder.trial(trials[2].name)).write(Phase.BACKWARD, 7)
    return folder


def test_nothing_that_was_planned_is_lost(run: RunFolder) -> None:
    loaded = load_results([run.path])
    assert [one.status for one in loaded.results] == [TrialStatus.OK, *[TrialStatus.NO_DATA] * 3]
    words = [one.evidence.message for one in loaded.results if one.evidence]
    assert words == [
        "result.json cannot be read: file is not valid JSON: line 1, column 2: "
        "Unterminated string starting at",
        "started but has no result: interrupted",
        "has not been run",
    ]
    assert loaded.results[2].evidence.phase is Phase.BACKWARD


def test_an_interrupted_run_is_no_pass_and_says_how_to_repeat_a_trial(run: RunFolder) -> None:
    loaded = load_results([run.path])
    found = compare(loaded.results, [], commands=loaded.commands)
    assert (found.count(Verdict.FAILED), found.exit_code) == (3, 4)
    command = loaded.commands[TRIAL.workload.key()]
    assert command.startswith("harness run experiment=tiny_cpu")


def test_keys_are_those_of_the_workload_also_after_json() -> None:
    plain = json.loads(encode(finished(TRIAL)))["trial"]["workload"]
    assert workload_key(plain) == workload_key(as_dict(TRIAL.workload)) == TRIAL.workload.key()


def test_single_files_and_folders_of_them(tmp_path: Path) -> None:
    for repeat in range(2):
        trial = replace(TRIAL, repeat=repeat)
        path = tmp_path / str(repeat) / "result.json"
        path.parent.mkdir()
        path.write_text(encode(finished(trial)))
    assert len(load_results([tmp_path]).results) == 2
    assert len(load_results([tmp_path / "0" / "result.json"]).results) == 1


@pytest.mark.parametrize("content", [None, "", '{"schema_version": 1}', "[]"])
def test_what_holds_no_result_is_one_line(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as raised:
        load_results([path])
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError):
        load_results([tmp_path])


def preset_trial() -> Trial:
    job = experiment_job()
    config = job.config
    workload = Workload(
        model=job.model,
        layout=job.layout,
        **batches(config.seq_length, config.micro_batch_size, config.global_batch_size),
        precision=config.precision,
        recompute="selective:core_attn,mlp",
        backend=Backend.NATIVE,
        device=Device.CUDA,
    )
    return Trial(workload=workload, measurement=MeasurementPlan(repeats=5))


def test_a_preset_needs_its_name_and_the_setting_after_the_environment() -> None:
    allocator = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    trial = replace(preset_trial(), variables=(allocator, "X=a b"))
    command = reproduction_command("llama3_70b_32xh100", trial)
    assert command.startswith(f"{allocator} X='a b' harness run experiment=")
    assert " ".join(shlex.split(command)[2:]) == (
        "harness run experiment=llama3_70b_32xh100 "
        'recompute.settings=["selective:core_attn,mlp"] measure.repeats=5 device=cuda '
        f"name=again-{trial.workload.key()}"
    )


def test_what_differs_is_overridden() -> None:
    trial = preset_trial()
    workload = trial.workload
    changed = replace(
        workload,
        model=replace(workload.model, num_layers=40),
        layout=replace(workload.layout, data_parallel_size=4, tp_comm_overlap=False),
        seq_length=8192,
        precision=Precision.FP8_CURRENT,
        recompute="none",
    )
    command = reproduction_command("llama3_70b_32xh100", replace(trial, workload=changed))
    wanted = (
        "model.num_layers=40 layout.tp_comm_overlap=false gpus=64xH100 job.seq_length=8192 "
        "job.precision=fp8_current recompute.settings=[none]"
    )
    words = set(shlex.split(command))
    assert set(wanted.split()) <= words
    assert not any(word.startswith("layout.data_parallel_size") for word in words)


def test_an_experiment_that_is_no_file_here_and_settings_with_commas() -> None:
    assert "model." not in reproduction_command("somewhere_else", preset_trial())
    assert quoted_setting("full:block:4") == "full:block:4"
    assert quoted_setting("none+offload=core_attn") == '"none+offload=core_attn"'
