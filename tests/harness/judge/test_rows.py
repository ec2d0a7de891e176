"""What a failed trial says of itself, and what a row is called elsewhere."""

from typing import Any

import pytest

from harness.judge.rows import Row, describe
from harness.judge.verdict import Verdict
from harness.trial.result import TrialStatus

MIB = 2**20


@pytest.mark.parametrize(
    ("message", "more", "says"),
    [
        ("", {}, " in backward"),
        ("", {"rank": 0}, " in backward on rank 0"),
        (
            "CUDA out of memory",
            {"over_bytes": 5 * MIB},
            " in backward, 5.00 MiB over: CUDA out of memory",
        ),
        ("two\nlines\t and  blanks", {"rank": 3}, " in backward on rank 3: two lines and blanks"),
        ("fits exactly", {"over_bytes": 0}, " in backward: fits exactly"),
    ],
)
def test_evidence_on_one_line(
    make_failed: Any, message: str, more: dict[str, Any], says: str
) -> None:
    assert describe(make_failed(TrialStatus.OOM, message, **more)) == says


def test_without_evidence_there_is_nothing_to_say(make_result: Any) -> None:
    assert describe(make_result()) == ""


def test_names_for_other_tools() -> None:
    row = Row(label="toy/none", workload_key="k", verdict=Verdict.PASS)
    assert row.identifier == "toy/none"
    named = Row(label="toy/none", workload_key="k", verdict=Verdict.PASS, metric="loss")
    assert named.identifier == "toy/none loss"
