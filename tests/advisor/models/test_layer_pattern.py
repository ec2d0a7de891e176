"""Patterns of layers as Megatron writes them: read strictly, kept as text."""

import pytest

from advisor.base.errors import UserError
from advisor.models.layer_pattern import LayerPattern

WHERE = "model.moe_layer_freq"


@pytest.mark.parametrize(
    ("value", "layers"),
    [
        (1, "1111"),
        (2, "1010"),
        ("3", "1001"),
        (9, "1000"),
        ("([0]*1+[1]*3)", "0111"),
        ("[0, 1] * 2", "0101"),
        ("2*[1,0]", "1010"),
        ([0, 0, 1, 1], "0011"),
        ("[0]+[1]*3", "0111"),
    ],
)
def test_a_pattern_says_which_layers(value: object, layers: str) -> None:
    expanded = LayerPattern.read(value, WHERE).expand(4, WHERE)
    assert "".join(str(int(entry)) for entry in expanded) == layers


def test_text_is_kept_without_blanks() -> None:
    assert LayerPattern.read("([0]*3 + [1]*58)", WHERE) == "([0]*3+[1]*58)"
    assert LayerPattern.read([0, 1], WHERE) == "[0,1]"


LISTS = ["[2]", "[1", "[1]*[1]", "[1]+1", "[[1]]", "[True]", "[1]*99999999", "[0]*3-[1]"]
OTHERS = ["", "x", "1+1", "[1]*9999+[0]*9999", "__import__('os')", "(" * 9999]


@pytest.mark.parametrize("value", [True, 1.5, None, {}, 0, -1, *LISTS, *OTHERS])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(UserError, match="moe_layer_freq"):
        LayerPattern.read(value, WHERE)


def test_a_list_must_be_as_long_as_the_model() -> None:
    with pytest.raises(UserError, match="has 3 layers, but the model has 4"):
        LayerPattern("[0,1,1]").expand(4, WHERE)
