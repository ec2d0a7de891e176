"""What we print has been read by the parser of its program: data/parsers has what each answered."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.turns import TURN

from .parsers.programs import ACCEPTED
from .parsers.record import PROGRAMS, Program, recorded

pytestmark = pytest.mark.oracle
OF_A_PROGRAM = 12


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_everything_that_we_print_is_accepted(program: Program) -> None:
    answers, asked = recorded(program), program.questions()
    command = f"python -m tests.oracles.parsers.record {program}"
    new = [question for question in asked if question not in answers]
    assert not new, f"{len(new)} questions without an answer; record them: {command}\n{new[0]}"
    assert len(asked) == len(answers), f"some are printed no more: {command}"
    assert {q: answer for q, answer in answers.items() if answer != ACCEPTED} == {}


def _folder(wheel: str) -> str:
    """Where a wheel lies unpacked, empty where it is installed; the test is skipped where not."""
    unpacked = Path(sys.prefix) / wheel.replace("==", "-")
    if unpacked.exists():
        return str(unpacked)
    name, _, release = wheel.partition("==")
    try:
        here = version(name)
    except PackageNotFoundError:
        here = "none"
    if release not in ("", here):
        pytest.skip(f"{wheel} is not installed")
    return ""


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_installed_program_answers_as_recorded(program: Program) -> None:
    folders = [_folder(wheel) for wheel in (program.wheels or str(program.framework)).split()]
    if len({*folders}) > 1:
        pytest.skip("its wheels do not lie in one folder")
    answers = recorded(program)
    asked = sorted(answers)[TURN % OF_A_PROGRAM :: 1 + len(answers) // OF_A_PROGRAM]
    refused = "8\n--no-such-option" if not program.file else "8\n[no]\nsuch = 1\n"
    *live, other = program.answers([*asked, refused], folders[0])
    assert live == [answers[question] for question in asked]
    assert other != ACCEPTED
