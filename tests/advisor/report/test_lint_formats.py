"""`advise lint --format`: what other programs read."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from advisor.cli import main as cli

ROOT = Path(__file__).parents[3]
REQUIRED = yaml.safe_load(Path(__file__).with_name("sarif_required.yaml").read_text())
WRONG = "torchrun pretrain_gpt.py --num-layers 4 --recompute-granularity full\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("a,b: 50%.sh").write_text("# advise: ignore full_needs_method\n" + WRONG)
    Path("ok.sh").write_text(WRONG.replace("full", "selective --recompute-modules mlp"))
    Path("other.yaml").write_text("a: 1\n")
    return ["a,b: 50%.sh", "ok.sh", "other.yaml"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["lint", *words]) == 1
    out, err = capsys.readouterr()
    assert "skipped: lint = other.yaml: holds no setting" in err
    return str(out)


def test_json_obeys_its_schema(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "--format", "json", *files))
    schema = json.loads((ROOT / "advisor/report/lint.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(found)
    assert found["files"] == ["a,b: 50%.sh", "ok.sh"]
    rules = {one["rule"]: one["ignored"] for one in found["findings"]}
    assert rules == {"full_needs_num_layers": False, "full_needs_method": True}


def test_sarif_has_what_is_required(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "--format", "sarif", *files))
    jsonschema.Draft202012Validator(REQUIRED).validate(found)
    bad, ignored = found["runs"][0]["results"]
    assert bad["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a%2Cb%3A%2050%25.sh"},
        "region": {"startLine": 2, "startColumn": 41},
    }
    assert ignored["suppressions"] == [{"kind": "inSource"}]


def test_github_reads_every_character(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(capsys, "--format", "github", *files).splitlines()
    head = "::error file=a%2Cb%3A 50%25.sh,line=2,col=41,title=full_needs_num_layers::"
    assert line.startswith(head)


def test_junit_has_a_case_for_every_file(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "--format", "junit", ".")
    assert 'tests="3" failures="1" errors="0" skipped="1"' in text
    assert '<testcase classname="ok.sh" name="lint">' in text


def test_a_file_that_a_script_names_is_said_once_and_its_comments_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scripts").mkdir()
    Path("scripts/train.sh").write_text("python pretrain_gpt.py --yaml-cfg ../a.yaml\n")
    wrong = "num_layers: 4\nrecompute_granularity: full  # advise: ignore full_needs_method\n"
    Path("a.yaml").write_text(wrong)
    assert cli.main(["lint", "--format", "github", "."]) == 1
    text = capsys.readouterr().out
    assert (text.count("file=a.yaml,"), text.count("full_needs_method")) == (1, 0), text
