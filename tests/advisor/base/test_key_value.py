"""KEY=VALUE is split at its first equals sign."""

import pytest

from advisor.base.errors import UserError
from advisor.base.fields import key_of, split_key_value, split_key_values


def test_a_value_may_hold_more_equals_signs() -> None:
    assert split_key_value("sbatch=[comment=a]") == ("sbatch", "[comment=a]")
    assert split_key_values(["a=1", "b=", "a=2"]) == {"a": "2", "b": ""}
    assert [key_of(word) for word in ("--retry=oom", "--retry")] == ["--retry"] * 2


@pytest.mark.parametrize("text", ["steps", "=3", " =3", ""])
def test_what_is_no_pair_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"override = .*: is not KEY=VALUE"):
        split_key_value(text, "override")
