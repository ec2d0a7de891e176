"""`import harness`: calls with typed results, and the overrides that keywords become."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import harness
from harness.api.overrides import hydra_overrides, plain_overrides
from harness.api.running import statuses_of
from harness.execution.runner import UNMEASURED
from harness.execution.signals import Stop, stops_as_usual
from harness.planner.run_request import compose

RECORDED = Path(__file__).parent / "fixtures" / "recorded_regression"
MEASURED = Path(__file__).parents[2] / "results/measured/h200/runs/llama3_8b_l24_s8192_b1"
QUICK: dict[str, Any] = {"measure": {"steps": 2, "min_warmup_steps": 1, "max_warmup_steps": 2}}


def test_keywords_become_overrides() -> None:
    keywords = {
        "experiment": "tiny_cpu",
        "recompute": {"settings": ["none", "selective:core_attn,mlp"], "top": 2},
        "job": {"seq_length": 64, "expandable_segments": True},
        "name": None,
    }
    assert hydra_overrides(["measure.steps=3"], keywords) == (
        *("measure.steps=3", "experiment=tiny_cpu"),
        *("recompute.settings=[none,'selective:core_attn,mlp']", "recompute.top=2"),
        *("job.seq_length=64", "job.expandable_segments=true"),
    )
    assert plain_overrides({"stage": 0}, {"recompute": ["none", "selective:mlp"]}) == (
        "stage=0",
        "recompute=[none,selective:mlp]",
    )
    assert hydra_overrides("runs=a", {"command": "x '{recompute}'"}) == (
        "runs=a",
        "command=x '{recompute}'",
    )


@pytest.mark.parametrize(
    "text", ["it's", "a,b=c", "true", "Null", "12", "x{y}$", "a\\b", "[1]", "über"]
)
def test_text_reaches_hydra_as_it_is(text: str) -> None:
    assert compose(hydra_overrides((), {"name": text})).name == text


def test_a_dry_run_plans_and_writes_nothing(tmp_path: Path) -> None:
    outcome = harness.run(
        runs=str(tmp_path / "runs"), recompute={"settings": ["none"]}, dry_run=True, **QUICK
    )
    (setting,) = outcome.plan.settings
    assert setting.trial.workload.recompute == "none"
    assert setting.trial.measurement.steps == 2
    assert setting.trial.prediction is not None
    assert (outcome.results, outcome.finished, outcome.ok) == ({}, False, False)
    assert not (tmp_path / "runs").exists()


def test_a_run_gives_results_that_obey_the_schema(tmp_path: Path) -> None:
    again = {"runs": str(tmp_path), "recompute": {"settings": ["none"]}, **QUICK}
    outcome = harness.run(**again)
    assert "# tiny\\_cpu on CPU" in (outcome.folder / "report" / "report.md").read_text()
    ((name, result),) = outcome.results.items()
    assert (outcome.finished, outcome.ok) == (True, True)
    assert result.status in (harness.TrialStatus.OK, harness.TrialStatus.UNSTABLE)
    text = (outcome.folder / "trials" / name / "result.json").read_text()
    jsonschema.validate(json.loads(text), harness.json_schema())
    (outcome.folder / "report" / "report.md").unlink()
    assert harness.run(**again, report=False).results == outcome.results  # nothing runs twice
    assert not (outcome.folder / "report" / "report.md").exists()
    without_golden = harness.compare(list(outcome.results.values()), golden=tmp_path / "none")
    of_folder = harness.compare(outcome.folder, golden=[tmp_path / "none"])
    assert without_golden.rows == of_folder.rows
    assert without_golden.exit_code == 3


def test_recorded_results_obey_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(harness.json_schema())
    validator.check_schema(validator.schema)
    files = sorted(RECORDED.rglob("result.json"))
    assert files
    for file in files:
        validator.validate(json.loads(file.read_text()))
    odd = {**json.loads(files[0].read_text()), "loss": ["nan", 1.5]}
    validator.validate(odd)
    assert [list(e.path) for e in validator.iter_errors({**odd, "status": "fine"})] == [["status"]]


def test_a_rehearsal_and_a_sweep_are_planned(tmp_path: Path) -> None:
    rehearsal = harness.rehearse(
        model="llama3_70b",
        gpus="32xH100",
        layout="tp4_pp4_vpp5",
        stage=0,
        recompute=["none", "selective:core_attn,mlp"],
        dry_run=True,
    )
    specs = [setting.spec for setting in rehearsal.plan.settings]
    assert specs == ["none", "selective:core_attn,mlp"]
    sweep = harness.sweep(overrides={"sweep.trials": 1}, runs=str(tmp_path / "a"), dry_run=True)
    assert sweep.points
    assert (sweep.outcomes, sweep.front) == ({}, ())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: harness.run(experimnt="x"), "experimnt = x: is not a known key; did you mean"),
        (lambda: harness.run(retry="sometimes"), "--retry = sometimes: must be one of"),
        (lambda: harness.run(overrides=[3]), "overrides = \\[3\\]: must be text"),
        (
            lambda: harness.run(measure={"repeats": 2}, name="../a"),
            "name = ../a: must be a folder name",
        ),
        (lambda: harness.sweep(measure={"repeats": 2}), "measure.repeats = 2: must be 1"),
        (lambda: harness.rehearse(gpus="8xH100"), "model = \\(none\\): is missing"),
        (lambda: harness.compare("nowhere"), "nowhere"),
        (lambda: harness.load_run("nowhere"), "nowhere"),
        (
            lambda: harness.update_goldens(RECORDED, reason=" "),
            "must state why the baseline changes",
        ),
        (lambda: harness.compare(RECORDED, limits={"speed": 0.1}), "speed"),
        (lambda: harness.ingest("no.log"), "LOG = no.log: matches no file"),
        (lambda: harness.calibrate(budget_seconds=0), "budget_seconds = 0: must be positive"),
        (lambda: harness.calibrate(device="tpu"), "device = tpu: must be one of"),
    ],
)
def test_a_wrong_request_is_one_line(call: Any, words: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(harness.UserError, match=words):
        call()


def test_a_log_becomes_a_result(tmp_path: Path) -> None:
    logs = sorted((Path(__file__).parent / "logs" / "recorded").glob("*.log*"))
    assert logs
    found = harness.ingest([logs[0]], dry_run=True, runs=str(tmp_path / "runs"))
    assert [one.source.paths for one in found] == [(logs[0],)]
    assert not (tmp_path / "runs").exists()
    harness.ingest(logs[0], runs=str(tmp_path / "runs"), name="one")
    (file,) = (tmp_path / "runs" / "one").rglob("result.json")
    jsonschema.validate(json.loads(file.read_text()), harness.json_schema())


def test_a_stored_run_is_read_held_and_compared(tmp_path: Path) -> None:
    outcome = harness.load_run(MEASURED)
    assert (outcome.folder, outcome.finished, outcome.ok) == (MEASURED, True, True)
    rows = outcome.rows()
    assert [row["recompute"] for row in rows] == [one.spec for one in outcome.plan.settings]
    none = next(row for row in rows if row["recompute"] == "none")
    assert none["predicted_peak_allocated_bytes"] == 136_697_421_824
    assert none["peak_allocated_bytes"] == 136_697_621_504
    assert list(outcome.to_dataframe().columns) == list(none)
    goldens = harness.update_goldens(MEASURED, reason="first", to=tmp_path / "to")
    assert len(goldens) == len(rows)
    assert harness.compare(MEASURED, golden=tmp_path / "to").exit_code == 0


def test_which_trials_run_again() -> None:
    assert statuses_of(False) == frozenset()
    assert statuses_of(True) == UNMEASURED
    assert statuses_of(["oom", "unstable"]) == {"oom", "unstable"}


def test_a_stop_is_what_python_knows() -> None:
    with pytest.raises(KeyboardInterrupt), stops_as_usual():
        raise Stop(2)
    with pytest.raises(SystemExit) as stopped, stops_as_usual():
        raise Stop(15)
    assert stopped.value.code == 143
