"""What routing that is not balanced adds on the busiest rank."""

from math import inf
from statistics import NormalDist

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.memory.imbalance import (
    EVEN,
    RoutedBytes,
    Unevenness,
    largest_of,
    most_uneven,
    uneven_stage,
)
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.search.evaluate import Evaluator
from advisor.search.rank_shape import rank_shape
from tests.advisor.jobs import evaluator_of, job_of

MIXTRAL = replace(load_model("mixtral_8x7b"), num_layers=4)


def job(model: ModelSpec = MIXTRAL, ep: int = 8, **config: object) -> Job:
    return job_of(
        model,
        ParallelLayout(data_parallel_size=8, expert_model_parallel_size=ep),
        replace(JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=8), **config),
    )


def uneven(of: Job, spec: str = "none") -> Unevenness:
    evaluator = evaluator_of(of)
    return evaluator.stage_detail(parse_setting(spec), 0).reserved.uneven


@pytest.mark.parametrize(("number", "mean"), [(2, 0.564), (8, 1.424), (64, 2.36)])
def test_the_largest_of_several_normal_variables(number: int, mean: float) -> None:
    """Means from tables of order statistics, within 5 %."""
    assert largest_of(number) == pytest.approx(mean, rel=0.05)


def test_the_busiest_of_64_experts_has_what_was_published() -> None:
    """One layer, an expert a rank: MaxVio's 0.62 of what is kept and of what runs."""
    model = replace(MIXTRAL, num_moe_experts=64)
    shape = replace(rank_shape(job()), model=model, expert_model_parallel_size=64)
    found = uneven_stage(shape, [RoutedBytes(1000, 100, 1)], inf).unevenness((1,))
    assert found.mean == pytest.approx(0.62 * 1100, abs=1)
    deeper = uneven_stage(shape, [RoutedBytes(4 * 1000, 0, 4)], inf).unevenness((1,))
    assert deeper.mean == pytest.approx(0.62 * 4000 / 2, abs=1)  # other experts in every layer
    bounded = uneven_stage(shape, [RoutedBytes(1000, 100, 1)], 0.25).unevenness((1,))
    assert bounded.mean == 275


def test_doubled_routing_keeps_what_the_walk_says() -> None:
    """Bytes that grow with the tokens, from the walk at twice the mean."""
    even, busy = (job(moe_load_imbalance=x) for x in (1.0, 2.0))
    peaks = [evaluator_of(of).stage_detail(parse_setting("none"), 0) for of in (even, busy)]
    more = peaks[1].activations.kept - peaks[0].activations.kept
    assert 0 < uneven(even).mean < more


def test_the_peak_is_one_that_9_of_10_runs_stay_within() -> None:
    """1.2816 standard deviations beyond the mean: the 0.9 quantile of the normal distribution."""
    balanced = job(moe_router_force_load_balancing=True)
    details = [evaluator_of(of).stage_detail(parse_setting("none"), 0) for of in (job(), balanced)]
    published, forced = (one.reserved for one in details)
    its = published.uneven
    assert its.stated == pytest.approx(NormalDist(its.mean, its.spread).inv_cdf(0.9), rel=1e-4)
    assert published.allocated == forced.allocated + its.stated
    (term,) = (t for t in details[0].fixed.buffers if t not in details[1].fixed.buffers)
    assert term.num_bytes == its.stated
    assert forced.uneven == EVEN


@pytest.mark.parametrize("spec", ["none", "selective:moe", "full:uniform:1"])
def test_what_doubled_routing_costs_is_no_less_than_what_a_given_imbalance_has(spec: str) -> None:
    """Nor a third more: the gradients of a running layer are taken as large as what it keeps, and
    another peak may hide a part."""
    given, even = (
        evaluator_of(of).stage_detail(parse_setting(spec), 0)
        for of in (job(moe_load_imbalance=2), job(moe_router_force_load_balancing=True))
    )
    more = given.reserved.allocated - even.reserved.allocated
    costs = uneven(job(), spec).doubled
    assert more <= costs <= more * 4 / 3


def test_it_is_said_up_to_where_routing_is_safe() -> None:
    """A job with that imbalance fits the budget, and one with half as much more does not."""
    budget = 34 * 2**30
    of = job(memory_budget_bytes=budget)
    evaluation = evaluator_of(of).evaluate(parse_setting("none"))
    assert evaluation.detail.uneven is not None
    safe = evaluation.detail.uneven.safe
    assert 1.5 < safe < 4
    busy = [
        job(memory_budget_bytes=budget, moe_load_imbalance=ratio) for ratio in (safe, 1.5 * safe)
    ]
    evaluators = [evaluator_of(one) for one in busy]
    assert [one.evaluate(parse_setting("none")).fits for one in evaluators] == [True, False]
    balanced = job(moe_router_force_load_balancing=True)
    found = Evaluator(balanced, load_calibration(of.gpu)).evaluate(parse_setting("none"))
    assert found.detail.uneven is None


def test_it_lowers_the_probability() -> None:
    balanced = job(moe_router_force_load_balancing=True)
    published = evaluator_of(job()).evaluate(parse_setting("none"))
    tight = (published.peak_reserved_bytes + 2**30) // 2**20 * 2**20
    published, forced = (
        Evaluator(
            replace(of, config=replace(of.config, memory_budget_bytes=tight)),
            load_calibration(of.gpu),
        ).evaluate(parse_setting("none"))
        for of in (job(), balanced)
    )
    assert published.fit_probability < forced.fit_probability


def test_replayed_experts_are_uneven_while_they_run() -> None:
    assert 0 < uneven(job(), "selective:moe").mean < uneven(job()).mean / 2


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        (job(), inf),
        (job(ep=1), 0.0),
        (job(moe_router_force_load_balancing=True), 0.0),
        (job(moe_load_imbalance=1.3), 0.0),
        (job(replace(MIXTRAL, moe_expert_capacity_factor=1.25)), 0.25),
    ],
)
def test_how_much_more_a_rank_may_get(changed: Job, most: float) -> None:
    assert most_uneven(changed) == most
    assert (uneven(changed) == EVEN) is (most == 0.0)


def test_a_peak_of_something_else_hides_a_part() -> None:
    assert Unevenness(100, 50.0, 164, 900).beyond(30) == Unevenness(70, 50.0, 134, 900)
    assert Unevenness(100, 50.0, 164).beyond(130) == Unevenness(0, 50.0, 34)
