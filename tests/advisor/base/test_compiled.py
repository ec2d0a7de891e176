"""Presets that the build has read: the same values as their YAML, and of no other text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.base import configuration as module
from advisor.base.configuration import (
    ConfigGroup,
    compile_configs,
    compiled,
    load_config,
    packaged_configs,
)
from advisor.base.documents import read_yaml


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build's file, as it is in a wheel."""
    file = tmp_path / "compiled.msgpack"
    file.write_bytes(compile_configs(packaged_configs()))
    monkeypatch.setattr(module, "FILE", file)
    module._texts.cache_clear()
    yield
    module._texts.cache_clear()


@pytest.mark.parametrize("group", ["model", "hardware", "calibration", "experiment", "recompute"])
def test_every_preset_is_compiled_as_it_is_read(group: str) -> None:
    paths = sorted((packaged_configs() / group).glob("*.yaml"))
    assert paths
    for path in paths:
        assert compiled(path.read_text()) == read_yaml(path), path


def test_a_changed_preset_is_read_anew(tmp_path: Path) -> None:
    text = (packaged_configs() / "model" / "llama3_8b.yaml").read_text()
    assert compiled(text)
    changed = tmp_path / "model" / "llama3_8b.yaml"
    changed.parent.mkdir()
    changed.write_text(text.replace("num_layers: 32", "num_layers: 33"))
    assert compiled(changed.read_text()) is None
    assert load_config(ConfigGroup.MODEL, "llama3_8b", tmp_path).values["num_layers"] == 33


def test_nothing_is_shared_between_two_readings() -> None:
    first, second = (load_config(ConfigGroup.HARDWARE, "H100-SXM-80GB").values for _ in range(2))
    first["sources"]["sm_count"] = "changed"
    assert second["sources"]["sm_count"] != "changed"


def test_without_the_file_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE", Path("absent"))
    module._texts.cache_clear()
    assert compiled("a: 1") is None
