"""`advise lint --fix`: what it changes, what it leaves, and how it writes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.base.rule import Level
from advisor.cli import main as cli
from advisor.lint.fix import fixed
from advisor.lint.target import lint_target

FOLDER = Path(__file__).parent
CASES = yaml.safe_load((FOLDER / "fixes.yaml").read_text())
IGNORED = yaml.safe_load((FOLDER / "ignored.yaml").read_text())
EVERY = [(part, name) for part, cases in CASES.items() for name in cases]
WRONG = "torchrun pretrain_gpt.py --num-layers 4 --recompute-granularity full\n"


def text_of(part: str, name: str) -> str:
    if part == "corpus":
        return (FOLDER / "configurations" / name).read_bytes().decode()
    return str(CASES[part][name]["text"])


@pytest.mark.parametrize(("part", "name"), EVERY)
def test_a_fix_changes_its_lines_and_nothing_else(part: str, name: str, tmp_path: Path) -> None:
    path, case = tmp_path / Path(name).name, CASES[part][name]
    path.write_bytes(text_of(part, name).encode())
    found = fixed(path)
    lines = [line.rstrip("\r") for line in found.diff.split("\n")[2:]]
    assert [line for line in lines if line and line[0] in "+-"] == case["changed"]
    left = [one.rule for one in found.report.findings if one.level is not Level.NOTE]
    assert left == case.get("left", [])
    path.write_bytes(found.after.encode())
    assert fixed(path).diff == ""


def test_nine_of_ten_have_a_fix(record_property: Any) -> None:
    for part, cases in CASES.items():
        written = sum(bool(case["changed"]) for case in cases.values())
        record_property(f"fixed_{part}", f"{written} of {len(cases)}")
        assert written >= 0.9 * len(cases), part


@pytest.mark.parametrize("flag", ["--fix", "--diff"])
def test_a_file_is_written_or_only_shown(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, link = tmp_path / "train.sh", tmp_path / "link.sh"
    path.write_text("\ufeff" + WRONG)
    path.chmod(0o751)
    link.symlink_to(path)
    assert cli.main(["lint", flag, str(link), str(tmp_path / "typo.sh")]) == 2
    assert path.read_text() == "\ufeff" + WRONG
    assert cli.main(["lint", flag, str(link)]) == int(flag == "--diff")
    assert "\n+torchrun" in capsys.readouterr().out
    assert (path.read_text() == "\ufeff" + WRONG) is (flag == "--diff")
    assert path.read_text().startswith("\ufeff")
    assert path.stat().st_mode & 0o777 == 0o751
    assert sorted(tmp_path.iterdir()) == [link, path]
    assert link.is_symlink()


def test_what_has_no_fix_is_left_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, text = tmp_path / "train.sh", text_of("corpus", "faulty/megatron_graphs_full.sh")
    path.write_text(text)
    assert cli.main(["lint", "--fix", str(path)]) == 1
    assert "(no automatic fix)" in capsys.readouterr().out
    assert path.read_text() == text


@pytest.mark.parametrize("name", IGNORED)
def test_comments_ignore_findings(name: str, tmp_path: Path) -> None:
    case, path = IGNORED[name], tmp_path / name
    path.write_text(case["text"])
    report = lint_target(str(path))
    unused = [one for one in report.findings if one.rule == "unused_ignore"]
    assert (len(report.ignored), len(unused)) == (case["ignored"], case.get("unused", 0))
    assert not set(report.ignored) & set(report.findings)
    assert {one.level for one in unused} <= {Level.NOTE}


def test_a_file_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, broken = tmp_path / "train.sh", tmp_path / "broken.yaml"
    wrong.write_text(WRONG)
    broken.write_text("a: [1\n")
    assert cli.main(["lint", str(broken), str(wrong)]) == 2
    shown = capsys.readouterr()
    assert "full_needs_method" in shown.out
    assert "not valid YAML" in shown.err
