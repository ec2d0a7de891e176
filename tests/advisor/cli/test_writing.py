"""Files that are written, and what is refused before the search."""

import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.api.asked_files import AskedFiles, write_files
from advisor.base.errors import UserError
from advisor.base.output_file import check_output_file
from advisor.cli.arguments import OutputFormat, parse
from advisor.cli.main import main
from advisor.request.request import Request
from advisor.search.advise import advise

JOB = ("--model", "llama3_8b", "--gpus", "8xH100", "--recompute", "none", "--quick")


def test_both_are_written_and_say_the_command(tmp_path, capsys) -> None:
    trace, snapshot = tmp_path / "step.json", tmp_path / "s.pickle"
    words = [*JOB, "--trace", str(trace), "--memory-snapshot", str(snapshot), "--row", "1"]
    assert main(words) == 0
    reported = capsys.readouterr().err
    assert f"wrote {trace}: open it at ui.perfetto.dev" in reported
    assert f"wrote {snapshot}: open it at pytorch.org/memory_viz" in reported
    for said in (
        json.loads(trace.read_text())["otherData"],
        pickle.loads(snapshot.read_bytes())["allocator_settings"],
    ):
        assert said["request"] == " ".join(["advise", *words])
        assert "row 1: none" in said["row"]
        assert said["written by"].startswith("advise ")


@pytest.mark.parametrize(
    ("words", "relation"),
    [
        (["--trace", "step.txt"], "--trace = step.txt: must end in .json or"),
        (["--memory-snapshot", "s.pkl"], "must end in .pickle"),
        (["--trace", "nowhere/step.json"], "there is no folder nowhere"),
        (["--row", "1"], "--row = 1: needs a file that shows one row"),
        (["--trace", "step.json", "--row", "9"], "--row = 9: the answer has 1 row; nearest: 1"),
        (["-o", "."], "-o = .: is a folder; write e.g. -o job.html"),
        (["--against", "0.13", "-o", "."], "-o = .: is a folder; write e.g. -o job.html"),
        (
            ["--against", "0.13", "-o", "x.csv"],
            "-o = x.csv: cannot be csv: a comparison is a table",
        ),
        (["-o", "x.csv", "--explain"], "--explain: cannot be combined with --format csv"),
        (["-o", "no/such/file"], "-o = no/such/file: there is no folder no/such"),
        (["--format", "html", "--explain"], "--explain: cannot be combined with --format html"),
        (["--against", "--tp 2 -o x"], "-o: cannot be combined with two requests; leave it out"),
    ],
)
def test_what_cannot_be_written_is_refused(words: list[str], relation: str, capsys) -> None:
    assert main([*JOB, *words]) == 2
    captured = capsys.readouterr()
    assert relation in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_a_folder_is_refused_before_the_search(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("advisor.cli.commands.answer_to", None)
    for flag, name, example in (
        ("-o", "d", "job.html"),
        ("--plot", "d.svg", "memory.svg"),
        ("--trace", "d.json", "step.json"),
        ("--memory-snapshot", "d.pickle", "step.pickle"),
    ):
        Path(name).mkdir()
        assert main([*JOB, flag, name]) == 2
        reported = f"{flag} = {name}: is a folder; write e.g. {flag} {name}/{example}"
        assert reported in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"-o = .*: is not writable"):
        check_output_file("-o", tmp_path / "job.html", "job.html")


@pytest.mark.parametrize("other", ["--plot", "--trace", "--memory-snapshot"])
def test_two_files_of_one_name_are_refused(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = {"--plot": "x.svg", "--trace": "x.json", "--memory-snapshot": "x.pickle"}[other]
    if other == "--plot":
        pytest.importorskip("matplotlib")
    assert main([*JOB, "-o", f"./{name}", other, name]) == 2
    reported = f"{other} = {name}: must not be the file of -o; name another file"
    assert reported in capsys.readouterr().err


def test_the_name_says_the_format_where_no_flag_does(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["-o", "a.json"], ["-o", "a.CSV"], ["-o", "b.json", "--format", "csv"]):
        assert main([*JOB, *words]) == 0
    assert json.loads(Path("a.json").read_text())["candidates"]
    assert Path("a.CSV").read_text() == Path("b.json").read_text()
    assert parse([*JOB, "-o", "job.html"]).output is OutputFormat.HTML
    assert main(["diff", " ".join(JOB), " ".join(JOB), "-o", "c.json"]) == 0
    assert json.loads(Path("c.json").read_text())["first"]
    capsys.readouterr()
    assert main([*JOB, "-o", "-"]) == 0
    assert "llama3_8b" in capsys.readouterr().out
    assert not Path("-").exists()


def test_a_file_has_no_colours_where_stdout_is_a_terminal(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main([*JOB, "-o", str(tmp_path / "answer.txt")]) == 0
    assert "\033" not in (tmp_path / "answer.txt").read_text()


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_file_is_written_where_a_stream_is_closed(closed: str, tmp_path: Path) -> None:
    """As a script that the interpreter opens where the stream was, like the installed command."""
    script = tmp_path / "advise"
    script.write_text("import sys\nfrom advisor.cli.main import command\nsys.exit(command())\n")
    line = shlex.join([sys.executable, str(script), *JOB, "-o", str(tmp_path / "answer.json")])
    root = Path(__file__).parents[3]
    done = subprocess.run(
        f"{line} {closed}", shell=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "answer.json").read_text())["candidates"]


def test_nothing_is_written_where_every_setting_is_rejected(tmp_path: Path) -> None:
    answer = advise(Request(model="llama3_8b", gpus="8xH100", recompute=("none",), quick=True))
    with pytest.raises(UserError, match="there is nothing to write: every setting is rejected"):
        write_files(replace(answer, candidates=()), AskedFiles(trace=tmp_path / "step.json"), "")
    assert not list(tmp_path.iterdir())


def test_the_answer_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    main([*JOB, "--format", "json"])
    printed = capsys.readouterr().out
    assert main([*JOB, "--format", "json", "-o", str(path)]) == 0
    reported = capsys.readouterr()
    assert (reported.out, reported.err) == ("", f"advise: wrote {path}\n")
    assert path.read_text() == printed
    compared = tmp_path / "compared.txt"
    assert main([*JOB, "--against", "0.13", "-o", str(compared)]) == 0
    assert compared.read_text().startswith("first   --model llama3_8b --gpus 8xH100 --recompute")
