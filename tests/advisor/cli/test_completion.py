"""The scripts of `advise completion` and `harness completion`, run by the shells themselves."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from advisor.cli.main import main as advise
from harness.cli.main import main as harness

COMMANDS = {"advise": advise, "harness": harness}
ASKED = {
    "advise --mod": ["--model"],
    "advise --model llama3_70": ["llama3_70b"],
    "advise --model llama3_70b --gpus 32xH2": ["32xH200-SXM-141GB"],
    "advise --model llama3_70b --precision fp1": ["fp16"],
    "advise --framework torcht": ["torchtitan"],
    "advise --plot-kind pa": ["pareto"],
    "advise dia": ["diagnose"],
    "advise rules --framework-v": ["--framework-version"],
    "advise rules --framework torcht": ["torchtitan"],
    "advise diff --format j": ["json"],
    "advise recipes kimi": ["kimi_k2"],
    "harness reh": ["rehearse"],
    "harness run --dry": ["--dry-run"],
    "harness golden imp": ["import"],
    "harness accuracy --half h": ["held_out"],
}


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The script of a program for a shell, in a file."""

    def write(line: str, shell: str) -> Path:
        program = line.split()[0]
        path = tmp_path / f"{program}.{shell}"
        assert COMMANDS[program](["completion", shell]) == 0
        path.write_text(capsys.readouterr().out)
        return path

    return write


def bash(path: Path, line: str) -> list[str]:
    """What bash is told to offer behind `line`."""
    program = line.split()[0]
    code = (
        f"source {path}; compopt() {{ :; }}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; "
        f"_{program}_completion; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(("line", "offered"), ASKED.items())
def test_bash(script, line: str, offered: list[str]) -> None:
    assert bash(script(line, "bash"), line) == offered


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_offers_what_stands_behind_its_word_breaks(script, tmp_path: Path) -> None:
    path = script("harness", "bash")
    assert bash(path, "harness run experiment=llama3_8b_2") == ["llama3_8b_2xh100"]
    assert bash(path, "harness run gpus=16xB3") == ["16xB300-SXM-288GB"]
    assert "measure.steps=" in bash(path, "harness run measure.")
    path = script("advise", "bash")
    assert bash(path, "advise --precision=mx") == ["mxfp8"]
    assert bash(path, "advise --tp ") == []
    assert "--model" in bash(path, "advise --explain ")
    (tmp_path / "train.log").touch()
    assert bash(path, f"advise diagnose {tmp_path}/tr") == [f"{tmp_path}/train.log"]


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish(script) -> None:
    for line, offered in ASKED.items():
        code = f"source {script(line, 'fish')}; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == offered, line


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
@pytest.mark.parametrize("line", ["advise --model llama3_70", "harness run --dry"])
def test_zsh_writes_the_only_word_that_fits(script, line: str, tmp_path: Path) -> None:
    """Completion needs zsh's line editor, hence a terminal."""
    path = script(line, "zsh")
    (tmp_path / ".zshrc").write_text(
        f"PS1='> '; autoload -U compinit; compinit -u -D; source {path}; echo ready\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"ZDOTDIR": str(tmp_path), "TERM": "dumb"}
        os.execvp("zsh", ["zsh", "-i"])
    read_until(terminal, "ready")
    os.write(terminal, f"{line}\t".encode())
    assert read_until(terminal, ASKED[line][0])
    os.close(terminal)
    os.waitpid(process, 0)


def read_until(terminal: int, wanted: str) -> bool:
    """Whether the terminal shows the words within a time that only a fault needs."""
    shown, end = "", time.monotonic() + 60
    while wanted not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return wanted in shown


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for program, run in COMMANDS.items():
        assert run(["completion", "tcsh"]) == 2
        assert f"{program}" in (told := capsys.readouterr().err)
        assert "has no script; " in told
        assert run(["completion"]) == 2
        assert "bash, zsh or fish" in capsys.readouterr().err
