"""Points: the product, its legal part in the advisor's order, the rest with reasons."""

import pytest

from advisor.base.errors import UserError
from advisor.base.units import human_bytes
from advisor.hardware.catalogue import load_gpu
from advisor.job.layout import ParallelLayout
from advisor.request.request import Request
from advisor.request.resolve import resolve
from harness.planner.device import Machine
from harness.planner.run_request import compose_sweep
from harness.sweeps.space import Point, layout_name, make_space
from harness.trial.trial import Device
from tests.advisor.jobs import parallel
from tests.harness.sweeps.conftest import MakeSpace

CORNERS = "recompute=corners"


def test_the_product_of_micro_batches_and_settings(space_of: MakeSpace) -> None:
    space, _ = space_of(CORNERS, "sweep.micro_batch_sizes=[1,2]")
    assert {(p.micro_batch_size, p.recompute) for p in space.planned} == {
        (size, spec) for size in (1, 2) for spec in ("none", "selective:mlp", "full:uniform:1")
    }
    assert [planned.rank for planned in space.planned.values()] == [1, 2, 3, 4, 5, 6]
    for point, planned in space.planned.items():
        workload = planned.trial.workload
        assert (workload.micro_batch_size, workload.recompute) == (
            point.micro_batch_size,
            point.recompute,
        )
        assert workload.global_batch_size == 2, "steps of all points train on as many tokens"
        assert space.point_of(workload) == point
    assert space.choices() == {
        "layout": ["dp1"],
        "micro_batch_size": [1, 2],
        "recompute": ["full:uniform:1", "none", "selective:mlp"],
    }


def test_what_is_illegal_is_a_point_with_its_reason(space_of: MakeSpace) -> None:
    space, _ = space_of(CORNERS, "sweep.micro_batch_sizes=[2,4]")
    illegal = [planned for point, planned in space.planned.items() if point.micro_batch_size == 4]
    assert len(illegal) == 3
    assert all("must be divisible by micro_batch_size x DP" in p.skip for p in illegal)
    assert space.legal == [p for p in space.planned if p.micro_batch_size == 2]


def test_without_named_settings_all_legal_ones(space_of: MakeSpace) -> None:
    space, _ = space_of()
    specs = {point.recompute for point in space.planned}
    assert {"none", "selective:mlp", "full:uniform:1", "full:block:1", "full:block:3"} <= specs


def test_a_setting_that_a_rule_forbids_and_one_that_only_the_backend_knows(space_of) -> None:
    space, _ = space_of(
        "recompute.settings=[none,'full:uniform:1+distribute_saved_activations',op:save_attention]"
    )
    found = {point.recompute: planned for point, planned in space.planned.items()}
    assert found["full:uniform:1+distribute_saved_activations"].skip
    assert (found["op:save_attention"].skip, found["op:save_attention"].rank) == ("", None)


def test_layouts_are_those_that_the_advisor_finds_legal_and_the_backend_runs() -> None:
    config, options = compose_sweep(
        [
            *("experiment=tiny_cpu", "gpus=4xH100", "job.global_batch_size=4"),
            *("sweep.layouts=true", "recompute.settings=[none]"),
        ]
    )
    space = make_space(config, Machine(device=Device.CPU), options)
    legal = {point.layout for point, planned in space.planned.items() if not planned.skip}
    assert legal == {"dp4", "tp2-dp2", "pp4-dp1", "tp2-pp2-dp1"}
    refused = {point.layout: planned.skip for point, planned in space.planned.items()}
    assert "does not share key and value heads among ranks" in refused["tp4-dp1"]
    assert "the native backend cannot combine FSDP2 with PP 2" in refused["pp2-dp2"]
    names = [layout_name(planned.trial.workload.layout) for planned in space.planned.values()]
    assert len(set(names)) == len(names), "a name means one layout"
    assert {planned.trial.workload.layout.world_size for planned in space.planned.values()} == {4}


def test_unlikely_points_are_skipped_where_the_advisor_predicts() -> None:
    overrides = [
        "experiment=llama3_8b_1xh200",
        "recompute.settings=[none,full:uniform:1]",
        "sweep.micro_batch_sizes=[1,128]",
        "job.global_batch_size=128",
    ]
    config, options = compose_sweep(overrides)
    planned = make_space(config, H200, options).planned
    large = planned[Point(layout="dp1", micro_batch_size=128, recompute="none")]
    assert large.skip.startswith("predicted to fit with a probability below")
    _, all_of_them = compose_sweep([*overrides, "sweep.min_fit_probability=0"])
    everything = make_space(config, H200, all_of_them).planned
    assert not any(p.skip for p in everything.values())


TWO_SETTINGS = ["experiment=llama3_8b_1xh200", "recompute.settings=[none,full:uniform:1]"]
H200 = Machine(device=Device.CUDA, gpu_names=("H200-SXM-141GB",))


def test_what_fits_is_judged_by_the_sweep_s_budget() -> None:
    chances = {}
    for budget in ("", "125GiB"):
        config, options = compose_sweep([*TWO_SETTINGS, f"sweep.memory_budget={budget}"])
        space = make_space(config, H200, options)
        (planned,) = (p for p in space.planned.values() if p.spec == "none")
        chances[space.room_bytes] = planned.trial.prediction.fit_probability
    assert chances[125 * 2**30] == 0.0
    assert max(chances) == load_gpu("H200").memory_bytes


def test_a_space_without_a_legal_point_is_a_user_error(space_of: MakeSpace) -> None:
    with pytest.raises(UserError, match=r"has no legal point: .*; change sweep\.micro_batch_sizes"):
        space_of(CORNERS, "sweep.micro_batch_sizes=[4]")


def test_a_budget_that_no_point_fits_is_named_with_the_least_that_does() -> None:
    config, options = compose_sweep([*TWO_SETTINGS, "sweep.memory_budget=1GiB"])
    with pytest.raises(UserError) as caught:
        make_space(config, H200, options)
    assert (caught.value.field, caught.value.value) == ("sweep.memory_budget", "1.00 GiB")
    config, options = compose_sweep(TWO_SETTINGS)
    predicted = [p.trial.prediction for p in make_space(config, H200, options).planned.values()]
    least = min(one.peak_reserved_bytes or 0 for one in predicted if one is not None)
    assert caught.value.relation.endswith(f"the smallest needs {human_bytes(least)}")


def test_a_budget_above_the_card_is_refused_as_advise_refuses_it() -> None:
    config, options = compose_sweep([*TWO_SETTINGS, "sweep.memory_budget=150GiB"])
    with pytest.raises(UserError) as swept:
        make_space(config, H200, options)
    with pytest.raises(UserError) as asked:
        resolve(Request(model="llama3_8b", gpus="1xH200", memory_budget="150GiB"))
    assert str(swept.value).removeprefix("sweep.memory_budget") == str(asked.value).removeprefix(
        "--memory-budget"
    )


def test_names_of_layouts() -> None:
    layout = ParallelLayout(**parallel(tp=2, pp=4, dp=8, vpp=5))
    assert layout_name(layout) == "tp2-pp4-vpp5-dp8"
