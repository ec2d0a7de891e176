"""Files that are written, and what is refused before the search."""

import json
import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.cli.main import main
from advisor.report.exports.row_exports import write_exports
from advisor.request.request import Request
from advisor.search.advise import advise

JOB = ("--model", "llama3_8b", "--gpus", "8xH100", "--recompute", "none")


def test_both_are_written_and_say_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, snapshot = tmp_path / "step.json", tmp_path / "s.pickle"
    words = [*JOB, "--trace", str(trace), "--memory-snapshot", str(snapshot), "--row", "1"]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert f"wrote {trace}: open it at ui.perfetto.dev" in told
    assert f"wrote {snapshot}: open it at pytorch.org/memory_viz" in told
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
        (["--trace", "step.json", "--row", "9"], "--row = 9: there is 1 row; nearest: 1"),
    ],
)
def test_what_cannot_be_written_is_refused(
    words: list[str], relation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*JOB, *words]) == 2
    captured = capsys.readouterr()
    assert relation in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_nothing_is_written_where_every_setting_is_rejected(tmp_path: Path) -> None:
    answer = advise(Request(model="llama3_8b", gpus="8xH100", recompute=("none",)))
    with pytest.raises(UserError, match="there is nothing to write: every setting is rejected"):
        write_exports(replace(answer, candidates=()), None, tmp_path / "step.json", None, ())
    assert not list(tmp_path.iterdir())


def test_the_answer_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    main([*JOB, "--format", "json"])
    printed = capsys.readouterr().out
    assert main([*JOB, "--format", "json", "-o", str(path)]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"advise: wrote {path}\n")
    assert path.read_text() == printed
    compared = tmp_path / "compared.txt"
    assert main([*JOB, "--against", "0.13", "-o", str(compared)]) == 0
    assert compared.read_text().startswith("first   --model llama3_8b --gpus 8xH100 --recompute")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-o", "."], "-o = .: is a folder; write e.g. -o job.html"),
        (["-o", "no/such/file"], "-o = no/such/file: there is no folder no/such"),
        (["--format", "html", "--explain"], "--explain = 1: cannot be combined with --format html"),
        (["--against", "--tp 2 -o x"], "-o: cannot be combined with two requests; leave it out"),
    ],
)
def test_what_an_answer_cannot_go_to(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*JOB, *words]) == 2
    assert says in capsys.readouterr().err
