"""What stages may hold of the layers, and that a layout says it."""

from itertools import product

import pytest

from advisor.job.job import Job
from advisor.job.pipeline_split import pipeline_stages
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.optimum.stage_table import StageSplits


def job(model: str, pp: int, vpp: int, *overrides: str) -> Job:
    request = Request(
        model=model,
        gpus=f"{8 * pp}xH100",
        seq_length=4096,
        micro_batch_size=1,
        global_batch_size=64 * pp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp,
        framework="megatron_lm",
        takes_recipe=False,
        overrides=overrides,
    )
    found = resolve(request)
    assert found.layout is not None
    return found.job(found.layout)


TEXT = "layout.pipeline_model_parallel_layout="
JOBS = (
    job("llama3_8b", 2, 1, "model.num_layers=6"),
    job("llama3_8b", 2, 2, "model.num_layers=8"),
    job("llama3_8b", 3, 1, "model.num_layers=7", f"{TEXT}Ett|ttt|ttL"),
    # three dense layers on two chunks, the last chunk without layers, one more token predicted
    job("deepseek_v3", 2, 2, "model.moe_layer_freq=[0]*3+[1]*58", f"{TEXT}Et|t*30|t*30m|L"),
    job("mixtral_8x7b", 2, 1, "model.num_layers=8", "model.moe_layer_freq=[0,1,0,1,0,1,0,1]"),
)


@pytest.mark.parametrize("its", JOBS, ids=lambda one: one.model.name)
def test_every_split_is_said_by_its_layout(its: Job) -> None:
    """What a stage is said to hold is what the layout's text gives it, whatever the others hold."""
    splits = StageSplits(its, moves=True)
    found = 0
    for chosen in product(*(range(len(choices)) for choices in splits.choices)):
        counts = [splits.choices[stage][number] for stage, number in enumerate(chosen)]
        if sum(map(sum, counts)) != splits.num_layers:
            continue
        found += 1
        moved = splits.job(chosen)
        stages = pipeline_stages(moved.model, moved.layout)
        for stage, number in enumerate(chosen):
            assert stages[stage] == splits.row(number)[stage]
    assert found == splits.number
    assert splits.job(splits.own_choices()) == its


def test_without_moves_there_is_the_own_split_alone_and_with_them_every_one() -> None:
    splits = StageSplits(JOBS[0], moves=False)
    assert splits.number == 1
    assert splits.choices == (((3,),), ((3,),))
    splits = StageSplits(JOBS[0], moves=True)  # from one layer to all but one a stage
    assert splits.choices[0] == ((1,), (2,), (3,), (4,), (5,))
    assert splits.number == 5


def test_what_is_left_over_goes_first_or_last() -> None:
    splits = StageSplits(JOBS[1], moves=True)
    assert splits.choices[0] == ((1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3))


def test_layers_of_another_kind_stay_where_they_are() -> None:
    splits = StageSplits(JOBS[3], moves=True)
    assert {counts[0] for counts in splits.choices[0]} == {1}
    assert min(counts[0] for counts in splits.choices[1]) == 2
    assert {counts[1] for counts in splits.choices[1]} == {0}
