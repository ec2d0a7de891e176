"""What is patched is as it was behind the block, whatever it was and however the block ends."""

from types import ModuleType

import pytest

from harness.base.patching import patched


class Base:
    inherited = "of the base"

    @staticmethod
    def static() -> str:
        return "static"


class Derived(Base):
    own = "own"


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_own_and_inherited_attributes_come_back(name: str) -> None:
    before, held = getattr(Derived, name), set(vars(Derived))
    with patched(Derived, name, "other"):
        assert getattr(Derived, name) == "other"
    assert getattr(Derived, name) == before
    assert set(vars(Derived)) == held


def test_a_static_method_stays_one() -> None:
    with patched(Base, "static", lambda _: "bound"):
        assert Base().static() == "bound"
    assert Base().static() == "static"


def test_an_error_inside_undoes_it_too() -> None:
    with pytest.raises(RuntimeError), patched(Derived, "own", "other"):
        raise RuntimeError
    assert Derived.own == "own"


def test_what_is_absent_is_refused_unless_it_may_be() -> None:
    module = ModuleType("some")
    with pytest.raises(AttributeError), patched(module, "absent", 1):
        pass
    with patched(module, "absent", 1, may_lack=True):
        assert module.absent == 1
    assert not hasattr(module, "absent")
