"""Names in errors: what is near to a wrong one."""

import pytest

from advisor.base.errors import either, nearest_names


@pytest.mark.parametrize(
    ("names", "words"), [((), ""), (("a",), "a"), (("a", "b"), "a or b"), ("abc", "a, b or c")]
)
def test_either(names: tuple[str, ...], words: str) -> None:
    assert either(names) == words


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        ((), ""),
        (("mlp", "moe"), "did you mean mlp or moe?"),
        (("core_attn", "layernorm"), "use core_attn or layernorm"),
        (tuple(f"option_{n}" for n in range(20)), "similar: option_9, option_8, option_7"),
    ],
)
def test_nearest_names(known: tuple[str, ...], hint: str) -> None:
    assert nearest_names("m", known) == hint
