"""Every line that we print has been read by the parser of its program; data/parsers has what each
answered. `python -m tests.oracles.parsers.record ID` asks one anew, and fetches its wheel."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.turns import TURN

from .parsers.answer import ACCEPTED
from .parsers.record import PROGRAMS, Program, recorded

pytestmark = pytest.mark.oracle
OF_A_PROGRAM = 12


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_every_line_that_we_print_is_accepted(program: Program) -> None:
    answers = recorded(program)["answers"]
    asked = program.questions()
    new = [question for question in asked if question not in answers]
    command = f"python -m tests.oracles.parsers.record {program}"
    assert not new, f"{len(new)} lines without an answer; record them: {command}\n{new[0]}"
    assert len(asked) == len(answers), f"lines that are printed no more; drop them: {command}"
    assert {q: answer for q, answer in answers.items() if answer != ACCEPTED} == {}


def _here(wheel: str) -> str | None:
    """The folder that has the wheel, empty where it is installed; None where neither is."""
    name, _, release = wheel.partition("==")
    unpacked = Path(sys.prefix) / wheel.replace("==", "-")
    if unpacked.exists():
        return str(unpacked)
    try:
        return "" if version(name) == release else None
    except PackageNotFoundError:
        return None


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_installed_program_answers_as_recorded(program: Program) -> None:
    folders = [_here(wheel) for wheel in program.wheels]
    if None in folders or not folders:
        pytest.skip(f"{program.wheels[0]} is not installed")
    answers = recorded(program)["answers"]
    asked = sorted(answers)[TURN % OF_A_PROGRAM :: max(1, len(answers) // OF_A_PROGRAM)]
    assert program.answers(asked, folders[0] or "") == [answers[question] for question in asked]


def test_a_wrong_line_is_refused() -> None:
    program = next(one for one in PROGRAMS if str(one) == "huggingface-5")
    if _here(program.wheels[0]) is None:
        pytest.skip("transformers is not installed")
    (answer,) = program.answers(["8\n--fsdp_transformer_layers 4"])
    assert "fsdp_transformer_layers" in answer
