"""A campaign from the command line: a real run, its page and its exit codes."""

from pathlib import Path

import pytest

from research.campaign.__main__ import main

CAMPAIGN = """
items:
  - {name: dry, arguments: [run, --dry-run], why: the embedded default's plan}
  - {name: wrong, arguments: [run, experiment=nothing], why: a request that is wrong}
  - {name: later, arguments: [run], why: no time for it, least_seconds: 500}
"""


def test_a_campaign_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "mine.yaml", tmp_path / "out"
    path.write_text(CAMPAIGN)
    assert main([str(path), "--budget", "2min", f"--out={out}"]) == 4
    page = capsys.readouterr().out
    assert "done in" in page
    assert "exit code 2: logs/wrong.txt" in page
    assert "not started" in page
    assert "unknown experiment" in (out / "logs" / "wrong.txt").read_text()
    assert (out / "environment.json").exists()


def test_what_is_left_has_a_code_of_its_own(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("research.campaign.__main__.record_environment", lambda _: "same")
    path = tmp_path / "mine.yaml"
    path.write_text(CAMPAIGN)
    words = [str(path), "--budget=0.1s", "--items=later", "--out", str(tmp_path / "out")]
    assert main(words) == 3
    said = capsys.readouterr()
    assert "needs 500 s, 0 s left" in said.err
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == ["later"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["a", "b"],
        ["--budget"],
        ["--budget", "8"],
        ["--bugdet=8min"],
        ["cpu", "--items", "corner"],
    ],
)
def test_wrong_requests_are_one_line(arguments: list[str], capsys) -> None:
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
