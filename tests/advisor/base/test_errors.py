"""A missing package is answered with one line, and a command that works from a checkout."""

import pytest

from advisor.base.errors import UserError, install_hint, require


def test_a_module_that_is_there_is_given() -> None:
    assert require("json.decoder", "test", "harness").JSONDecodeError


def test_a_missing_one_is_named_with_the_extra() -> None:
    with pytest.raises(UserError) as caught:
        require("absent_package.part", "harness compare", "harness")
    assert str(caught.value) == (
        "harness compare: needs absent_package; in the checkout run: pip install -e '.[harness]'"
    )


def test_several_extras_are_one_command() -> None:
    assert install_hint("harness,sweep").endswith("pip install -e '.[harness,sweep]'")
