"""What the commands answer a shell that completes a line, and the scripts that make it ask."""

import io

import argcomplete
import pytest

from advisor.cli.main import main as advise
from harness.cli.main import main as harness
from tests.advisor.tables import tables

TABLES = tables(__file__)

pytestmark = pytest.mark.every_python

COMMANDS = {"advise": advise, "harness": harness}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch):
    """What is offered after a line, in argcomplete's own way: variables, and a stream."""

    class EndedError(BaseException):
        pass

    def end(_: int) -> None:
        raise EndedError

    def asked(line: str) -> list[str]:
        out = io.StringIO()
        answer = argcomplete.autocomplete

        def autocomplete(parser) -> None:
            answer(parser, exit_method=end, output_stream=out)

        values = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
        values |= {"_ARGCOMPLETE_COMP_WORDBREAKS": " ", "_ARGCOMPLETE_IFS": "\n"}

        def no_debug_stream(*_: object) -> None:
            raise OSError

        with monkeypatch.context() as patch:
            patch.setattr("os.fdopen", no_debug_stream)  # of descriptor 9, which is pytest's
            patch.setattr(argcomplete, "autocomplete", autocomplete)
            for name, value in values.items():
                patch.setenv(name, value)
            with pytest.raises(EndedError):
                COMMANDS[line.split()[0]]([])
        return [word.strip() for word in out.getvalue().split("\n") if word]

    return asked


@pytest.mark.parametrize(("line", "offered"), TABLES["test_what_is_offered"])
def test_what_is_offered(ask, line: str, offered: list[str], tmp_path, monkeypatch) -> None:
    (tmp_path / "my_job.sh").touch()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ask(line) == offered


def test_a_subcommand_offers_its_flags_alone(ask) -> None:
    offered = ask("advise models --")
    assert set(offered) == {"--config-dir", "--help"}


@pytest.mark.parametrize("program", COMMANDS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(program: str, shell: str, capsys) -> None:
    assert COMMANDS[program](["completion", shell]) == 0
    script = capsys.readouterr().out
    assert program in script
    assert "_ARGCOMPLETE" in script


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for program, run in COMMANDS.items():
        assert run(["completion", "tcsh"]) == 2
        assert f"{program}" in (reported := capsys.readouterr().err)
        assert "is not a supported shell; " in reported
        assert run(["completion"]) == 2
        assert "bash, zsh or fish" in capsys.readouterr().err
