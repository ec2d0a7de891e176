"""Numbers as other programs read them."""

import csv
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.report.export import bmf, trial_rows, write_tables
from harness.report.facts import Facts
from harness.trial.result import TrialStatus


def test_one_row_a_trial(gpu_facts: Facts) -> None:
    rows = trial_rows(gpu_facts)
    assert [row["status"] for row in rows] == [str(r.status) for r in gpu_facts.results.values()]
    first, oom, skipped = rows[0], rows[3], rows[6]
    assert first["model_tflops_per_gpu"] == pytest.approx(400.0)
    assert first["peak_allocated_bytes"] == round(first["predicted_peak_allocated_bytes"] * 1.01)
    assert first["predicted_calibration"] == "h100"
    assert first["device"] == "cuda"
    assert (oom["over_bytes"], oom["step_time_seconds"]) == (3 * 2**30, None)
    assert skipped["skipped_by"] == "there are 32 layers"
    assert all("harness run" in row["command"] for row in rows)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"


def test_the_files_say_the_same(gpu_facts: Facts, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    files = write_tables(gpu_facts, tmp_path)
    assert [file.name for file in files] == ["trials.csv", "trials.parquet"]
    with files[0].open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["trial"] for row in read] == list(gpu_facts.results)
    assert read[3]["step_time_seconds"] == ""
    assert int(read[0]["peak_allocated_bytes"]) == trial_rows(gpu_facts)[0]["peak_allocated_bytes"]
    frame = pd.read_parquet(files[1])
    assert list(frame["trial"]) == list(gpu_facts.results)
    assert str(frame["peak_allocated_bytes"].dtype) == "Int64", "bytes stay integers"


def test_bencher_metric_format(gpu_facts: Facts) -> None:
    found = json.loads(bmf(gpu_facts))
    ok = [one.trial.workload.label for one in gpu_facts.plan.settings[:2]]
    assert list(found) == sorted(ok), "what is not trusted is no data point"
    for measures in found.values():
        assert set(measures) >= {"step_time_seconds", "tflops_per_gpu", "peak_reserved_bytes"}
        assert "loss" not in measures
        for one in measures.values():
            assert set(one) == {"value", "lower_value", "upper_value"}
            assert one["lower_value"] <= one["value"] <= one["upper_value"]
    steps = next(iter(found.values()))["step_time_seconds"]
    assert steps["upper_value"] / steps["value"] == pytest.approx(1.001)  # by construction


def test_cpu_times_have_names_of_their_own(cpu_facts: Facts) -> None:
    (first, *_) = json.loads(bmf(cpu_facts)).values()
    assert set(first) == {
        "cpu_step_time_seconds",
        "cpu_tflops_per_gpu",
        "cpu_tokens_per_second_per_gpu",
        "peak_allocated_bytes",
    }
    assert {row["device"] for row in trial_rows(cpu_facts)} == {"cpu"}


def test_nothing_measured_is_no_benchmark(cpu_facts: Facts) -> None:
    failed = {n: replace(r, status=TrialStatus.FAILED) for n, r in cpu_facts.results.items()}
    assert json.loads(bmf(replace(cpu_facts, results=failed))) == {}
