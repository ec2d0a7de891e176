"""One line a row, the same everywhere; what follows it; and what the whole comes to."""

import pytest
from msgspec.structs import replace

from harness.judge.comparison import Comparison
from harness.judge.identity import EnvironmentDifference
from harness.judge.render import WORDS, noted_rows, percent, render, row_line, summary_line
from harness.judge.stats import Interval
from harness.judge.trial_rows import CompareOptions, ComparisonRow, EnvironmentChange
from harness.judge.verdict import Verdict

ROW = ComparisonRow(
    label="llama3_8b/tp2pp1/full:block:5",
    workload_key="k",
    metric="tflops_per_gpu",
    verdict=Verdict.REGRESSION,
    golden=612.4,
    new=571.0,
    change=-0.0676,
    interval=Interval(low=-0.0761, high=-0.0587),
    limit=-0.05,
    shown=("612.4", "571.0"),
    reason="the whole interval is beyond the limit",
)
WHOLE = ComparisonRow(
    label="toy/tp1pp1/none", workload_key="t", verdict=Verdict.FAILED, reason="timeout"
)


def of(*rows: ComparisonRow, **more: object) -> Comparison:
    return Comparison(rows=rows, **more)


LINE = "FAIL  llama3_8b/tp2pp1/full:block:5  tflops_per_gpu  612.4 -> 571.0  -6.8 % [-7.6, -5.9]"


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, LINE + "  limit -5 %"),
        ({"interval": None}, "  -6.8 %  limit -5 %"),
        ({"change": None, "interval": None}, "  612.4 -> 571.0  limit -5 %"),
        ({"limit": None}, "  -6.8 % [-7.6, -5.9]"),
        ({"limit": 0.025}, "  limit +2.5 %"),
        ({"shown": ("", "5")}, "  tflops_per_gpu  -6.8 % [-7.6, -5.9]  limit -5 %"),
        ({"limit": 0.02, "two_sided": True}, "  limit ±2 %"),
        ({"limit": 0.0, "two_sided": True}, "  limit equal"),
        ({"change": float("inf"), "interval": None}, "  +inf %  limit -5 %"),
    ],
)
def test_what_is_not_known_is_not_shown(changes: dict[str, object], ends: str) -> None:
    assert row_line(replace(ROW, **changes)).endswith(ends)


def test_a_row_about_a_whole_trial_says_why_on_its_line() -> None:
    assert row_line(WHOLE) == "ERROR  toy/tp1pp1/none  timeout"
    assert row_line(replace(WHOLE, reason="")) == "ERROR  toy/tp1pp1/none"
    assert "whole interval" not in row_line(ROW), "a metric's reason stands below its line"
    line = row_line(replace(ROW, metric="step_time_seconds", cpu_time=True))
    assert "  step_time_seconds (CPU time)  612.4 ->" in line
    assert set(WORDS) == set(Verdict)
    assert len(set(WORDS.values())) == len(Verdict), "every verdict has a word of its own"


def test_notes_and_the_command_follow_the_line() -> None:
    noted = replace(ROW, notes=("few samples",))
    found = of(noted, ROW, commands={"k": "harness run x"})
    (_, first, again), (_, second, once) = noted_rows(found)
    assert first == ["the whole interval is beyond the limit", "few samples"]
    assert second == ["the whole interval is beyond the limit"]
    assert (again, once) == (["harness run x"], []), "a trial's command stands once"


def test_what_is_said_of_several_rows_is_said_once() -> None:
    other = replace(ROW, metric="step_time_seconds")
    lines = render(of(ROW, other, WHOLE, commands={"k": "harness run x"})).splitlines()
    assert lines[-3:] == [
        "      (these 2) the whole interval is beyond the limit",
        "      harness run x",
        row_line(WHOLE),
    ]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_what_may_be_run_again_has_its_command(verdict: Verdict) -> None:
    again = {Verdict.REGRESSION, Verdict.FAILED, Verdict.UNSTABLE, Verdict.OPEN}
    text = render(of(replace(ROW, verdict=verdict), commands={"k": "harness run x"}))
    assert ("harness run x" in text) is (verdict in again)


def test_environments_come_before_the_numbers() -> None:
    change = EnvironmentChange(
        label="toy",
        differences=(EnvironmentDifference(name="software.torch", golden="2.8", new=None),),
        unrecorded=("cuda", "nccl"),
    )
    assert render(of(ROW, environments=(change,))).splitlines()[1:4] == [
        "environment  toy  software.torch  2.8 -> (none)",
        "environment  toy  the golden does not state: cuda, nccl",
        row_line(ROW),
    ]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((ROW, WHOLE), "Regression (exit 1): 1 FAIL, 1 ERROR"),
        ((WHOLE,), "A run failed (exit 4): 1 ERROR"),
        ((replace(ROW, verdict=Verdict.PASS),) * 3, "Pass (exit 0): 3 PASS"),
        ((), "No verdict (exit 3): nothing to compare"),
    ],
)
def test_the_first_line_concludes_and_counts(rows: tuple[ComparisonRow, ...], says: str) -> None:
    assert summary_line(of(*rows)) == says
    assert render(of(*rows)).splitlines()[0] == says


def test_percentages_are_signed() -> None:
    assert (percent(0.0), percent(0.0676), percent(-1.0)) == ("+0.0 %", "+6.8 %", "-100.0 %")


PASS, STALE = (replace(ROW, verdict=verdict) for verdict in (Verdict.PASS, Verdict.STALE))


@pytest.mark.parametrize(
    ("verdicts", "option", "code"),
    [
        *((f"pass {other}", "", 0) for other in ("", "stale", "skipped")),
        *((f"pass {open_}", "", 3) for open_ in ("unstable", "open", "environment")),
        *((f"pass {other}", "", 3) for other in ("appeared", "vanished")),
        *(("pass stale", "strict", 1), ("failed stale", "strict", 1), ("skipped", "", 3)),
        ("pass vanished appeared", "allow_unmatched", 0),
        ("appeared", "allow_unmatched", 3),
        ("unstable failed", "allow_unmatched", 4),
        ("failed regression unstable", "", 1),
    ],
)
def test_exit_codes(verdicts: str, option: str, code: int) -> None:
    """A certain regression stands whatever else happened; what is open is never a pass."""
    rows = tuple(replace(ROW, verdict=Verdict(verdict)) for verdict in verdicts.split())
    options = CompareOptions(**dict.fromkeys(option.split(), True))
    assert Comparison(rows=rows, options=options).exit_code == code


def test_a_reason_wraps_within_the_page_and_a_command_does_not() -> None:
    words, command = "word " * 40, "harness run " + "x" * 120
    row = replace(ROW, reason=words.strip(), notes=(command,))
    lines = render(of(row)).splitlines()
    reason = [line for line in lines if "word" in line]
    assert len(reason) > 1
    assert all(line.startswith("      word") and len(line) <= 100 for line in reason)
    assert f"      {command}" in lines
