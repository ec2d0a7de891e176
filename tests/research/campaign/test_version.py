"""A program is the same as long as its modules and its configuration are."""

from pathlib import Path

from research.campaign.version import digest, program_version


def test_it_changes_with_the_sources_alone(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("a")
    seen = [digest([tmp_path])]
    for name, text in (("module.py", "b"), ("model.yaml", "a"), ("other.py", "a")):
        (tmp_path / name).write_text(text)
        seen.append(digest([tmp_path]))
    assert len(set(seen)) == len(seen)
    (tmp_path / "notes.md").write_text("a")
    assert digest([tmp_path]) == seen[-1]


def test_this_program_has_one() -> None:
    assert program_version() == program_version()
    assert len(program_version()) == 12
