"""The scripts of `advise completion` and `harness completion`, run by the shells themselves."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from shlex import quote

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
    words = re.sub("([=:])", r" \1 ", line) + (" ''" if line.endswith(" ") else "")
    code = (
        f"source {path}; compopt() {{ :; }}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; "
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
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
def test_bash_offers_what_stands_behind_its_word_breaks(script) -> None:
    path = script("harness", "bash")
    assert bash(path, "harness run experiment=llama3_8b_2") == ["llama3_8b_2xh100"]
    assert bash(path, "harness run gpus=16xB3") == ["16xB300-SXM-288GB"]
    assert "measure.steps=" in bash(path, "harness run measure.")
    path = script("advise", "bash")
    assert bash(path, "advise --precision=mx") == ["mxfp8"]
    assert bash(path, "advise --tp ") == []
    assert "--model" in bash(path, "advise --explain ")


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish(script, tmp_path: Path) -> None:
    for name in ("my job.sh", "plan.txt", "sub dir/inner.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = {
        "advise --from my": ["my job.sh"],
        "advise --from my\\ j": ["my job.sh"],
        "advise --output=pl": ["--output=plan.txt"],
        "advise --config-dir=su": ["--config-dir=sub dir/"],
        "advise --tp=": [],
    }
    for line, offered in (ASKED | files).items():
        code = f"source {script(line, 'fish')}; cd {tmp_path}; complete -C {quote(line)}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True
        )
        assert [one.partition("\t")[0] for one in done.stdout.splitlines()] == offered, line


TYPED = {
    "advise --from my": "--from|my job.sh",
    "advise --from my\\ j": "--from|my job.sh",
    "advise --from 'my j": "--from|my job.sh",
    "advise lint a": "lint|a;b.sh",
    "advise --from \\$": "--from|$x.sh",
    "advise --config-dir su": "--config-dir|sub dir/",
    "advise --from sub\\ dir/i": "--from|sub dir/inner.yaml",
    "advise --output=pl": "--output=plan.txt",
    "advise --config-dir=sub": "--config-dir=sub dir/",
    "advise --model pl": "--model|plan.txt",
    "advise --model llama3_70": "--model|llama3_70b",
    "harness run --dry": "run|--dry-run",
    "harness run gpus=16xB3": "run|gpus=16xB300-SXM-288GB",
    "harness run experim": "run|experiment=",
    "harness report pl": "report|plan.txt",
}
_ZSH = "autoload -U compinit; compinit -u -D; bindkey -e; setopt no_auto_remove_slash; "
SHELLS = {"bash": ("bash", "--norc", "-i"), "zsh": ("zsh", "-f", "-i")}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_line_that_a_tab_writes(script, shell: str, tmp_path: Path) -> None:
    """The shell itself says which words it reads, in a folder of names that need quotes."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    paths = [script(program, shell) for program in COMMANDS]
    folder = tmp_path / "folder"
    (folder / "sub dir").mkdir(parents=True)
    for name in ("my job.sh", "a;b.sh", "$x.sh", "plan.txt", "sub dir/inner.yaml"):
        (folder / name).touch()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "dumb", "HISTFILE": "", "INPUTRC": "/dev/null"}
        os.execvp(SHELLS[shell][0], SHELLS[shell])
    setup = _ZSH if shell == "zsh" else ""
    setup += "".join(f"source {path}; " for path in paths)
    shown = "said() { local IFS='|'; printf '\\n<%s>\\n' \"${*:2}\"; }"
    os.write(terminal, f"{setup}{shown}; echo rea''dy\n".encode())
    read_until(terminal, "ready")
    for line, words in TYPED.items():
        os.write(terminal, f"{line}\t\x01said \x05\n".encode())
        assert read_until(terminal, f"<{words}>"), line
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
        assert "is not a supported shell; " in told
        assert run(["completion"]) == 2
        assert "bash, zsh or fish" in capsys.readouterr().err
