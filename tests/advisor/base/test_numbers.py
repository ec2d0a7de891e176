"""Digits that are a number."""

import pytest

from advisor.base.errors import UserError
from advisor.base.fields import convert, parse
from advisor.base.limits import LARGEST, MOST_COUNT_DIGITS
from advisor.base.units import human_count, parse_bytes, parse_gpus, whole_number

pytestmark = pytest.mark.every_python


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("012", 12), ("9" * MOST_COUNT_DIGITS, 10**MOST_COUNT_DIGITS - 1)],
)
def test_numbers(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1.0", "²", "१", "1_0", "9" * 19, "9" * 5000])
def test_no_numbers(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_number_that_nobody_counts_to_is_refused(kind: type, digits: int) -> None:
    if digits > 19 or kind is int:
        with pytest.raises(UserError):
            parse("9" * digits, kind, "model.hidden_size")
    with pytest.raises(UserError, match="is too large"):
        convert(10**digits, kind, "f.yaml", "hidden_size")


def test_the_largest_numbers_are_read() -> None:
    assert parse(str(LARGEST), int, "x") == LARGEST
    assert convert(10**17, float, "f.yaml", "x") == 1e17


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_quantities_and_counts(digits: int) -> None:
    with pytest.raises(UserError, match="is too large"):
        parse_bytes("9" * digits + "GiB", "--memory-budget")
    with pytest.raises(UserError, match="is more than 1000000 GPUs"):
        parse_gpus("9" * digits + "xH100")


def test_a_count_is_rounded_into_the_next_unit() -> None:
    assert [human_count(count) for count in (999_885_952, 999_499_999, 70.55e9)] == [
        *("1 B", "999 M", "70.5 B"),
    ]
