"""Numbers in words, and the sentence that says which row is the choice."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer, Remedy
from advisor.base.units import GIB, amount, percent, rate_words
from advisor.report.wording import (
    against_preset,
    missing_bytes,
    remedy_line,
    seconds,
    verdict,
    way_out,
)
from tests.advisor.conftest import JOB


def test_no_prediction_is_certain() -> None:
    texts = {0.0: "<1 %", 0.004: "<1 %", 0.5: "50 %", 0.994: "99 %", 0.995: ">99 %", 1: ">99 %"}
    texts |= {0.896: "89 %", 0.9: "90 %", 0.496: "49 %", 0.947: "94 %", 0.9849: "98 %"}
    assert {probability: percent(probability) for probability in texts} == texts


def test_seconds_keep_three_digits_below_one() -> None:
    assert [seconds(9.3, 8.0), seconds(0.4567, 0.4)] == ["9.30", "0.457"]
    assert seconds(12.0, 0.4) == "12.000"


def test_the_choice_is_the_best_that_fits(make_advice, make_evaluation, hopeless: Answer) -> None:
    advice = make_advice(
        make_evaluation("none", 80, probability=0.1), make_evaluation("selective:mlp", 10)
    )
    assert advice.chosen.rank == 2
    assert hopeless.chosen.rank == 1
    assert make_advice().chosen is None
    assert missing_bytes(hopeless.candidates[0].evaluation) == 2 * GIB


def test_what_a_stopped_search_has_found_is_not_said_to_be_the_choice(
    make_advice, make_evaluation, hopeless: Answer
) -> None:
    found = make_advice(make_evaluation("none", 20, 2.0), make_evaluation("full:block:8", 10, 3.0))
    assert verdict(replace(found, stopped=True)) == (
        "The search was stopped: row 1 (none) is the fastest found so far that fits "
        "(65.0 of 77.0 GiB, 97 % likely)."
    )
    assert verdict(replace(hopeless, stopped=True)).startswith(
        "The search was stopped, and nothing found so far fits in 77.0 GiB"
    )


MLP = ("selective:mlp", 20, 2.0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [MLP, ("none", 31, 0.0, 0.4)],
            "Row 1 is the choice: selective:mlp is the fastest that fits (65.0 of 77.0 GiB, "
            "97 % likely). Without recompute a step takes 20.0 % less time, but the job is only "
            "40 % likely to fit.",
        ),
        # a label that does nothing is no better than none
        (
            [("selective:layernorm", 20), ("none", 20)],
            "Without recompute the job fits too, and a step takes the same time.",
        ),
        ([MLP], "Row 1 is the choice: selective:mlp fits (65.0 of 77.0 GiB, 97 % likely)."),
        # none is near enough to fit
        (
            [("none", 31, 0.0, 0.6)],
            "Nothing is at least 90 % likely to fit in 77.0 GiB. Nearest: row 1 (none) takes 76.0 "
            "of 77.0 GiB, 60 % likely.",
        ),
        # the three nearest are named
        (
            [
                ("full:uniform:1", 34, 0.0, 0.0),
                ("full:block:2", 35, 0.0, 0.0),
                ("selective:mlp", 36, 0.0, 0.0),
                ("none", 37, 0.0, 0.0),
            ],
            "Nothing fits in 77.0 GiB. Nearest: row 1 (full:uniform:1) is 2.0 GiB over the budget; "
            "row 2 (full:block:2) is 3.0 GiB over the budget; "
            "row 3 (selective:mlp) is 4.0 GiB over the budget.",
        ),
    ],
)
def test_the_verdict(rows: list[tuple], said: str, make_advice, make_evaluation) -> None:
    found = verdict(make_advice(*(make_evaluation(*row) for row in rows)))
    assert found == said if said.startswith(("Row", "Nothing")) else found.endswith(said)


def test_remedies_save_or_cost(make_evaluation) -> None:
    reference = make_evaluation("none", 10)
    cheap = Remedy(change="VPP 10 instead of 5", effect_bytes=-GIB, effect_seconds=0.4, why="")
    dear = Remedy(change="micro batch 2", effect_bytes=GIB // 2, effect_seconds=0.0, why="Why.")
    assert remedy_line(cheap, reference) == "VPP 10 instead of 5: -1.0 GiB, +5.0 % step time."
    assert remedy_line(dear, reference) == "micro batch 2: +0.5 GiB, the same step time (Why)."


def test_a_remedy_that_is_not_enough_says_so(make_evaluation) -> None:
    reference = make_evaluation("none", 40, probability=0.0)  # 85 of 77 GiB
    small = Remedy(change="VPP 10", effect_bytes=-3 * GIB, effect_seconds=0.0, why="")
    assert remedy_line(small, reference) == (
        "VPP 10: -3.0 GiB, still 5.0 GiB over the budget, the same step time."
    )
    large = Remedy(change="VPP 10", effect_bytes=-9 * GIB, effect_seconds=0.0, why="")
    assert "over" not in remedy_line(large, reference)


def test_weights_that_do_not_fit_by_themselves_are_named(make_advice, make_evaluation) -> None:
    small = replace(make_evaluation("none", 10, probability=0.0), budget_bytes=30 * GIB)
    assert verdict(make_advice(small)).endswith(
        "Weights, gradients and optimizer take 40.0 GiB: recompute cannot help."
    )


def test_the_way_out(make_advice, make_evaluation, tight: Answer) -> None:
    over = make_evaluation("none", 40, probability=0.0)
    alone = make_advice(over)
    assert way_out(alone) == (
        "Try another layout (--search layout), more GPUs, or GPUs with more memory."
    )
    assert way_out(replace(alone, searched=True)) == "Try more GPUs, or GPUs with more memory."
    enough = Remedy(change="VPP 10", effect_bytes=-9 * GIB, effect_seconds=0.0, why="")
    assert way_out(replace(alone, remedies=(enough,))) == ""
    assert way_out(tight) == ""


def _estimated(answer: Answer, spec: str, **changes: object) -> Answer:
    """`answer` with one row's allocator not simulated."""
    candidates = [
        replace(c, evaluation=replace(c.evaluation, requests=None), **changes)
        if c.evaluation.setting.spec == spec
        else c
        for c in answer.candidates
    ]
    return replace(answer, candidates=tuple(candidates))


def test_what_was_not_simulated_is_about_so_much(tight: Answer) -> None:
    assert "Without recompute the job exceeds the budget by 8.0 GiB." in verdict(tight)
    assert "the job exceeds the budget by about 8.0 GiB." in verdict(_estimated(tight, "none"))
    assert "(66.0 of 77.0 GiB" in verdict(tight)
    assert "(~66.0 of 77.0 GiB" in verdict(_estimated(tight, "selective:mlp"))
    sure = _estimated(tight, "nothing")
    preset = tuple(replace(c, preset=c.rank == 2) for c in sure.candidates)
    assert ": -3.0 GiB, " in against_preset(replace(sure, candidates=preset))
    unsure = _estimated(tight, "full:block:2", preset=True)
    assert ": about -3.0 GiB, " in against_preset(unsure)


def test_nothing_fits_names_rows_that_differ_and_are_shown(make_advice, make_evaluation) -> None:
    specs = ("full:uniform:1", "full:uniform:2", "full:uniform:4", "none")
    answer = make_advice(*(make_evaluation(spec, 40, probability=0.0) for spec in specs))
    first, *middle, last = answer.candidates
    folded = (replace(row, same_as=1, folded=True) for row in middle)
    beaten = replace(last, rank=5, folded=True)
    said = verdict(replace(answer, candidates=(first, *folded, last, beaten)))
    assert (
        "row 1 (full:uniform:1) is 8.0 GiB over the budget; "
        "row 4 (none) is 8.0 GiB over the budget." in said
    )


def test_what_recompute_buys_is_said_where_it_does(make_advice, make_evaluation) -> None:
    """A step of 8 s without recompute; with a larger micro batch it is 10 % less and 0.2 s more."""
    wide = replace(JOB, config=replace(JOB.config, micro_batch_size=2))
    faster = make_evaluation("selective:mlp", 20, 0.2, job=wide)
    faster = replace(faster, time_seconds=replace(faster.time_seconds, forward=1.7))
    none = make_evaluation("none", 20)
    own = make_evaluation("none", 40, probability=0.1, job=wide)
    bought = (
        " selective:mlp makes room for micro batch 2. The choice is 8.1 % faster than row 2 (micro "
        "batch 1), the fastest row that fits without recompute."
    )
    assert verdict(make_advice(faster, none, own)).endswith(bought)
    assert " buys " not in verdict(make_advice(faster, none))
    fits = make_evaluation("none", 30, job=wide)
    assert " buys " not in verdict(make_advice(faster, none, fits))
    slower = make_evaluation("selective:mlp", 20, 0.2, job=wide)
    assert " buys " not in verdict(make_advice(slower, none, own))
    assert " buys " not in verdict(make_advice(faster, own))


def test_what_recompute_buys_is_named_as_in_the_columns(make_advice, make_evaluation) -> None:
    """Options stand below their rows: they are named where the columns say nothing."""
    away = replace(JOB, config=replace(JOB.config, optimizer_cpu_offload=True))
    deep = replace(away, layout=replace(JOB.layout, virtual_pipeline_model_parallel_size=10))
    wide = replace(JOB, config=replace(JOB.config, micro_batch_size=2))
    for job, other, ours, theirs in (
        (wide, deep, "VPP 5 and micro batch 2", "VPP 10 and micro batch 1"),
        (JOB, away, "job.optimizer_cpu_offload=false", "job.optimizer_cpu_offload=true"),
    ):
        rows = [
            make_evaluation("selective:mlp", 20, 0.1, job=job),
            make_evaluation("none", 20, 0.5, job=other),
            make_evaluation("none", 40, probability=0.1, job=job),
        ]
        assert verdict(make_advice(*rows)).endswith(
            f" selective:mlp makes room for {ours}. The choice is 4.9 % faster than row 2 "
            f"({theirs}), the fastest row that fits without recompute."
        )


def test_rates_in_three_digits() -> None:
    numbers = " ".join(
        f"[{amount(n)}]" for n in (7.254, 512.4, 54_321, 163_902.0, 4.1e6, 1.23456e9)
    )
    assert numbers == "[7.25] [512] [54,300] [164,000] [4.1 M] [1.23 B]"
    said = "54,300 tokens/s; 10^12 tokens take 164,000 GPU-hours."
    assert rate_words(54_321, 163_902, None) == said
    assert rate_words(54_321, 1.64e6, 2.5).endswith("GPU-hours (4.1 M at 2.5 per GPU-hour).")
