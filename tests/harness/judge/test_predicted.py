"""Errors, rank correlation and regret, on numbers that a reader can check."""

import sys
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from harness.judge.predicted import Pair, correlation, followed, judgement, outcomes, page
from harness.trial.result import (
    Evidence,
    Flops,
    MemoryPeak,
    Phase,
    StepTimes,
    TrialResult,
    TrialStatus,
)
from harness.trial.trial import RunPlan
from tests.advisor.cli.test_widths import WIDTHS
from tests.harness.conftest import RAN

MakePlan = Callable[..., RunPlan]


def result(name: str, *steps: float, status: str = "ok", allocated: int = 2000) -> TrialResult:
    whole = TrialResult(**RAN | {"name": name, "status": TrialStatus(status)})
    if status not in ("ok", "unstable"):
        return replace(whole, evidence=Evidence(phase=Phase.BACKWARD, message="too big"))
    return replace(
        whole,
        times=StepTimes(seconds=steps, warmup_seconds=(), clock="host"),
        memory=(MemoryPeak(rank=0, stage=0, allocated=allocated, saved_bytes_per_layer=100),),
        flops=Flops(model=1.0, hardware=1.0, replayed_per_layer=0),
    )


def results(plan: RunPlan, *times: float | str) -> dict[str, TrialResult]:
    names = [trial.name for _, trial in plan.trials()]
    return {
        name: result(name, status=time) if isinstance(time, str) else result(name, time)
        for name, time in zip(names, times, strict=True)
    }


def test_medians_over_steps_then_processes(make_plan: MakePlan) -> None:
    plan = make_plan(1, 3)
    names = [trial.name for _, trial in plan.trials()]
    series = {
        names[0]: result(names[0], 1.0, 2.0, 9.0),
        names[1]: result(names[1], 3.0, 3.0),
        names[2]: result(names[2], 40.0, allocated=2500),
    }
    (outcome,) = outcomes(plan, series)
    assert outcome.step_time == Pair(predicted=0.012, measured=3.0)
    assert outcome.peak_allocated.measured == 2500
    assert outcome.peak_allocated.error == pytest.approx(1000 / 2500 - 1)
    assert outcome.saved_per_layer.error == 0.0


def test_one_repeat_that_failed_is_the_status_and_what_has_no_result_is_left_out(make_plan) -> None:
    plan = make_plan(1, 3)
    (outcome,) = outcomes(plan, results(plan, 1.0, "oom", 1.0))
    assert (outcome.status, outcome.reason) == ("oom", "[backward] too big")
    assert outcome.step_time.measured == 1.0
    (outcome,) = outcomes(plan, results(plan, 1.0, "unstable", 1.0))
    assert outcome.status == "unstable"
    more = make_plan(3)
    first = next(iter(more.trials()))[1].name
    assert len(outcomes(more, {first: result(first, 1.0)})) == 1


@pytest.mark.parametrize(
    ("predicted", "measured", "rho", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0, 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0, -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 0.8, 2 / 3),  # 5 of 6 pairs agree
        ([1, 1, 2], [5, 6, 7], 0.8660254, 2 / 6**0.5),  # one pair is tied
        ([1, 2], [1, 2], None, None),
        ([1, 1, 1], [1, 2, 3], None, None),
        ([1, 2, None, 3], [1, 2, 9, None], None, None),
    ],
)
def test_spearman_and_kendall(predicted, measured, rho, tau) -> None:
    pairs = [Pair(predicted=p, measured=m) for p, m in zip(predicted, measured, strict=True)]
    for name, number in {"spearmanr": rho, "kendalltau": tau}.items():
        assert correlation(name, pairs) == (None if number is None else pytest.approx(number))


def test_without_scipy_a_page_says_how_to_get_the_order(make_plan: MakePlan, monkeypatch) -> None:
    """It comes at the end of a run: nothing that was measured may be lost."""
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    plan = make_plan(3)
    found = tuple(
        replace(one, step_time=Pair(predicted=rank, measured=rank))
        for rank, one in enumerate(outcomes(plan, results(plan, 1.0, 2.0, 3.0)), start=1)
    )
    first, second = judgement(found)
    assert first.startswith("No rank correlation: needs scipy; in the checkout run: pip install")
    assert second.startswith("Following the advisor")


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1.0, 2.0, 3.0], 1.0),
        ([2.0, 1.0, 3.0], 0.5),
        (["oom", 1.0, 3.0], 0.0),
        (["oom", "oom", "failed"], None),
    ],
)
def test_following_the_advisor(make_plan, times, expected) -> None:
    plan = make_plan(3)
    assert followed(outcomes(plan, results(plan, *times))) == expected


def test_errors_that_cannot_be_said() -> None:
    assert Pair(predicted=1.0).error is None
    assert Pair(measured=1.0).error is None
    assert Pair(predicted=0.0, measured=0.0).error == 0.0
    assert Pair(predicted=1.0, measured=0.0).error is None


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_the_page_is_wider_than_it(make_plan: MakePlan, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    plan = replace(make_plan(4), assumptions=("the times are of a CPU and are shown",))
    text = page(plan, results(plan, 0.010, 0.012, "oom", 0.016))
    assert max(map(len, text.splitlines())) <= width


def test_the_page(make_plan: MakePlan) -> None:
    plan = replace(make_plan(4), assumptions=("on the CPU",))
    text = page(plan, results(plan, 0.010, 0.012, "oom", 0.016))
    lines = text.splitlines()
    assert lines[0] == "toy on cpu; each value predicted, then measured with the error"
    assert max(map(len, lines)) <= 100
    (first,) = [line for line in lines if " full:block:1 " in line]
    assert first.split()[-3:] == ["12.0", "10.0", "+20.0"] or first.endswith("+20.0 %")
    assert "full:block:3: [backward] too big" in lines
    assert "Following the advisor gives 100.0 % of the best measured throughput." in lines
    assert lines[-1] == "Note: on the CPU."


def test_what_following_the_advisor_gave(make_plan: MakePlan) -> None:
    plan = make_plan(2)
    assert "The advisor's first choice did not run." in page(plan, results(plan, "oom", 1.0))
    alone = make_plan(1)
    assert "Following" not in page(alone, results(alone, 1.0))
    plan = make_plan(3)
    lines = judgement(outcomes(plan, results(plan, 0.0125, 0.010, 0.016)))
    assert lines == [
        "Following the advisor gives 80.0 % of the best measured throughput: a regret of 20.0 %."
    ], "all three are predicted alike: there is no order to be right about"
