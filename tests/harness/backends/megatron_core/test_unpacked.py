"""Which of several releases of Megatron is imported."""

import os
import sys
from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.backends.megatron_core import unpacked


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that are used; two releases lie in the virtual environment."""
    for release in ("0.17.1", "0.19.2"):
        wheel = tmp_path / f"megatron-core-{release}"
        (wheel / f"megatron_core-{release}.dist-info").mkdir(parents=True)
    found: list[str] = []
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(unpacked, "_use", lambda folder: found.append(folder.name))
    monkeypatch.delenv(unpacked.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    return found


def test_the_release_that_is_asked_for_is_used_here_and_by_what_is_started(
    used: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(unpacked.VARIABLE, "")  # restored behind the test
    monkeypatch.delenv(unpacked.VARIABLE)
    unpacked.prefer("0.19")
    assert used == ["megatron-core-0.19.2"]
    assert os.environ[unpacked.VARIABLE] == str(tmp_path / "megatron-core-0.19.2")
    unpacked.prefer("0.17")
    assert len(used) == 1  # that was said


def test_what_is_installed_stays_where_nothing_else_fits(
    used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked.prefer("0.18")
    monkeypatch.setenv(unpacked.VARIABLE, "")
    unpacked.prefer("0.19")
    monkeypatch.delenv(unpacked.VARIABLE)
    monkeypatch.setitem(sys.modules, "megatron.core", sys)
    unpacked.prefer("0.19")
    assert used == []


def test_a_folder_without_megatron_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(unpacked.VARIABLE, str(tmp_path))
    with pytest.raises(
        UserError, match=r"MEGATRON_CORE = .*: must be a folder with an unpacked wheel"
    ):
        unpacked.use_named()
