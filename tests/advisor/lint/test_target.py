"""What `advise lint` may be pointed at."""

from pathlib import Path

import pytest

from advisor.base.errors import UserError
from advisor.base.limits import MOST_COMMAND, MOST_CONFIG_BYTES
from advisor.lint.request_from import read_job
from advisor.lint.target import lint_target

RED = "a\x1b[31m.sh"
COMMAND = "python pretrain_gpt.py --num-layers 2 --hidden-size 64\n"


def test_a_name_reaches_nobody_raw(tmp_path: Path) -> None:
    path = tmp_path / RED
    path.write_text(COMMAND + ". other.sh\n" + COMMAND.replace("2", "4"))
    report = lint_target(str(path))
    assert report.target == repr(str(path))
    assert str(report.notes[0].place) == f"{str(path)!r}:2:1"
    with pytest.raises(UserError) as raised:
        lint_target(RED)
    assert str(raised.value).isprintable()
    for target in (str(path), f"{path}#9"):
        with pytest.raises(UserError) as raised:
            read_job(target, {})
        assert str(raised.value).isprintable()


def test_a_command_line_has_a_longest() -> None:
    with pytest.raises(UserError, match="command line: is longer than 200,000 characters"):
        lint_target(["run", *["--a"] * (MOST_COMMAND // 4)])


def test_a_configuration_has_a_longest(tmp_path: Path) -> None:
    for suffix in (".yaml", ".json", ".toml", ".py"):
        path = tmp_path / f"a{suffix}"
        path.write_text("#" * (MOST_CONFIG_BYTES + 1))
        with pytest.raises(UserError, match="is larger than 512 KiB"):
            lint_target(str(path))


def test_where_nothing_is_found_the_first_note_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(COMMAND.strip() + " --a" * MOST_COMMAND)
    with pytest.raises(UserError, match=r"a.sh:1:1 python .* is longer than 200,000 characters"):
        lint_target(str(path))


def test_the_stack_is_the_last_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("advisor.lint.target.read_shell", deep)
    path = tmp_path / "a.sh"
    path.write_text(COMMAND)
    with pytest.raises(UserError, match="is nested too deep to be followed"):
        lint_target(str(path))
