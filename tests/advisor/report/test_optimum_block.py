"""What the page says of a proven optimum."""

from typing import Any

import pytest

from advisor.answer.answer import Optimum, OptimumRow
from advisor.report.optimum_block import optimum_block
from advisor.report.text import Screen, printed
from tests.advisor.tables import tables

TABLES = tables(__file__)

PROVEN: dict[str, Any] = {
    "best": OptimumRow(rank=1, spec="none"),
    "bound_seconds": 2.0,
    "gap": 0.0,
    "gain": 0.031,
    "space": ("12 settings", "micro batch 1, 2"),
    "num_points": 3_035_483_545_644,
    "evaluated": 21,
    "excluded_by_bound": 3_035_483_545_623,
    "beyond": ("recompute by stage would gain nothing",),
}


def said(*, stopped: bool = False, **changes: Any) -> str:
    block = optimum_block(Optimum(**{**PROVEN, **changes}), stopped=stopped)
    text = printed(block, Screen(width=200))
    return " ".join(text.split())


def test_the_claim_its_space_and_what_is_beyond() -> None:
    text = said()
    assert text.startswith(
        "Proven with predicted step times: no fitting setting of the space below is faster than "
        "row 1. Row 1 takes 3.1 % less time than the best setting of the ranking without --search "
        "optimum. 3.0 x 10^12 combinations: 21 evaluated, 3.0 x 10^12 excluded by a proven bound."
    )
    assert (
        "- 12 settings - micro batch 1, 2 Outside the space: recompute by stage would gain nothing"
        in text
    )


@pytest.mark.parametrize(
    ("stopped", "changes", "words"),
    [
        *((False, *row) for row in TABLES["test_each_outcome_has_its_words"]),
        *((True, *row) for row in TABLES["test_a_search_that_was_stopped_says_how_far_it_was"]),
    ],
)
def test_each_outcome_has_its_words(stopped: bool, changes: dict[str, Any], words: str) -> None:
    assert words in said(stopped=stopped, **changes)
