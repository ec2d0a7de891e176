"""Numbers as other programs read them."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from harness.judge.comparison import Comparison, compare
from harness.judge.golden import load_goldens
from harness.judge.render import row_line
from harness.judge.trial_rows import ComparisonRow
from harness.judge.verdict import Verdict
from harness.report.export import bmf, junit, trial_rows, write_tables
from harness.report.facts import Facts, load_facts
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


junitparser = pytest.importorskip("junitparser")

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"


def comparison(*verdicts: Verdict, metric: str = "step_time_seconds", **more: Any) -> Comparison:
    made = partial(ComparisonRow, workload_key="k", metric=metric, **more)
    return Comparison(
        rows=tuple(made(label=f"toy/{v}", verdict=v, reason=f"why {v}") for v in verdicts)
    )


def cases(text: str) -> list[Any]:
    (suite,) = junitparser.JUnitXml.fromstring(text.encode())
    return list(suite)


def test_every_verdict_is_what_a_test_runner_knows() -> None:
    found = comparison(*Verdict)
    kinds = {}
    for row, case in zip(found.rows, cases(junit(found, "run")), strict=True):
        kinds[row.verdict] = type(case.result[0]).__name__ if case.result else "passed"
        assert (case.classname, case.name) == (row.label, row.metric)
        if case.result:
            assert case.result[0].message == row_line(row)
            assert case.result[0].type == row.verdict
            assert f"why {row.verdict}" in case.result[0].text
        else:
            assert row_line(row) in case.system_out
    loud = {Verdict.REGRESSION: "Failure", Verdict.FAILED: "Error"}
    passed = dict.fromkeys((Verdict.STALE, Verdict.PASS), "passed")
    assert kinds == dict.fromkeys(Verdict, "Skipped") | loud | passed


def test_the_totals_are_the_cases() -> None:
    (suite,) = junitparser.JUnitXml.fromstring(junit(comparison(*Verdict), "run").encode())
    counts = (suite.tests, suite.failures, suite.errors, suite.skipped)
    assert counts == (len(Verdict), 1, 1, 7)
    suite.update_statistics()
    assert counts == (suite.tests, suite.failures, suite.errors, suite.skipped)


def test_the_recorded_regression() -> None:
    goldens = list(load_goldens([ROOT / "results/golden"]).values())
    facts = load_facts(RECORDED, goldens)
    found = cases(junit(facts.comparison, "recorded"))
    assert [type(case.result[0]).__name__ for case in found] == ["Failure"] * 2 + ["Error"] * 2
    assert found[0].name == "tflops_per_gpu"
    assert found[0].result[0].message.startswith("FAIL  llama3_70b/tp4pp4/selective:mlp,core_attn")


def test_several_failed_repeats_are_cases_of_their_own() -> None:
    found = comparison(Verdict.FAILED, Verdict.FAILED, metric="")
    assert [case.name for case in cases(junit(found, "x"))] == ["run", "run 2"]


@pytest.mark.parametrize(
    "words", ["\x1b[31m", "\x00", "a < b & 'c' > \"d\"", "]]>", "\ud800", "é漢"]
)
def test_whatever_a_log_said_is_valid_xml(words: str) -> None:
    text = junit(comparison(Verdict.FAILED, metric="", notes=(words,)), words)
    (case,) = cases(text)
    ElementTree.fromstring(text.encode())
    assert not set("\x00\x1b\ud800") & set(case.result[0].text)
    if words.isprintable():
        assert words in case.result[0].text


def test_nothing_at_all_is_an_empty_suite() -> None:
    assert cases(junit(compare([], []), "none")) == []
