"""Rows of texts and conditions that are code, put together; none goes without the other."""

from typing import Any

import pytest

from advisor.base.rule import Rule, Verdict, rules_of

ROW: dict[str, Any] = {"reason": "{found} is odd", "verdict": "note", "since": [0, 16]}


def is_odd(number: int) -> object:
    return number % 2 and str(number)


def test_a_row_and_its_condition_are_a_rule() -> None:
    (rule,) = rules_of(Rule, {"odd": ROW}, {"odd": is_odd}).values()
    assert (rule.verdict, rule.since) == (Verdict.NOTE, (0, 16))
    assert [match.reason for match in rule.matches(3)] == ["3 is odd"]
    assert not [*rule.matches(4)]


def test_a_row_like_another_has_its_condition_and_what_it_does_not_say_itself() -> None:
    rows = {"odd": ROW, "strict": {"like": "odd", "verdict": "refused"}}
    strict = rules_of(Rule, rows, {"odd": is_odd})["strict"]
    assert strict.verdict is Verdict.REFUSED
    assert [match.reason for match in strict.matches(3)] == ["3 is odd"]


def test_code_narrows_what_a_row_says_itself() -> None:
    def read(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"when": lambda number: number > 9}

    (rule,) = rules_of(Rule, {"odd": ROW}, {"odd": is_odd}, read).values()
    assert [rule.applies(number) for number in (3, 10, 11)] == [False, False, True]


@pytest.mark.parametrize(
    ("rows", "ids", "error"),
    [
        ({"odd": ROW}, (), LookupError),
        ({"odd": ROW}, ("odd", "even"), LookupError),
        ({"odd": ROW | {"raeson": "typo"}}, ("odd",), TypeError),
        ({"odd": ROW | {"verdict": "forbidden"}}, ("odd",), ValueError),
    ],
    ids=["no condition", "no row", "no such field", "no such verdict"],
)
def test_what_does_not_fit_together_is_an_error(rows, ids, error) -> None:
    with pytest.raises(error, match=r"odd|even|raeson|forbidden"):
        rules_of(Rule, rows, dict.fromkeys(ids, is_odd))
