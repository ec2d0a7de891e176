"""Strict reading: right types pass unchanged, everything else is one clear line."""

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError, show
from advisor.base.fields import convert, parse, parse_all, read_fields, read_record
from advisor.models.spec import ModelSpec
from tests.advisor.refusals import refused
from tests.advisor.tables import tables
from tests.advisor.toys import LLAMA

TABLES = tables(__file__)

pytestmark = pytest.mark.every_python


class Shade(StrEnum):
    DARK = "dark-blue"
    LIGHT = "Light"


class Inner(Struct, frozen=True, kw_only=True):
    depth: int = 1

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise UserError("inner.depth", self.depth, "must be at least 1")


class Outer(Struct, frozen=True, kw_only=True):
    width: int
    ratio: float = 0.5
    on: bool = False
    label: str = ""
    shade: Shade = Shade.DARK
    limit: int | None = None
    names: tuple[str, ...] = ()
    inner: Inner = Inner()


def test_every_kind_of_field_is_read() -> None:
    values = {"width": 3, "ratio": 2, "on": True, "label": "x", "shade": "light", "limit": None}
    values |= {"names": ["a", "b"], "inner": {"depth": 4}}
    outer = read_record(Outer, values, "f.yaml")
    changed = {"label": "x", "shade": Shade.LIGHT, "names": ("a", "b"), "inner": Inner(depth=4)}
    assert outer == Outer(width=3, ratio=2.0, on=True, **changed)
    assert isinstance(outer.ratio, float)
    assert read_record(Outer, {"width": 1}, "f.yaml") == Outer(width=1)


@pytest.mark.parametrize(
    ("values", "line"),
    TABLES["test_wrong_values_are_one_line"],
)
def test_wrong_values_are_one_line(values: dict[str, object], line: str) -> None:
    with refused(f"f.yaml: {line}"):
        read_record(Outer, {"width": 1} | values, "f.yaml")


def test_a_field_without_a_default_is_missing() -> None:
    with refused("f.yaml: width = (none): is missing and has no default"):
        read_record(Outer, {}, "f.yaml")


def test_an_enum_is_named_by_value_or_by_member_and_fields_need_no_complete_set() -> None:
    for text in ("bf16", "bfloat16"):
        assert convert(text, DType, "", "job.main_grads_dtype") is DType.BF16
    assert read_fields(Outer, {"shade": "DARK"}, "f.yaml") == {"shade": Shade.DARK}


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("12", int, 12),
        ("1e3", float, 1000.0),
        ("0.1", float, 0.1),
        ("true", bool, True),
        ("OFF", bool, False),
        ("1", bool, True),
        ("x y", str, "x y"),
        ("12", str, "12"),
        ("light", Shade, Shade.LIGHT),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("a, b,", tuple[str, ...], ("a", "b")),
        ("", tuple[str, ...], ()),
    ],
)
def test_parse_reads_what_a_command_line_spells(text: str, annotation: type, value: object) -> None:
    assert parse(text, annotation, "x") == value


@pytest.mark.parametrize(
    ("text", "annotation", "line"),
    [
        ("1.5", int, "x = 1.5: is not an integer"),
        ("", int, "x = '': is not an integer"),
        ("inf", float, "x = inf: must be finite"),
        ("maybe", bool, "x = maybe: must be true or false"),
        ("red", Shade, "x = red: must be one of dark-blue, Light"),
    ],
)
def test_parse_refuses_the_rest(text: str, annotation: type, line: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text, annotation, "x")
    assert str(error.value) == line


def test_override_replaces_fields() -> None:
    texts = {"num_layers": "12", "transformer_impl": "local"}
    changed = replace(LLAMA, **parse_all(ModelSpec, texts, "model."))
    assert (changed.num_layers, changed.transformer_impl) == (12, "local")


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("num_layer", "12", "model.num_layer = 12: is not a known key; did you mean num_layers"),
        ("num_layers", "0", "model.num_layers = 0: must be at least 1"),
        ("num_layers", "x", "model.num_layers = x: is not an integer"),
    ],
)
def test_override_names_the_field(key: str, text: str, line: str) -> None:
    with refused(line):
        replace(LLAMA, **parse_all(ModelSpec, {key: text}, "model."))


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats(), st.lists))
def test_show_is_one_short_line(value: object) -> None:
    text = show(value)
    assert len(text) <= 60
    assert "\n" not in text


@given(st.none() | st.booleans() | st.text() | st.floats() | st.lists(st.integers()))
def test_an_integer_field_takes_integers_alone(value: object) -> None:
    with refused():
        read_record(Inner, {"depth": value}, "f.yaml")
