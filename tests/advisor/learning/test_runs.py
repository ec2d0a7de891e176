"""Results as they lie in folders: what is read of them, and why others are left out."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.base.record import as_dict
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.layout import ParallelLayout
from advisor.learning.learned import LearnedCalibration
from advisor.learning.runs import read_runs
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from advisor.search.learn import calibration_from
from advisor.search.measured_rows import corrected
from tests.advisor.tables import tables

TABLES = tables(__file__)

MEASURED = Path(__file__).parents[3] / "results" / "measured"
H100, H200 = load_gpu("H100"), load_gpu("H200")
WORKLOAD: dict[str, Any] = {
    "model": as_dict(load_model("llama3_8b")),
    "layout": as_dict(ParallelLayout(data_parallel_size=8)),
    "seq_length": 8192,
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "precision": "bf16",
    "recompute": "full:block:4",
    "backend": "command",
    "device": "cuda",
}


def result(**changes: Any) -> dict[str, Any]:
    workload = {**WORKLOAD, **changes.pop("workload", {})}
    return {
        "status": "ok",
        "trial": {"workload": workload, "as_run": {"job": {"expandable_segments": True}}},
        "environment": {"gpus": [{"name": "H100"}]},
        "times": {"seconds": [1.0, 3.0, 2.0]},
        "memory": [{"allocated": 10, "reserved": 12}, {"allocated": 11, "reserved": None}],
        **changes,
    }


def write(folder: Path, *results: dict[str, Any]) -> Path:
    for number, one in enumerate(results):
        (folder / str(number)).mkdir()
        (folder / str(number) / "result.json").write_text(json.dumps(one, default=str))
    return folder


def test_a_result_is_a_run_of_its_job(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path, result()), H100).usable
    assert (run.seconds, run.allocated, run.reserved, run.taken) == (2.0, 11, 12, None)
    assert run.setting.spec == "full:block:4"
    assert run.job.num_gpus == 8
    assert run.job.config.expandable_segments


@pytest.mark.parametrize(
    ("changes", "why"),
    TABLES["test_what_nothing_is_learned_from_is_counted"],
)
def test_what_nothing_is_learned_from_is_counted(changes, why, tmp_path) -> None:
    found = read_runs(write(tmp_path, result(**changes), result()), H100)
    assert len(found.usable) == 1
    ((said, count),) = found.left_out
    assert said.startswith(why)
    assert count == 1


def test_scattered_times_leave_the_bytes(tmp_path: Path) -> None:
    scattered = result(status="unstable", concerns=[{"name": "spread", "fatal": True}])
    (run,) = read_runs(write(tmp_path, scattered), H100).usable
    assert (run.seconds, run.allocated) == (None, 11)


def test_runs_that_were_set_aside_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "superseded").mkdir()
    write(tmp_path / "superseded", result())
    with pytest.raises(UserError, match=r"holds no result\.json"):
        read_runs(tmp_path, H100)


def test_another_gpu_is_said_in_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path, result(), result())
    with pytest.raises(UserError, match=r"holds no usable runs on H200.*2 ran on H100-SXM-80GB"):
        calibration_from([folder], load_calibration(H200), H200)


def test_real_runs_of_two_settings_predict_the_others(tmp_path: Path) -> None:
    """Llama 3 8B of 24 layers on an H200 (results/measured), whose steps are 5 to 7 % longer than
    the shipped calibration says of the layers as they are written down there."""
    source = MEASURED / "h200" / "runs" / "llama3_8b_l24_s8192_b1" / "trials"
    everything = read_runs(source, H200).usable
    known = ("none", "selective:mlp")
    for run in everything:
        if run.setting.spec in known:
            copytree(run.source, tmp_path / Path(run.source).name)
    shipped = load_calibration(H200)
    learned = calibration_from([tmp_path], shipped, H200)
    assert isinstance(learned, LearnedCalibration)
    held_out = [run for run in everything if run.setting.spec not in known]
    assert len(held_out) == 2
    for run in held_out:
        before = Evaluator(run.job, shipped).evaluate(run.setting)
        after = corrected(Evaluator(run.job, learned).evaluate(run.setting), learned)
        assert abs(after.step_time_seconds / run.seconds - 1) < 0.01
        assert abs(before.step_time_seconds / run.seconds - 1) > 0.04
        assert after.step_time_low_seconds < run.seconds < after.step_time_high_seconds
