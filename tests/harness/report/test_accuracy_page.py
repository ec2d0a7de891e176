"""What is written: Markdown, CSV, a figure."""

import csv
from pathlib import Path

import pytest

from harness.judge.accuracy_rows import setting_rows
from harness.report.accuracy_page import accuracy_report, csv_text
from harness.report.document import markdown
from harness.report.predicted_figure import draw_accuracy
from harness.trial.result import TrialStatus
from tests.harness.judge.synthetic import GIB, prediction, result

ROWS = setting_rows(
    [
        result("none", 1.0, predicted=prediction(0.9, 9 * GIB)),
        result("selective:mlp", 1.25, predicted=prediction(1.1, 8 * GIB)),
        result("full:uniform:1", None, predicted=prediction(1.4, 7 * GIB), status=TrialStatus.OOM),
        result("op:x", 7.0, predicted=prediction(1.0, 9 * GIB), status=TrialStatus.UNSTABLE),
    ]
)


def test_the_table_has_every_row_with_raw_numbers() -> None:
    lines = list(csv.DictReader(csv_text(ROWS).splitlines()))
    assert [line["setting"] for line in lines] == [row.setting for row in ROWS]
    none = next(line for line in lines if line["setting"] == "none")
    assert float(none["predicted_step_time_seconds"]) == 0.9
    assert int(none["measured_peak_allocated_bytes"]) == 10 * GIB
    gone = next(line for line in lines if line["setting"] == "full:uniform:1")
    assert gone["measured_step_time_seconds"] == ""
    assert (gone["predicted_fits"], gone["measured_fits"]) == ("True", "False")


def test_the_page_tells_errors_verdicts_and_what_is_left_out() -> None:
    text = markdown(accuracy_report(ROWS, "NVIDIA H200, torch 2.11.0"))
    assert "1 cell, 4 settings" in text
    assert "11.00 %, worst -12.00 % (2)" in text  # 0.9 of 1.0 and 1.1 of 1.25
    assert "| all | 3 | 1 | 0 | 0 |" in text
    left_out = text.partition("## Not measured, or not trusted")[2]
    assert "unstable: spread 9 %" in left_out
    assert "oom: " in left_out
    assert "7000.0" not in text  # an unstable time is nobody's number


def test_a_figure_of_what_has_both_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (picture,) = draw_accuracy(ROWS, tmp_path / "figures")
    assert picture.svg.startswith("<svg")
    assert (tmp_path / "figures" / "predicted_and_measured.png").stat().st_size > 1000
    assert draw_accuracy(ROWS[:0], tmp_path / "none") == ()
    assert not (tmp_path / "none").exists()
