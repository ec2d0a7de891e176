from importlib.machinery import ModuleSpec

import pytest

from advisor.errors import UserError
from harness.backends.megatron_core import installed


def found(*names: str) -> object:
    return lambda name: ModuleSpec(name, None) if name in names else None


def test_what_is_missing_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", found("torch"))
    assert installed.missing() == "megatron-core"
    with pytest.raises(UserError, match=r"megatron-core.*recompute-advisor\[megatron\]"):
        installed.require_megatron()
    monkeypatch.setattr(installed, "find_spec", found("torch", "megatron"))
    for release in ("0.13.1", "0.16.1", "1.0.0rc1"):
        monkeypatch.setattr(installed, "version", lambda _, release=release: release)
        installed.require_megatron()
    monkeypatch.setattr(installed, "version", lambda _: "0.12.3")
    with pytest.raises(UserError, match=r"megatron-core = 0.12.3: is older than 0.13"):
        installed.require_megatron()


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_a_broken_transformer_engine_is_none(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise error(name)

    monkeypatch.setattr(installed, "find_spec", found("transformer_engine"))
    monkeypatch.setattr(installed.importlib, "import_module", broken)
    installed.has_transformer_engine.cache_clear()
    try:
        assert not installed.has_transformer_engine()
    finally:
        installed.has_transformer_engine.cache_clear()
