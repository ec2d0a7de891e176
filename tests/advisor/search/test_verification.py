"""`--verify`: what is asked of the program, and what becomes of its answer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.answer.answer import Answer, Verification
from advisor.base.errors import UserError
from advisor.report.advice_page import page
from advisor.report.plain_advice import plain_advice
from advisor.report.text import plain_lines
from advisor.request.request import Request
from advisor.search import verification as module
from advisor.search.advise import advise
from advisor.search.verification import verify


@pytest.fixture(scope="module")
def advice() -> Answer:
    return advise(Request(model="llama3_8b", gpus="8xH100", recompute=("none", "full:uniform:1")))


def program(answer: str) -> tuple[str, ...]:
    """Keeps its question next to it, and answers so."""
    code = f"import sys; open('asked.json', 'w').write(sys.stdin.read()); print({answer!r})"
    return (sys.executable, "-c", code)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)

    def answer(value: Any) -> None:
        monkeypatch.setattr(module, "PROGRAM", program(json.dumps(value)))

    return answer


SEEN = {
    "stage": 0,
    "predicted_bytes": 3 * 2**30,
    "rehearsed_bytes": 2 * 2**30,
    "explanation": "activations",
    "differences": "run otherwise",
}
REFUSED = "a reason that is told whole: " + " ".join(["words"] * 20)


def test_the_best_are_asked_about_on_their_worst_stage(advice: Answer, answers: Any) -> None:
    answers({"candidates": [SEEN]})
    verified = verify(advice, 1)
    assert verified.candidates[0].verification == Verification(**SEEN)
    assert verified.candidates[1] == advice.candidates[1]
    asked = json.loads(Path("asked.json").read_text())
    (question,) = asked["candidates"]
    assert asked["config_dir"] is None
    assert question["recompute"] == advice.candidates[0].evaluation.setting.spec
    assert question["stage"] == advice.candidates[0].evaluation.peak.stage
    assert question["model"]["num_layers"] == 32
    assert question["num_gpus"] == 8


def test_both_figures_stand_on_the_page_and_in_json(advice: Answer, answers: Any) -> None:
    answers({"candidates": [SEEN, {"stage": 0, "refused": REFUSED}]})
    verified = verify(advice, 2)
    lines = plain_lines(page(verified))
    (row,) = (line for line in lines if "in the activations" in line)
    assert row.split()[2:6] == ["0", "3.00", "2.00", "+50.0"]
    assert any(
        line.split()[1:3] == ["full:uniform:1", "0"] and "not rehearsed" in line for line in lines
    )
    assert REFUSED in " ".join(lines)
    assert "run otherwise" in lines
    assert any("predicted GiB are of the rehearsed job" in line for line in lines)
    assert not any("Rehearsed" in line for line in plain_lines(page(advice)))
    first, second = plain_advice(verified).candidates
    assert first.verification.rehearsed_bytes == 2 * 2**30
    assert second.verification.refused == REFUSED
    assert plain_advice(advice).candidates[0].verification is None


def test_what_is_missing_is_one_error(advice: Answer, answers: Any) -> None:
    answers({"candidates": None, "refused": ["needs megatron-core", "pip it"]})
    with pytest.raises(UserError) as caught:
        verify(advice, 1)
    assert str(caught.value) == "--verify: needs megatron-core; pip it"


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "print('no JSON')", "print('[]')"])
def test_a_program_that_does_not_answer(
    code: str, advice: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRAM", (sys.executable, "-c", code))
    with pytest.raises(UserError, match="gave no answer"):
        verify(advice, 1)


def test_the_program_is_there() -> None:
    """Without running it: what the name stands for can be imported."""
    code = "import importlib.util as u; assert u.find_spec('harness.rehearsal.verify')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
    assert module.PROGRAM[-1] == "harness.rehearsal.verify"


def test_layers_of_another_framework_are_not_rehearsed() -> None:
    other = advise(Request(model="llama3_8b", gpus="8xH100", framework="torchtitan", quick=True))
    with pytest.raises(UserError, match="Megatron's layers, which torchtitan does not use"):
        verify(other, 1)
