"""Who asked for the memory that ran out, from the logs of real frameworks."""

from pathlib import Path

import pytest

from advisor.base.configuration import load_yaml
from advisor.diagnose.out_of_memory import has_owner, verdict_of
from advisor.diagnose.scan import Diagnosis, scan
from advisor.report.diagnosis_page import diagnosis_page
from advisor.report.text import plain_lines


def owner_of(found: Diagnosis) -> str:
    """Of the first out-of-memory: `none` without one, `caught` where the run went on."""
    first = next((one for one in found.findings if one.failure.memory), None)
    if first is None or first.went_on:
        return "none" if first is None else "caught"
    return verdict_of(first, found.head).owner if has_owner(first) else first.failure.memory


OOM_LOGS = load_yaml(Path(__file__).parent / "oom_logs.yaml").values["logs"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in OOM_LOGS])
def test_the_owner_of_the_memory_and_what_frees_it(case) -> None:
    """Frames of real files in the forms of the frameworks; nothing of another one is advised."""
    found = scan(case["log"])
    text = " ".join(" ".join(plain_lines(diagnosis_page(found))).split()).lower()
    assert owner_of(found) == case["owner"]
    assert [word for word in case.get("fix", ()) if word.lower() not in text] == []
    assert [word for word in case.get("never", ()) if word.lower() in text] == []
