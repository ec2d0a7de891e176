import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.names import Framework
from harness.backends.megatron_core import installed
from tests.harness.rehearsal.test_prediction import JOB


def found(*names: str) -> object:
    return lambda name: ModuleSpec(name, None) if name in names else None


def test_what_is_missing_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", found("torch"))
    assert installed.missing() == "megatron-core"
    with pytest.raises(UserError, match=r"megatron-core.*pip install -e '\.\[harness,megatron\]'"):
        installed.require_megatron()
    monkeypatch.setattr(installed, "find_spec", found("torch", "megatron"))
    for release in ("0.13.1", "0.16.1", "1.0.0rc1"):
        monkeypatch.setattr(installed, "version", lambda _, release=release: release)
        installed.require_megatron()
    monkeypatch.setattr(installed, "version", lambda _: "0.12.3")
    with pytest.raises(UserError, match=r"megatron-core = 0.12.3: must be 0.13 or newer"):
        installed.require_megatron()


def test_a_job_is_judged_by_the_release_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(JOB, config=replace(JOB.config, framework=Framework.MEGATRON_BRIDGE))
    monkeypatch.setattr(installed, "missing", lambda: "")
    for release, version in (("0.16.1", "0.16"), ("0.19.2", "0.19"), ("0.31.0", "main")):
        monkeypatch.setattr(installed, "version", lambda _, release=release: release)
        judged, said = installed.under_installed(job)
        assert judged.config.framework == Framework.MEGATRON_LM
        assert judged.config.framework_version == version
        assert release in said
        assert ("asks for Megatron Bridge 0.6" in said) == (version != "0.19")
    monkeypatch.setattr(installed, "missing", lambda: "torch")
    assert installed.under_installed(job) == (job, "")


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_a_broken_transformer_engine_is_none(error: type[Exception], monkeypatch) -> None:
    def broken(name: str) -> None:
        raise error(name)

    monkeypatch.setattr(installed, "find_spec", found("transformer_engine"))
    monkeypatch.setattr(installed, "import_module", broken)
    installed.has_transformer_engine.cache_clear()
    try:
        assert not installed.has_transformer_engine()
    finally:
        installed.has_transformer_engine.cache_clear()


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that are used; two releases lie in the virtual environment."""
    for release in ("0.17.1", "0.19.2"):
        wheel = tmp_path / f"megatron-core-{release}"
        (wheel / f"megatron_core-{release}.dist-info").mkdir(parents=True)
    found: list[str] = []
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installed, "_use", lambda folder: found.append(folder.name))
    monkeypatch.delenv(installed.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    return found


def test_the_release_that_is_asked_for_is_used_here_and_by_what_is_started(
    used: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(installed.VARIABLE, "")  # restored after the test
    monkeypatch.delenv(installed.VARIABLE)
    installed.prefer("0.19")
    assert used == ["megatron-core-0.19.2"]
    assert os.environ[installed.VARIABLE] == str(tmp_path / "megatron-core-0.19.2")
    installed.prefer("0.17")
    assert len(used) == 1  # that was said


def test_what_is_installed_stays_where_nothing_else_fits(used: list[str], monkeypatch) -> None:
    installed.prefer("0.18")
    monkeypatch.setenv(installed.VARIABLE, "")
    installed.prefer("0.19")
    monkeypatch.delenv(installed.VARIABLE)
    monkeypatch.setitem(sys.modules, "megatron.core", sys)
    installed.prefer("0.19")
    assert used == []


def test_a_folder_without_megatron_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(installed.VARIABLE, str(tmp_path))
    with pytest.raises(
        UserError, match=r"MEGATRON_CORE = .*: must be a folder with an unpacked wheel"
    ):
        installed.use_named()
