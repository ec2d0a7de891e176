"""JUnit as another library reads it."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.judge.comparison import Comparison, compare
from harness.judge.render import row_line
from harness.judge.trial_rows import ComparisonRow
from harness.judge.update import load_goldens
from harness.judge.verdict import Verdict
from harness.report.facts import load_facts
from harness.report.junit import junit

junitparser = pytest.importorskip("junitparser")

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"


def comparison(*verdicts: Verdict, metric: str = "step_time_seconds", **more: Any) -> Comparison:
    return Comparison(
        rows=tuple(
            ComparisonRow(
                label=f"toy/{v}",
                workload_key="k",
                verdict=v,
                metric=metric,
                reason=f"why {v}",
                **more,
            )
            for v in verdicts
        )
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
    assert kinds == {
        Verdict.REGRESSION: "Failure",
        Verdict.FAILED: "Error",
        Verdict.UNSTABLE: "Skipped",
        Verdict.INCONCLUSIVE: "Skipped",
        Verdict.ENVIRONMENT: "Skipped",
        Verdict.VANISHED: "Skipped",
        Verdict.APPEARED: "Skipped",
        Verdict.STALE: "passed",
        Verdict.SKIPPED: "Skipped",
        Verdict.PASS: "passed",
        Verdict.UNJUDGED: "Skipped",
    }


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
