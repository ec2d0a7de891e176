"""What the page says of a proven optimum."""

from typing import Any

import pytest

from advisor.answer.answer import Optimum, OptimumRow
from advisor.report.optimum_block import optimum_block
from advisor.report.text import Screen, printed

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
    ("changes", "words"),
    [
        ({"gain": 0.0001}, "row 1, and the best setting of the ranking without"),
        ({"gain": None}, "row 1, and no setting of the ranking without --search optimum fits"),
        ({"gap": 0.0003}, "space below is more than 0.05 % faster than row 1. Row 1 takes 3.1 %"),
        (
            {"gap": 0.05},
            "space below takes less than 2.000 s, 5.00 % less than row 1. Row 1 takes 3.1 %",
        ),
        (
            {"best": None, "bound_seconds": None, "gain": None},
            "Proven with predicted memory: no setting of the space below fits",
        ),
        ({"best": None, "gain": None}, "; a setting that fits takes at least 2.000 s"),
        ({"excluded_by_bound": 0, "num_points": 21}, ". 21 combinations: 21 evaluated."),
        ({"excluded_by_bound": 0, "num_points": None}, ". Combinations: 21 evaluated."),
    ],
)
def test_each_outcome_has_its_words(changes: dict[str, Any], words: str) -> None:
    assert words in said(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"gap": 0.25, "gain": 0.0},
            "Stopped. Proven so far: a setting that fits takes at least 2.000 s, 20.0 % "
            "less than row 1. 3",
        ),
        ({"gap": 0.25}, "than row 1. Row 1 takes 3.1 % less time than the best setting of the"),
        ({"best": None, "gain": None}, "so far: a setting that fits takes at least 2.000 s. 3"),
        ({"bound_seconds": None, "gap": None}, "Stopped before anything was proven. 3"),
    ],
)
def test_a_search_that_was_stopped_says_how_far_it_was(changes: dict[str, Any], words: str) -> None:
    assert words in said(stopped=True, **changes)
