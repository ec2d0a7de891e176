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
    assert [f.rule for f in found.report.findings if f.level is not Level.NOTE] == case.get(
        "left", []
    )
    assert found.before == text_of(part, name)
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
    assert cli.main(["lint", flag, str(link)]) == int(flag == "--diff")
    said = capsys.readouterr().out
    assert "\n-torchrun" in said
    assert "\n+torchrun" in said
    assert (path.read_text() == "\ufeff" + WRONG) is (flag == "--diff")
    assert path.read_text().startswith("\ufeff")
    assert path.stat().st_mode & 0o777 == 0o751
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_has_no_fix_is_left_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(text_of("corpus", "faulty/megatron_graphs_full.sh"))
    assert cli.main(["lint", "--fix", str(path)]) == 1
    assert "(no automatic fix)" in capsys.readouterr().out
    assert path.read_text() == text_of("corpus", "faulty/megatron_graphs_full.sh")
    assert cli.main(["lint", "--fix", "--recompute-granularity", "full"]) == 2


@pytest.mark.parametrize(
    ("text", "ignored", "notes"),
    [
        (f"# advise: ignore full_needs_method\n{WRONG}", 1, 0),
        (
            WRONG.replace("\n", "  # advise: ignore full_needs_method, full_needs_num_layers\n"),
            2,
            0,
        ),
        ("# advise: ignore full_needs_method\n" + WRONG.replace(" --", " \\\n  --"), 1, 0),
        (f"{WRONG}# advise: ignore-file full_needs_method, typo\n", 1, 1),
        (f"# advise: ignore full_needs_method\n\n{WRONG}", 0, 1),
    ],
)
def test_comments_ignore_findings(text: str, ignored: int, notes: int, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(text)
    report = lint_target(str(path))
    assert len(report.ignored) == ignored
    assert len(report.findings) == 2 - ignored + notes
    assert [f.rule for f in report.findings if f.level is Level.NOTE] == ["unused_ignore"] * notes
    assert report.exit_code == int(ignored < 2)


@pytest.mark.parametrize("name", ["a.yaml", "a.toml", "a.py"])
def test_comments_of_other_formats(name: str, tmp_path: Path) -> None:
    texts = {
        "a.yaml": "num_layers: 4\nrecompute_granularity: full # advise: ignore full_needs_method\n",
        "a.toml": '[activation_checkpoint]\n# advise: ignore mode\nmode = "x"\n',
        "a.py": "from transformers import TrainingArguments\n# advise: ignore precision\n"
        "a = TrainingArguments(bf16=True, fp16=True, gradient_checkpointing=True)\n",
    }
    path = tmp_path / name
    path.write_text(texts[name])
    assert len(lint_target(str(path)).ignored) == 1
