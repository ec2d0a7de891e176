"""Errors, order, regret and verdicts of rows whose answers are known."""

import pytest

from harness.judge.accuracy.cells import Row, rows
from harness.judge.accuracy.judgement import first_choice, judge, regret
from harness.trial.result import TrialStatus
from tests.harness.judge.accuracy.synthetic import GIB, prediction, result

SPECS = ("none", "selective:mlp", "full:uniform:1")


def cell(
    predicted: tuple[float, ...],
    measured: tuple[float | None, ...],
    probabilities: tuple[float, ...] = (1.0, 1.0, 1.0),
) -> tuple[Row, ...]:
    return rows(
        [
            result(
                spec,
                seen,
                predicted=prediction(told, 8 * GIB, probability),
                status=TrialStatus.OK if seen is not None else TrialStatus.OOM,
            )
            for spec, told, seen, probability in zip(
                SPECS, predicted, measured, probabilities, strict=True
            )
        ]
    )


def test_a_perfect_cell() -> None:
    found = judge("all", cell((1.0, 1.2, 1.5), (1.0, 1.2, 1.5)))
    assert (found.cells, found.rows) == (1, 3)
    assert found.step is not None
    assert found.step.mean == 0
    assert found.overhead is not None
    assert found.overhead.count == 2
    assert found.tau == 1.0
    assert found.regret == found.worst_regret == 0.0
    assert found.verdicts.fits == 3


def test_errors_are_means_of_sizes_and_the_worst_signed() -> None:
    found = judge("all", cell((1.1, 1.2, 1.2), (1.0, 1.2, 1.5)))
    assert found.step is not None
    assert found.step.mean == pytest.approx((0.1 + 0.0 + 0.2) / 3)
    assert found.step.worst == pytest.approx(-0.2)
    assert found.allocated is not None
    assert found.allocated.worst == pytest.approx(-0.2)  # 8 of 10 GiB
    assert found.overhead is not None
    assert found.overhead.worst == pytest.approx((1.2 / 1.1 - 1) - 0.5)


def test_a_wrong_order_costs_what_the_choice_costs() -> None:
    own = cell((1.0, 1.2, 1.5), (1.3, 1.0, 1.5))
    assert regret(own) == pytest.approx(0.3)
    assert judge("all", own).tau == pytest.approx(1 / 3)


def test_the_first_choice_is_the_fastest_that_is_said_to_fit() -> None:
    own = cell((1.0, 1.2, 1.5), (None, 1.2, 1.5), (0.5, 0.95, 1.0))
    choice = first_choice(own)
    assert choice is not None
    assert choice.setting == "selective:mlp"
    assert regret(own) == 0.0
    verdicts = judge("all", own).verdicts
    assert (verdicts.fits, verdicts.refusals, verdicts.false_fits) == (2, 1, 0)


def test_a_choice_that_runs_out_of_memory_has_no_finite_price() -> None:
    own = cell((1.0, 1.2, 1.5), (None, 1.2, 1.5))
    found = judge("all", own)
    assert found.worst_regret == float("inf")
    assert found.regret is None
    assert found.verdicts.false_fits == 1


def test_a_refusal_that_runs_is_counted() -> None:
    assert judge("x", cell((1, 2, 3), (1, 2, 3), (0.1, 1, 1))).verdicts.false_refusals == 1


def test_nothing_is_judged_of_nothing() -> None:
    found = judge("none", ())
    assert found.step is found.tau is found.regret is found.worst_regret is None
    assert regret(cell((1.0, 1.2, 1.5), (1.0, None, None))) is None
