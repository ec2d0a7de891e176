"""Questions of public threads on memory of reinforcement learning and budgets of tokens, as their
authors would type them: what fits, which phase decides, how high each is by hand, what is said, and
what helps. `why` of reinforcement_questions.json has the arithmetic."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from advisor.base.units import GIB
from advisor.cli.main import main

HERE = Path(__file__).parent
EXAMPLES = HERE / "frameworks" / "reinforcement" / "examples"
QUESTIONS = json.loads((HERE / "reinforcement_questions.json").read_text())
RANKED = [one for one in QUESTIONS if "fits" in one]
SAID = [one for one in QUESTIONS if "says" in one or "helps" in one]


def _asked(one: dict[str, Any]) -> str:
    return one["asked"]


def _answer(one: dict[str, Any], capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What is printed, or the line that says why nothing is."""
    if "file" in one:
        Path(one["file"]["name"]).write_text("\n".join(one["file"]["lines"]))
    main([*shlex.split(one["args"].replace("EXAMPLES", str(EXAMPLES))), *more])
    out, err = capsys.readouterr()
    return out or err


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("one", RANKED, ids=_asked)
def test_what_fits_and_which_phase_decides(one, capsys) -> None:
    found = json.loads(_answer(one, capsys, "--quick", "--format", "json"))
    rows = found["candidates"]
    assert any(row["fits"] for row in rows) == one["fits"]
    if "decides" in one:
        where = "over the budget in the {}", "GiB in the {}"
        assert any(words.format(one["decides"]) in found["verdict"] for words in where)
    if "peak" in one:
        low, high = one["peak"]
        assert low <= min(row["peak_reserved_bytes"] for row in rows) / GIB <= high
    # a thread's job recomputes whole layers
    usual = next((row for row in rows if row["recompute"]["granularity"] == "full"), rows[0])
    peaks = {phase["name"]: phase["peak_reserved_bytes"] / GIB for phase in usual["phases"]}
    for name, (low, high) in one.get("phases", {}).items():
        assert low <= peaks[name] <= high, name


@pytest.mark.parametrize("one", SAID, ids=_asked)
def test_what_is_said_and_what_helps(one, capsys) -> None:
    page = " ".join(_answer(one, capsys).split())
    for words in (*one.get("says", ()), *one.get("helps", ())):
        assert " ".join(words.split()) in page


def test_they_are_of_many_kinds() -> None:
    assert len({one["kind"] for one in QUESTIONS}) >= 14
