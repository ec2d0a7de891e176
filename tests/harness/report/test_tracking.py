"""What trackers were given, read back from their own stores by their own readers."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.report.tracking import TrackerName, parse_trackers, track_and_say, track_run

OK = "ok"


@pytest.fixture
def run(gpu_run: Path, tmp_path: Path) -> Path:
    """Settings that end in all ways."""
    return Path(shutil.copytree(gpu_run, tmp_path / "gpu"))


def _rows(run: Path) -> dict[str, dict[str, Any]]:
    from harness.report.export import trial_rows
    from harness.report.facts import load_facts

    return {row["trial"]: row for row in trial_rows(load_facts(run))}


def test_mlflow_has_parameters_metrics_steps_and_tags(run: Path, tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"file://{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database is made in ten seconds
    rows = _rows(run)
    assert track_run(run, TrackerName.MLFLOW) == len(rows)
    assert track_run(run, TrackerName.MLFLOW) == 0, "each once"
    client = mlflow.tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name(run.name)
    found = {one.data.tags["trial"]: one for one in client.search_runs([experiment.experiment_id])}
    assert found.keys() == rows.keys()
    for name, one in found.items():
        row = rows[name]
        assert one.data.tags["status"] == row["status"]
        assert one.data.params["recompute"] == row["recompute"]
        name = "predicted_step_time_seconds"
        assert one.data.metrics.get(name) == row[name]
        assert one.info.status == ("FINISHED" if row["status"] in (OK, "unstable") else "FAILED")
    best = next(one for one in found.values() if one.data.tags["status"] == OK)
    row = rows[best.data.tags["trial"]]
    for name in ("step_time_seconds", "model_tflops_per_gpu", "peak_reserved_bytes"):
        assert best.data.metrics[name] == row[name]
    assert best.data.tags["software.torch"] == "2.9.0"
    steps = client.get_metric_history(best.info.run_id, "measured_step_seconds")
    assert [one.step for one in steps] == list(range(1, 11))


def test_tensorboard_has_scalars_and_hyperparameters(run: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG

    assert track_run(run, TrackerName.TENSORBOARD) == len(_rows(run))
    for name, row in _rows(run).items():
        events = EventAccumulator(str(run / "tensorboard" / name)).Reload()
        tags = events.Tags()["tensors"]
        assert SESSION_START_INFO_TAG in events.summary_metadata
        if row["status"] == OK:
            (value,) = events.Tensors("step_time_seconds")
            assert value.tensor_proto.float_val[0] == pytest.approx(
                row["step_time_seconds"], rel=2**-23
            )  # a scalar of TensorBoard is a float32
            assert len(events.Tensors("measured_step_seconds")) == 10
        assert "tag/status" in tags


def _records(log: bytes) -> Iterator[bytes]:
    """What a .wandb file holds: LevelDB's log (blocks of 32 KiB; CRC, length and kind before each
    fragment) after a header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(log):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", log, place + 4)
        whole += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last fragment
            yield whole
            whole = b""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("offline")
def test_wandb_has_an_offline_run_for_each_trial(run: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    rows = _rows(run)
    assert track_run(run, TrackerName.WANDB) == len(rows)
    seen = {}
    for path in run.glob("wandb/offline-run-*/*.wandb"):
        config, summary, steps = {}, {}, 0
        for record in map(Record.FromString, _records(path.read_bytes())):
            for item in record.run.config.update:
                config[item.key] = json.loads(item.value_json)
            for item in record.summary.update:
                summary[item.key or item.nested_key[0]] = json.loads(item.value_json)
            steps += record.WhichOneof("record_type") == "history"
        assert config["recompute"] == rows[config["tag.trial"]]["recompute"]
        seen[config["tag.trial"]] = (summary, steps)
    assert seen.keys() == rows.keys()
    for name, (summary, steps) in seen.items():
        if rows[name]["status"] == OK:
            assert steps == 10
            assert summary["peak_reserved_bytes"] == rows[name]["peak_reserved_bytes"]
            assert "predicted_peak_reserved_bytes" in summary


def test_what_is_not_known_or_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"track.*mlflow"):
        parse_trackers(["mlflaw"], "track")
    monkeypatch.setattr("harness.report.tracking.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"needs mlflow-skinny.*\.\[mlflow\]"):
        parse_trackers(["mlflow"], "track")


def test_a_tracker_that_fails_is_reported_and_spoils_nothing(run: Path, monkeypatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    said: list[str] = []
    track_and_say(run, (TrackerName.MLFLOW,), said.append)
    assert said[0].startswith("not sent to mlflow: ")
    assert said[0].endswith(f"send again with: harness report {run} --track mlflow")
