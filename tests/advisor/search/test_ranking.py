"""Order, tiers and the Pareto front."""

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation, Simulation, TimeBreakdown
from advisor.base.units import GIB, MIB
from advisor.frameworks.megatron.setting import NONE, parse_setting, selective
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import (
    alike,
    falling_with_peaks,
    first_simulated,
    in_order,
    order,
    rank,
    tier,
)

from .test_evaluate import evaluator, job  # noqa: F401  (fixtures)


def _like(evaluation: Evaluation, peak: int, seconds: float, probability: float) -> Evaluation:
    time = TimeBreakdown(
        forward=seconds,
        backward=0,
        recompute=0,
        exposed_communication=0,
        pipeline_bubble=0,
        optimizer=0,
    )
    return replace(
        evaluation, peak_reserved_bytes=peak, time_seconds=time, fit_probability=probability
    )


@pytest.fixture(scope="module")
def base(evaluator: Evaluator) -> Evaluation:  # noqa: F811
    return evaluator.evaluate(NONE)


def test_what_fits_comes_before_what_is_faster(base: Evaluation) -> None:
    slow = _like(base, 10, 5.0, 0.99)
    edge = _like(base, 20, 2.0, 0.6)
    fast = _like(base, 30, 1.0, 0.01)
    ordered = [candidate.evaluation for candidate in rank([fast, edge, slow])]
    assert ordered == [slow, edge, fast]
    assert [tier(evaluation) for evaluation in ordered] == [0, 1, 2]


def test_of_what_fits_the_faster_comes_first_then_the_smaller(base: Evaluation) -> None:
    a, b, c = _like(base, 9, 1.0, 1), _like(base, 5, 1.0, 1), _like(base, 1, 2.0, 1)
    assert [candidate.evaluation for candidate in rank([c, a, b])] == [b, a, c]


def test_of_what_does_not_fit_the_smaller_comes_first(base: Evaluation) -> None:
    small, large = _like(base, 100, 9.0, 0.0), _like(base, 200, 1.0, 0.0)
    assert min([large, small], key=order) is small


def test_ranks_count_from_one_and_notes_are_kept(base: Evaluation) -> None:
    candidates = rank([_like(base, 1, 2.0, 1), _like(base, 1, 1.0, 1)], lambda _: ("said", "so"))
    assert [candidate.rank for candidate in candidates] == [1, 2]
    assert {candidate.note for candidate in candidates} == {"said; so"}


def test_what_says_little_with_an_earlier_row_is_folded(base: Evaluation) -> None:
    rows = {
        "first": _like(base, 60 * GIB, 5.0, 1.0),
        "alike": _like(base, 60 * GIB - 10 * MIB, 5.001, 1.0),
        "smaller": _like(base, 50 * GIB, 6.0, 1.0),
        "beaten": _like(base, 55 * GIB, 7.0, 1.0),
        "kept": _like(base, 56 * GIB, 8.0, 1.0),
        "without": replace(_like(base, 57 * GIB, 9.0, 1.0), job=replace(base.job)),
        "larger": _like(base, 90 * GIB, 4.0, 0.0),
        "baseline": _like(base, 95 * GIB, 4.5, 0.0),
    }
    rows = {
        name: row if name in ("baseline", "without") else replace(row, setting=selective("mlp"))
        for name, row in rows.items()
    }
    names = {id(row): name for name, row in rows.items()}
    ranked = rank(list(rows.values()), kept=lambda row: row is rows["kept"])
    assert [names[id(row.evaluation)] for row in ranked] == [*rows]
    found = {names[id(row.evaluation)]: row for row in ranked}
    assert {name for name, row in found.items() if row.folded} == {"alike", "beaten"}
    assert {name: row.same_as for name, row in found.items() if row.same_as} == {"alike": 1}
    assert found["alike"].pareto
    assert [found[name].dominated_by for name in ("beaten", "kept", "without")] == [3, 3, 3]
    assert found["baseline"].dominated_by == 7


def test_a_replay_folds_no_estimate_that_is_smaller_by_its_own_measure(base: Evaluation) -> None:
    first = replace(_like(base, 50, 1.0, 1.0), usual_reserved_bytes=55, setting=selective("mlp"))
    usual = {54: False, 56: True}
    for size, folded in usual.items():
        estimate = replace(first, peak_reserved_bytes=size, usual_reserved_bytes=size)
        slower = replace(estimate, time_seconds=_like(base, 1, 2.0, 1.0).time_seconds)
        _, second = rank([replace(first, requests=9), replace(slower, requests=None)])
        assert (second.dominated_by, second.folded) == (1, folded)
        _, simulated = rank([replace(first, requests=9), replace(slower, requests=9)])
        assert simulated.folded


def test_any_row_that_is_shown_folds_what_it_beats(base: Evaluation) -> None:
    """The fastest that beats the last row is not surely smaller: by estimates it is larger."""
    first, second, third = (
        replace(
            _like(base, peak, seconds, 1.0),
            usual_reserved_bytes=usual,
            requests=requests,
            setting=selective("mlp"),
        )
        for peak, usual, requests, seconds in (
            (50 * GIB, 60 * GIB, 9, 1.0),
            (52 * GIB, 52 * GIB, None, 2.0),
            (53 * GIB, 53 * GIB, None, 3.0),
        )
    )
    ranked = rank([first, second, third])
    assert [row.dominated_by for row in ranked] == [None, 1, 1]
    assert [row.folded for row in ranked] == [False, False, True]


def test_rows_alike_are_as_likely_to_fit_and_named_by_the_first(base: Evaluation) -> None:
    """Time to SAME_TIME, 0.05 %, and memory to a tenth of a GiB."""
    peaks = (60 * GIB, 60 * GIB + GIB // 25, 60 * GIB + GIB // 15, 60 * GIB, 60 * GIB)
    likely, seconds = (1.0, 1.0, 1.0, 0.6, 1.0), (1.0, 1.0004, 1.0004, 1.0004, 1.0006)
    rows = [_like(base, *row) for row in zip(peaks, seconds, likely, strict=True)]
    assert alike(rows) == [None, 1, None, None, None]


def test_of_equal_settings_none_comes_first(base: Evaluation) -> None:
    inert = replace(_like(base, 5, 1.0, 1.0), setting=selective("layernorm"))
    none = _like(base, 5, 1.0, 1.0)
    first, second = rank([inert, none])
    assert (first.evaluation, first.pareto) == (none, True)
    assert not second.pareto


def _estimated(
    like: Evaluation, probability: float, best: float = 0.0, requests: int = 9_000
) -> Evaluation:
    """An evaluation whose simulation says `probability`, and may say `best`."""

    def simulate() -> Simulation:
        return Simulation(
            peak_reserved_bytes=like.peak_reserved_bytes,
            fit_probability=probability,
            requests=requests,
            look=like.look,
        )

    likely = like.fit_probability, probability

    def likely_with(share: float) -> float:
        return min(likely) if share else max(*likely, best)

    return replace(like, simulate=simulate, likely_with=likely_with, requests=None)


def _simulated(evaluations: tuple[Evaluation, ...]) -> list[bool]:
    return [evaluation.requests is not None for evaluation in evaluations]


def test_the_first_row_is_simulated_until_it_is_one_that_was(base: Evaluation) -> None:
    rows = [
        _estimated(_like(base, 30 - n, float(n), 0.96), 0.2 if n < 3 else 0.99) for n in range(6)
    ]
    found = first_simulated(rows)
    assert _simulated(found) == [True] * 4 + [False] * 2
    assert min(found, key=order) is found[3]


def test_what_a_page_shows_is_simulated_where_its_verdict_may_change(base: Evaluation) -> None:
    rows = [_estimated(_like(base, 90 - n, 1.0 + n, 0.99), 0.99) for n in range(14)]
    rows = [replace(row, setting=selective(f"mlp,{n}")) for n, row in enumerate(rows)]
    for n in (4, 11, 12):
        rows[n] = replace(rows[n], likely_with=lambda share: 0.3 if share else 0.99)
    assert [n for n, said in enumerate(_simulated(first_simulated(rows))) if said] == [0, 4]
    compared = _simulated(first_simulated(rows, (rows[12].setting,)))
    assert [n for n, said in enumerate(compared) if said] == [0, 4, 12]


def test_what_may_fit_and_is_faster_is_simulated_wherever_it_stands(base: Evaluation) -> None:
    rows = [_estimated(_like(base, 10, 2.0 + n, 0.99), 0.99, requests=1_000) for n in range(40)]
    hopeful = _estimated(_like(base, 20, 1.0, 0.3), 0.99, requests=1_000)
    hopeless = _estimated(_like(base, 20, 1.0, 0.01), 0.99, requests=1_000)
    found = first_simulated([*rows, hopeful, hopeless])
    assert min(found, key=order) is found[40]
    assert _simulated(found[40:]) == [True, False]


def test_nothing_fits_only_where_replays_say_so(base: Evaluation) -> None:
    """After a first row that is at the edge, what is unclear is simulated until one fits."""
    rows = [
        _estimated(_like(base, 30 - n, float(n), 0.6), 0.99 if n == 9 else 0.6, 0.99)
        for n in range(12)
    ]
    found = first_simulated(rows)
    assert _simulated(found) == [True] * 10 + [False] * 2
    assert min(found, key=order) is found[9]


def test_probabilities_fall_with_the_peaks_and_simulations_keep_their_verdicts(
    base: Evaluation,
) -> None:
    likely = {83: 0.02, 90: 0.19, 95: 0.004, 97: 0.09, 80: 0.91, 79: 0.8, 78: 0.3}
    said = {83, 95, 79, 80}
    rows = [
        replace(_like(base, peak, 1.0, chance), requests=9 if peak in said else None)
        for peak, chance in likely.items()
    ]
    found = [row.fit_probability for row in falling_with_peaks(rows)]
    assert found == [0.02, 0.02, 0.004, 0.004, 0.9, 0.8, 0.9]


def test_of_what_takes_the_same_time_the_simplest_comes_first(base: Evaluation) -> None:
    times = {"mlp,moe_act": 1.0, "mlp": 1.0004, "moe_act": 1.0006}
    rows = [replace(_like(base, 9, s, 1.0), setting=selective(m)) for m, s in times.items()]
    assert in_order(rows) == [rows[1], rows[0], rows[2]]


def test_a_ladder_is_folded_to_its_ends_and_the_first_that_fits(base: Evaluation) -> None:
    rows = [
        replace(
            _like(base, (60 - n) * GIB, 1.0 + n, 1.0 if n > 3 else 0.2),
            setting=parse_setting(f"full:block:{n}"),
        )
        for n in range(1, 9)
    ]
    shown = [row.evaluation.setting.spec for row in rank(rows) if not row.folded]
    assert shown == [f"full:block:{n}" for n in (4, 8, 1)]


def test_the_first_answer_is_what_its_own_simulation_says() -> None:
    """Of the estimates only `full` fits; `none` does once it is simulated."""
    answer = advise(Request(model="llama2_7b", gpus="1xA100", framework="huggingface", quick=True))
    first, *others = (row.evaluation for row in answer.candidates)
    assert (first.setting.spec, first.fits) == ("none", True)
    faster = [one for one in others if one.step_time_seconds < first.step_time_seconds]
    assert not any(one.simulated.fits for one in faster)


def test_printed_probabilities_fall_with_the_peaks() -> None:
    asked = {"framework": "huggingface", "micro_batch_size": 2, "quick": True}
    rows = advise(Request(model="llama3.1_8b", gpus="8xA100", **asked)).candidates
    by_peak = sorted((row.evaluation for row in rows), key=lambda one: one.peak_reserved_bytes)
    likely = [one.fit_probability for one in by_peak]
    assert likely == sorted(likely, reverse=True)


def test_no_evaluations() -> None:
    assert first_simulated(()) == ()
