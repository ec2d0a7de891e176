"""A missing package is answered with one line, and a command that works from a checkout."""

import importlib

import pytest

from advisor.base.errors import UserError, install_hint, not_installed, require


def test_a_module_that_is_there_is_given() -> None:
    assert require("json.decoder", "test", "harness").JSONDecodeError


def test_a_missing_one_is_named_with_the_extra() -> None:
    with pytest.raises(UserError) as caught:
        require("absent_package.part", "harness compare", "harness")
    assert str(caught.value) == (
        "harness compare: needs absent_package; in the checkout run: pip install -e '.[harness]'"
    )


def test_a_package_that_is_not_there_is_named() -> None:
    assert install_hint("harness,sweep").endswith("pip install -e '.[harness,sweep]'")
    absent = "needs the package absent: pip install absent"
    for name, line in (("absent.part", absent), ("advisor.absent", "")):
        assert not_installed(ModuleNotFoundError(name, name=name)) == line


@pytest.mark.parametrize("program", ["advisor", "harness"])
def test_a_command_without_its_package_is_one_line(program: str, monkeypatch, capsys) -> None:
    main = importlib.import_module(f"{program}.cli.main")

    def missing(_: object) -> int:
        raise ModuleNotFoundError("absent", name="absent")

    monkeypatch.setattr("sys.argv", [program])
    monkeypatch.setattr(main, "_run" if program == "advisor" else "_dispatch", missing)
    assert (main.command() if program == "advisor" else main.main([])) == 2
    assert capsys.readouterr().err.endswith(" needs the package absent: pip install absent\n")
