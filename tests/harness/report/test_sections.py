"""What a report says, whatever it is written as."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.cli.compare import render
from harness.judge.golden_update import golden_of
from harness.judge.render import row_line
from harness.report.document import Document, Section
from harness.report.evidence import find_calibration
from harness.report.export import bmf
from harness.report.facts import Facts, load_facts
from harness.report.figures import points
from harness.report.sections import make_document
from harness.trial.result import TrialStatus

pytest.importorskip("numpy")


def section(document: Document, title: str) -> Section:
    return next(one for one in document.sections if one.title == title)


@pytest.fixture
def judged(gpu_run: Path) -> Facts:
    """Against a golden 20 % faster than its first setting, and one of a setting that is gone."""
    facts = load_facts(gpu_run)
    first = next(iter(facts.results.values()))
    times = replace(first.times, seconds=tuple(0.8 * seconds for seconds in first.times.seconds))
    golden = golden_of([replace(first, times=times)], "first")
    other, label = golden.identity, "llama3_8b/tp1pp1/full:uniform:2"
    fields = other.workload | {"recompute": "full:uniform:2"}
    other = replace(other, label=label, workload=fields, workload_key="0" * 12)
    return load_facts(gpu_run, [golden, replace(golden, identity=other)])


def test_every_setting_is_accounted_for(gpu_facts: Facts) -> None:
    document = make_document(gpu_facts, ())
    counts = "2 ok, 1 unstable, 1 oom, 1 timeout, 1 failed, 1 skipped"
    assert document.outcome == f"7 settings: {counts}"
    (table,) = section(document, "Settings").tables
    assert [row[0] for row in table.rows] == [s.spec for s in gpu_facts.plan.settings]
    words = [row[1] for row in table.rows]
    assert ", ".join(words) == "ok, ok, unstable, oom, timeout, failed, skipped: not run"
    reasons = "\n".join(section(document, "Settings").prose)
    assert "[backward, 3.00 GiB over] CUDA out of memory" in reasons
    assert "there are 32 layers" in reasons
    assert "drift: +9.0 % over the window" in reasons


def test_the_verdict_comes_first_in_the_gates_own_lines(judged: Facts, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    document = make_document(judged, ())
    assert (document.good, document.sections[0].title) == (False, "Verdict")
    assert "Regression (exit 1)" in document.outcome
    shown = [line for one in document.sections[:2] for line in one.lines]
    for row in judged.comparison.rows:
        assert row_line(row) in shown
    said = render(judged.comparison).splitlines()
    assert [document.outcome, *shown] == said, "the page has the terminal's lines, in its order"
    assert any(line.startswith("GONE") and "full:uniform:2" in line for line in shown)


def test_passes_are_folded_away(gpu_run: Path, gpu_facts: Facts) -> None:
    first = next(iter(gpu_facts.results.values()))
    document = make_document(load_facts(gpu_run, [golden_of([first], "x")]), ())
    loud, quiet = document.sections[:2]
    assert (loud.folded, quiet.folded) == (False, True)
    assert not any(line.startswith("PASS") for line in loud.lines)
    passed = [line for line in quiet.lines if line.startswith(("PASS", "SKIP"))]
    assert quiet.title == f"Passed, skipped or not judged: {len(passed)}"


def test_predicted_and_measured_with_signed_errors(gpu_facts: Facts) -> None:
    one = section(make_document(gpu_facts, ()), "Predicted and measured")
    tables = {table.columns[0]: table for table in one.tables}
    assert set(tables) == {"kept per layer", "peak allocated", "step time"}
    # invented: measured times are 5 % above the prediction, peaks 1 %
    assert tables["step time"].rows[0][3] == f"{(1 / 1.05 - 1) * 100:+.1f} %"
    assert tables["peak allocated"].rows[0][3] == "-1.0 %"
    assert tables["step time"].rows[3][2:] == ("—", "—")
    words = "\n".join(one.prose)
    assert "Spearman +1.00, Kendall +1.00" in words
    assert "Following the advisor gives " in words
    fitted = find_calibration("h100")
    assert f"Calibration h100: published, {fitted.summary()}." in words


def test_flops_are_two_numbers_over_a_peak_with_its_source(gpu_facts: Facts) -> None:
    one = section(make_document(gpu_facts, ()), "FLOPs")
    tflops = ("model TFLOP/s/GPU", "hardware TFLOP/s/GPU")
    assert one.tables[0].columns == ("setting", *tflops, "MFU", "HFU")
    assert one.tables[0].rows[0][1:] == ("400", "500", "40.4 %", "50.6 %")
    peak = "989.0 TFLOP/s: the dense peak of H200-SXM-141GB at bf16, from its datasheet"
    assert peak in one.prose[1]


def test_memory_is_four_numbers_for_each_stage(gpu_facts: Facts, gpu_run: Path) -> None:
    (table,) = section(make_document(gpu_facts, ()), "Memory").tables
    assert table.columns[2:] == ("allocated", "active", "reserved", "used (NVML)")
    assert all(cell.endswith(" GiB") for cell in table.rows[0][2:])
    name, first = next(iter(gpu_facts.results.items()))
    second = replace(first.memory[0], rank=1, stage=1, allocated=2**30)
    results = gpu_facts.results | {name: replace(first, memory=(*first.memory, second))}
    (table,) = section(make_document(replace(gpu_facts, results=results), ()), "Memory").tables
    stages = ["pipeline stage 0", "pipeline stage 1"]
    assert [row[1] for row in table.rows[:3]] == ["fullest of 2", *stages]
    assert table.rows[2][2] == "1.00 GiB"


def test_trust_says_why_not(gpu_facts: Facts) -> None:
    one = section(make_document(gpu_facts, ()), "Trust")
    assert one.tables[0].rows[0][3:] == ("10", "3", "0.2 %", "cuda_event", "none")
    assert one.tables[0].rows[2][-1] == "drift"
    (doubt,) = one.lines
    assert "FATAL  drift: +9.0 % over the window, limit 5.0 %; warm up longer" in doubt
    assert "fewer than five" in one.prose[0]


def test_every_setting_has_its_command(gpu_facts: Facts) -> None:
    lines = section(make_document(gpu_facts, ()), "Run a trial again").lines
    commands = [line for line in lines if not line.startswith("#")]
    assert len(commands) == 7
    assert all(" harness run experiment=llama3_8b_1xh200 " in line for line in commands)
    assert all("PYTORCH_CUDA_ALLOC_CONF=" in line.split(" harness ")[0] for line in commands)


def test_the_calibration_says_what_it_was_fitted_on(gpu_facts: Facts) -> None:
    one = section(make_document(gpu_facts, ()), "Calibration of the predictions")
    fitted = find_calibration("h100")
    assert one.prose == (f"Calibration h100: published, {fitted.summary()}.",)
    assert one.lines[2:] == fitted.fitted_on
    assert re.search(r"\d+ rows$", one.lines[0])
    changed = [
        replace(s, trial=replace(s.trial, prediction=replace(s.trial.prediction, calibration="x")))
        for s in gpu_facts.plan.settings
        if s.trial.prediction
    ]
    gone = replace(gpu_facts, plan=replace(gpu_facts.plan, settings=tuple(changed)))
    one = section(make_document(gone, ()), "Calibration of the predictions")
    assert one.prose == ("Calibration x: its file is missing.",)


def test_cpu_times_are_marked_as_such_everywhere(cpu_run: Path, cpu_facts: Facts) -> None:
    good = list(cpu_facts.results.values())[:1]
    document = make_document(load_facts(cpu_run, [golden_of(good, "x")]), ())
    assert document.title.endswith("(CPU times)")
    assert "all times are CPU times" in document.subtitle
    columns = [c for one in document.sections for table in one.tables for c in table.columns]
    about_time = [c for c in columns if re.search(r"time|/s\b|TFLOP", c)]
    assert len(about_time) == 4
    assert all("(CPU time)" in column for column in about_time)
    assert section(document, "Trust").tables[0].rows[0][6] == "host (CPU time)"
    rows = [line for one in document.sections[:2] for line in one.lines]
    (line,) = [line for line in rows if "  step_time_seconds " in line]
    assert "  step_time_seconds (CPU time)  " in line
    assert line.endswith("not judged")
    assert "GPU" not in document.sections[2].tables[0].columns[5]


def test_repeats_that_were_not_all_measured_are_counted(cpu_facts: Facts) -> None:
    name = next(iter(cpu_facts.results))
    failed = replace(cpu_facts.results[name], status=TrialStatus.NAN, times=None)
    facts = replace(cpu_facts, results=cpu_facts.results | {name: failed})
    (table,) = section(make_document(facts, ()), "Settings").tables
    assert table.rows[0][1] == "nan, 1 of 2 measured"
    assert table.rows[1][1] == "ok, 2 of 2 measured"


def test_a_gpu_that_is_not_described_has_no_mfu(gpu_facts: Facts) -> None:
    facts = replace(gpu_facts, plan=replace(gpu_facts.plan, device_name="TPU-9000"))
    one = section(make_document(facts, ()), "FLOPs")
    assert one.tables[0].rows[0][1:] == ("400", "500", "—", "—")
    assert "need the peak of a GPU" in one.prose[1]


def test_the_last_words_are_there_and_folded(gpu_facts: Facts) -> None:
    one = section(make_document(gpu_facts, ()), "Last log lines")
    assert one.folded
    assert any("3.00 GiB" in line or "CUDA out of memory" in line for line in one.lines)
    assert "    | a | b |" in one.lines


def test_a_sweep_s_settings_are_named_with_their_micro_batch(swept_run: Path) -> None:
    facts = load_facts(swept_run)
    document = make_document(facts, ())
    spec = facts.plan.settings[0].spec
    names = (f"{spec}, mbs 1", f"{spec}, mbs 2")
    for title in ("Settings", "Memory", "FLOPs", "Trust"):
        (table,) = section(document, title).tables
        assert tuple(row[0] for row in table.rows) == names, title
    settings = section(document, "Settings")
    assert "The sweep.budget is used up." in settings.prose
    assert [row[1] for row in settings.tables[0].rows] == ["ok, tied", "pruned"]
    assert "micro batches 1, 2" in document.subtitle
    assert [one.name for one in points(facts)] == list(names)
    assert len(json.loads(bmf(facts))) == 1, "a pruned trial is no data point"


def test_where_the_time_of_a_step_went(gpu_facts: Facts, cpu_facts: Facts) -> None:
    """Of settings that were measured, on a GPU alone."""
    (table,) = section(make_document(gpu_facts, ()), "One step").tables
    assert len(table.rows) == 3 * 4
    step = gpu_facts.found[0].step_time.measured
    milli = [f"{share * step * 1e3:.1f} ms" for share in (0.1, 0.3, 0.0)]
    assert table.rows[2] == (gpu_facts.found[0].name, "replay", "1", *milli)
    assert all(one.title != "One step" for one in make_document(cpu_facts, ()).sections)
