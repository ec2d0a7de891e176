"""Numbers in words, and the sentence that says which row is the choice."""

import pytest

from advisor.answer import Advice, Remedy
from advisor.report.wording import chosen, missing_bytes, percent, remedy_line, seconds, verdict
from advisor.units import GIB


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.0, "0 %"), (0.001, "<1 %"), (0.5, "50 %"), (0.994, "99 %"), (0.999, ">99 %"), (1, "100 %")],
)
def test_only_certainty_is_0_or_100_percent(probability: float, text: str) -> None:
    assert percent(probability) == text


def test_seconds_keep_three_digits_below_one() -> None:
    assert [seconds(9.3, 8.0), seconds(0.4567, 0.4), seconds(12.0, 0.4)] == [
        "9.30", "0.457", "12.000",
    ]  # fmt: skip


def test_the_choice_is_the_best_that_fits(make_advice, make_evaluation, hopeless: Advice) -> None:
    advice = make_advice(
        make_evaluation("none", 80, probability=0.1), make_evaluation("selective:mlp", 10)
    )
    assert chosen(advice).rank == 2
    assert chosen(hopeless).rank == 1
    assert chosen(make_advice()) is None
    assert missing_bytes(hopeless.candidates[0].evaluation) == 2 * GIB


def test_a_risky_none_is_weighed_against_recompute(make_advice, make_evaluation) -> None:
    advice = make_advice(
        make_evaluation("selective:mlp", 20, 2.0), make_evaluation("none", 31, 0.0, 0.4)
    )
    assert verdict(advice) == (
        "Row 1 is the choice: selective:mlp is the fastest setting that fits (65.0 of 77.0 GiB, "
        "97 %). "
        "Without recompute the step takes 20.0 % less time but fits with a probability of only "
        "40 %."
    )


def test_the_verdict_does_not_need_none_among_the_rows(make_advice, make_evaluation) -> None:
    advice = make_advice(make_evaluation("selective:mlp", 20, 2.0))
    assert verdict(advice) == (
        "Row 1 is the choice: selective:mlp is the fastest setting that fits "
        "(65.0 of 77.0 GiB, 97 %)."
    )


def test_remedies_save_or_cost(make_evaluation) -> None:
    reference = make_evaluation("none", 10)
    cheap = Remedy(change="VPP 10 instead of 5", effect_bytes=-GIB, effect_seconds=0.4, why="")
    dear = Remedy(change="micro batch 2", effect_bytes=GIB // 2, effect_seconds=0.0, why="Why.")
    assert remedy_line(cheap, reference) == "VPP 10 instead of 5: -1.0 GiB, +5.0 % step time."
    assert remedy_line(dear, reference) == "micro batch 2: +0.5 GiB, the same step time (Why)."
