"""Rows of a measured trial: whose limit holds, and what is said where a number is missing."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from harness.judge.golden import Golden, Session
from harness.judge.golden_update import golden_of
from harness.judge.metrics import (
    ACTIVE,
    ALLOCATED,
    LOSS,
    METRICS,
    NVML,
    RESERVED,
    STEP_TIME,
    TFLOPS,
    TOKENS,
    Series,
)
from harness.judge.trial_rows import (
    CompareOptions,
    ComparisonRow,
    describe,
    furthest,
    measured_rows,
)
from harness.judge.verdict import Verdict
from harness.trial.result import Concern, MemoryPeak, TrialStatus

pytest.importorskip("numpy")

GIB = 2**30


def rows(results: Any, golden: Golden, **options: Any) -> dict[str, ComparisonRow]:
    found = measured_rows("toy", "k", results, golden, CompareOptions(**options))
    return {row.metric: row for row in found}


def test_the_nearest_limit_holds(golden: Golden) -> None:
    """The command line before the golden before the metric; a metric's holds for its stages."""
    own = replace(golden, limits={ALLOCATED: 0.04, f"{ALLOCATED}.stage1": 0.03})
    given = CompareOptions(limits=((ALLOCATED, 0.1),))
    assert CompareOptions().limit(ALLOCATED, golden, 0.02) == 0.02
    assert CompareOptions().limit(ALLOCATED, own, 0.02) == 0.04
    assert CompareOptions().limit(f"{ALLOCATED}.stage0", own, 0.02) == 0.04
    assert CompareOptions().limit(f"{ALLOCATED}.stage1", own, 0.02) == 0.03
    assert given.limit(f"{ALLOCATED}.stage1", own, 0.02) == 0.1
    assert given.limit(RESERVED, own, 0.05) == 0.05


def test_every_metric_of_the_golden_has_a_row_with_its_sign(make_repeats, golden) -> None:
    found = rows(make_repeats(), golden)
    times = {STEP_TIME: 0.05, TOKENS: -0.05, TFLOPS: -0.05}
    limits = times | {ALLOCATED: 0.02, RESERVED: 0.05, LOSS: 0.02}
    assert [(name, row.limit) for name, row in found.items()] == list(limits.items())
    assert not any(row.cpu_time for row in found.values())


def test_a_new_metric_is_not_judged_and_a_lost_one_is_reported(
    make_repeats: Any, make_result: Any, golden: Golden
) -> None:
    more = [
        replace(r, memory=(replace(r.memory[0], active=11 * GIB, nvml_used=14 * GIB),))
        for r in make_repeats()
    ]
    assert {ACTIVE, NVML}.isdisjoint(rows(more, golden))
    richer = golden_of(more, "first")
    assert rows(more, richer)[NVML].verdict is Verdict.PASS
    lost = rows(make_repeats(), richer)[NVML]
    assert lost.verdict is Verdict.VANISHED
    assert lost.reason == "in the golden, but not in the results"


def test_a_golden_without_a_number_is_no_pass(make_repeats: Any, golden: Golden) -> None:
    """A file that somebody edited, or a foreign log of nothing but "nan"."""
    (first, *_) = golden.processes
    nothing = {n: Series(values=dict.fromkeys(s.values, math.nan)) for n, s in first.items()}
    empty = replace(golden, sessions=(Session(samples={"p": nothing}),))
    row = rows(make_repeats(), empty)[STEP_TIME]
    assert (row.verdict, row.reason) == (Verdict.VANISHED, "the golden has no finite value for it")


def test_a_peak_of_zero_has_no_ratio(make_result: Any) -> None:
    nothing = make_result(memory=(MemoryPeak(rank=0, stage=0, allocated=0),))
    row = rows([nothing], golden_of([nothing], "x"))[ALLOCATED]
    says = "must be positive in the golden and in the result"
    assert (row.verdict, row.reason) == (Verdict.VANISHED, says)


def test_a_cpu_is_judged_by_its_bytes_and_its_times_are_shown(make_result: Any) -> None:
    def on_cpu(seconds: float, **changes: Any) -> Any:
        result = make_result(seconds, **changes)
        workload = result.trial["workload"] | {"device": "cpu"}
        return replace(result, trial=result.trial | {"workload": workload})

    golden = golden_of([on_cpu(0.2)], "x")
    found = rows([on_cpu(2.0)], golden)
    assert {name for name, row in found.items() if row.cpu_time} == {STEP_TIME}
    assert found[STEP_TIME].verdict is Verdict.UNJUDGED
    assert found[STEP_TIME].change == pytest.approx(9.0)
    assert found[ALLOCATED].notes == (), "counted tensor by tensor: nothing is assumed"
    assert found[ALLOCATED].verdict is Verdict.PASS
    small = golden_of([on_cpu(0.2, allocated=100_000)], "x")
    assert rows([on_cpu(0.2, allocated=101_999)], small)[ALLOCATED].verdict is Verdict.PASS
    more = rows([on_cpu(0.2, allocated=102_001)], small)[ALLOCATED]
    assert more.verdict is Verdict.REGRESSION, "2 % of any size, with no floor"


@pytest.mark.parametrize(("more", "verdict"), [(63, Verdict.PASS), (65, Verdict.REGRESSION)])
def test_less_than_64_mib_are_no_regression_of_a_gpu(make_result, more, verdict) -> None:
    """Of 2 GiB, in which 2 % are 41 MiB."""
    small = golden_of([make_result(allocated=2 * GIB)], "x")
    found = rows([make_result(allocated=2 * GIB + more * 2**20)], small)[ALLOCATED]
    assert found.verdict is verdict


def test_few_processes_are_given_times_alone(make_repeats: Any, golden: Golden) -> None:
    found = rows(make_repeats(0.001)[:3], golden)
    one = "one session: a scatter of 2 % between sessions is assumed"
    assert found[STEP_TIME].notes == ("few processes: 3 now, 5 in the golden", one)
    assert found[ALLOCATED].notes == ()
    assert rows(make_repeats(0.001), golden)[STEP_TIME].notes == (one,)


@pytest.mark.parametrize("metric", [STEP_TIME, TFLOPS, TOKENS])
def test_what_depends_on_time_is_unstable_and_memory_is_not(make_repeats, golden, metric) -> None:
    fatal = Concern(name="spread", seen="IQR 20 %", limit="5 %", advice="look", fatal=True)
    results = make_repeats(0.5, allocated=12 * GIB)
    results[1] = replace(results[1], status=TrialStatus.UNSTABLE, concerns=(fatal,))
    found = rows(results, golden)
    assert found[metric].verdict is Verdict.UNSTABLE
    assert found[metric].reason == "spread: IQR 20 %, limit 5 %; look"
    assert found[metric].change is not None, "the numbers are shown all the same"
    assert found[ALLOCATED].verdict is Verdict.REGRESSION


def test_a_concern_that_is_not_fatal_stops_nothing(make_repeats: Any, golden: Golden) -> None:
    mild = Concern(name="few_steps", seen="4 steps", limit="5", advice="more")
    results = [replace(result, concerns=(mild,)) for result in make_repeats()]
    assert rows(results, golden)[STEP_TIME].verdict is Verdict.PASS
    unexplained = [replace(results[0], status=TrialStatus.UNSTABLE), *results[1:]]
    assert rows(unexplained, golden)[STEP_TIME].reason == f"{results[0].name} is unstable"


@pytest.mark.parametrize(
    ("loss", "limit", "verdict"),
    [
        (2.80, None, Verdict.PASS),
        (2.85, None, Verdict.PASS),
        (2.86, None, Verdict.REGRESSION),
        (2.74, None, Verdict.REGRESSION),
        (math.nan, None, Verdict.REGRESSION),
        (2.86, 0.03, Verdict.PASS),
    ],
)
def test_losses_have_a_limit_in_both_directions(make_repeats, golden, loss, limit, verdict) -> None:
    limits = () if limit is None else ((LOSS, limit),)
    changed = make_repeats(loss=(3.0, 2.9, loss, 2.7))
    row = rows(changed, golden, limits=limits)[LOSS]
    assert (row.verdict, row.two_sided) == (verdict, True)
    of_golden = replace(golden, limits=dict(limits))
    assert rows(changed, of_golden)[LOSS].verdict is verdict


def test_a_metric_that_nobody_knows_is_left_alone(make_repeats: Any, golden: Golden) -> None:
    first = golden.processes[0]
    odd = first | {"num-zeros": first[STEP_TIME]}
    found = rows(make_repeats(), replace(golden, sessions=(Session(samples={"odd": odd}),)))
    assert set(found) <= {*METRICS, LOSS}


@pytest.mark.parametrize(
    ("message", "more", "says"),
    [
        ("", {}, " in backward"),
        ("", {"rank": 0}, " in backward on rank 0"),
        ("CUDA OOM", {"over_bytes": 5 * 2**20}, " in backward, 5.00 MiB over: CUDA OOM"),
        ("two\nlines\t and  blanks", {"rank": 3}, " in backward on rank 3: two lines and blanks"),
        ("fits exactly", {"over_bytes": 0}, " in backward: fits exactly"),
    ],
)
def test_evidence_on_one_line(make_failed, make_result, message, more, says) -> None:
    assert describe(make_failed(TrialStatus.OOM, message, **more)) == says
    assert describe(make_result()) == ""


def test_names_for_other_tools() -> None:
    row = ComparisonRow(label="toy/none", workload_key="k", verdict=Verdict.PASS)
    assert row.identifier == "toy/none"
    assert replace(row, metric="loss").identifier == "toy/none loss"


def process(*losses: float, first: int = 1) -> dict[str, Series]:
    return {LOSS: Series(values=dict(enumerate(losses, first)))}


def test_the_worst_step_and_how_many_were_compared() -> None:
    found = furthest([process(3.0, 2.2, 1.0)], [process(3.0, 2.0, 1.05)])
    assert (found.step, found.golden, found.new, found.steps) == (2, 2.0, 2.2, 3)
    assert found.change == pytest.approx(0.1)


def test_only_shared_steps_count() -> None:
    found = furthest([process(9.0, 2.0, 1.0, first=3)], [process(5.0, 4.0, 9.0, 2.0)])
    assert (found.step, found.change, found.steps) == (3, 0.0, 2)
    assert furthest([process(1.0, first=10)], [process(1.0)]) is None
    assert furthest([{}], [process(1.0)]) is None
    assert furthest([], []) is None


def test_of_several_processes_the_median_step_by_step() -> None:
    found = furthest([process(3.0, 2.0), process(3.0, 2.1), process(9.0, 2.2)], [process(3.0, 2.0)])
    assert (found.step, found.new) == (2, 2.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_process_that_diverged_is_the_worst(bad: float) -> None:
    for new, golden in (
        ([process(3.0, bad), process(3.0, 2.0)], [process(3.0, 2.0)]),
        ([process(3.0, 2.0)], [process(3.0, bad)]),
    ):
        found = furthest(new, golden)
        assert (found.step, found.change) == (2, math.inf)


@pytest.mark.parametrize(
    ("new", "golden", "change"), [(0.0, 0.0, 0.0), (0.1, 0.0, math.inf), (-1.1, -1.0, -0.1)]
)
def test_changes_at_and_below_zero(new: float, golden: float, change: float) -> None:
    assert furthest([process(new)], [process(golden)]).change == pytest.approx(change)
