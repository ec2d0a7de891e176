"""What the commands refuse in one line, and what their help says."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.cli import main as cli
from tests.harness.cli.test_ingest import FULL, HEAD, steps
from tests.harness.cli.test_rehearse import TINY
from tests.harness.logs.snapshot_by_hand import recorded_by_hand

pytest.importorskip("hydra")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"
WORDS = {
    **{"root": ROOT, "recorded": RECORDED, "result": RECORDED / "selective_mlp/result.json"},
    **{"tiny": " ".join(TINY), "full": " ".join(FULL)},
}
REFUSED: dict[str, str] = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())
EXIT_CODES = ("", "compare", "golden", "report", "run", "rehearse")
FILES = ("junit.xml", "report.html", "bmf.json", "trials.csv")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A folder with what the requests name; nothing is added to it."""
    monkeypatch.chdir(tmp_path)
    Path("a.log").write_text(HEAD + steps())
    Path("empty").mkdir()
    Path("rank0.pickle").write_bytes(pickle.dumps(recorded_by_hand()))
    before = sorted(tmp_path.iterdir())
    yield before
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("request_", REFUSED)
def test_a_wrong_request_is_one_line_and_exit_2(request_: str, capsys) -> None:
    assert cli.main(request_.format(**WORDS).split()) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"harness {request_.split()[0]}")
    assert REFUSED[request_] in line
    assert said.out == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *((name, ("Exit codes",)) for name in EXIT_CODES),
        *(("report", FILES), ("calibrate", ("--budget TIME",))),
        ("rehearse", ("no pipeline bubbles",)),
        ("", [f"\n  {name} " for name in cli.MODULES]),
    ],
)
def test_help(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert [one for one in words if one not in shown] == []
    assert max(map(len, shown.splitlines())) <= 106
