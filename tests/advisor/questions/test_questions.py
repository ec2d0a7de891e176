"""Questions of public threads, as their authors would type them: on adapters, models that see and
new models; on memory of reinforcement learning and budgets of tokens.

Answers were decided before they were asked for: the exit code, the peak of a `row` by hand or as it
was published, which phase decides and how high each is, the `lowest` peak of all rows, and what is
said. `why` has the arithmetic."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from advisor.base.units import GIB
from advisor.cli.main import main

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "frameworks" / "reinforcement" / "examples"
QUESTIONS = {file.stem: json.loads(file.read_text()) for file in sorted(HERE.glob("*.json"))}
_ROW = re.compile(r"(?m)^ *\d+  (\S+)(?: \([a-z ]+\))? +~?([\d.]+) \(")


def _with(*fields: str) -> list[Any]:
    """Questions whose answer has one of the fields."""
    every = [one for questions in QUESTIONS.values() for one in questions]
    return [pytest.param(one, id=one["asked"]) for one in every if {*fields} & {*one}]


def _answer(one: dict[str, Any], capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """The exit code and what is printed, or the line that says why nothing is."""
    for name, lines in one.get("files", {}).items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("\n".join(lines) + "\n")
    code = main([*shlex.split(one["args"].replace("EXAMPLES", str(EXAMPLES))), *more])
    return code, "".join(capsys.readouterr())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("one", _with("exit", "peak", "says"))
def test_the_page(one, capsys) -> None:
    code, page = _answer(one, capsys)
    assert code == one.get("exit", code)
    if "peak" in one:
        peaks = {name: float(peak) for name, peak in reversed(_ROW.findall(page))}
        low, high = one["peak"]
        assert low <= peaks[one["row"]] <= high
    for words in one.get("says", ()):
        assert re.search(words, " ".join(page.split())), words


@pytest.mark.parametrize("one", _with("fits", "decides", "phases", "lowest"))
def test_what_fits_and_which_phase_decides(one, capsys) -> None:
    found = json.loads(_answer(one, capsys, "--quick", "--format", "json")[1])
    rows = found["candidates"]
    assert any(row["fits"] for row in rows) == one["fits"]
    if "decides" in one:
        where = "over the budget in the {}", "GiB in the {}"
        assert any(words.format(one["decides"]) in found["verdict"] for words in where)
    low, high = one.get("lowest", (0, float("inf")))
    assert low <= min(row["peak_reserved_bytes"] for row in rows) / GIB <= high
    # a thread's job recomputes whole layers
    usual = next((row for row in rows if row["recompute"]["granularity"] == "full"), rows[0])
    peaks = {phase["name"]: phase["peak_reserved_bytes"] / GIB for phase in usual["phases"]}
    for name, (low, high) in one.get("phases", {}).items():
        assert low <= peaks[name] <= high, name


@pytest.mark.parametrize("questions", QUESTIONS.values(), ids=QUESTIONS)
def test_they_are_of_many_kinds(questions: list[dict[str, Any]]) -> None:
    assert len({one["kind"] for one in questions}) >= 14
