"""CUDA graphs of a recipe: its own job has them, another one where they are asked for."""

import pytest

from advisor.job.job import CudaGraphImpl
from advisor.request.differences import beside_degrees
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.advise import advise

MODULES = ("moe_router", "moe_preprocess")
ENGINE = "job.cuda_graph_impl=transformer_engine"
LINE = f"the recipe's CUDA graphs are left out; add {ENGINE} to have them"
QWEN3 = {"model": "qwen3_30b_a3b", "gpus": "16xH100", "framework": "megatron_bridge"}


@pytest.mark.parametrize(
    ("fields", "has"),
    [
        ({}, True),
        ({"micro_batch_size": 1, "expert_model_parallel_size": 16}, True),
        ({"memory_budget": "70GiB"}, True),
        ({"micro_batch_size": 2, "overrides": (ENGINE,)}, True),
        ({"micro_batch_size": 2}, False),
        ({"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8}, False),
        ({"overrides": ("model.moe_token_dispatcher_type=alltoall",)}, False),
    ],
)
def test_a_recipes_own_job_has_its_graphs_and_another_where_asked(fields, has: bool) -> None:
    found = resolve(Request(**QWEN3 | fields))
    assert found.recipe
    assert found.config.cuda_graph_impl == ("transformer_engine" if has else "none")
    assert found.config.cuda_graph_modules == (MODULES if has else ())
    assert (LINE in found.assumptions) is not has


def test_a_job_that_turns_graphs_off_is_not_told_to_turn_them_on() -> None:
    found = resolve(Request(overrides=("job.cuda_graph_impl=none",), micro_batch_size=2, **QWEN3))
    assert found.config.cuda_graph_impl is CudaGraphImpl.NONE
    assert LINE not in found.assumptions


def test_what_the_graphs_left_out_would_save_is_what_they_save_where_asked_for() -> None:
    fewer = QWEN3 | {"global_batch_size": 512, "quick": True, "recompute": ("none",)}
    plain, graphed = (advise(Request(**fewer, overrides=own)) for own in ((), (ENGINE,)))
    taken, less = (a.candidates[0].evaluation.step_time_seconds for a in (plain, graphed))
    said = f"the recipe's CUDA graphs would save {100 * (1 - less / taken):.0f} % of a step"
    assert said in plain.assumptions
    assert not any("would save" in text for text in graphed.assumptions)


def test_a_row_with_other_degrees_is_asked_for_with_the_graphs_it_has() -> None:
    request = Request(**QWEN3)
    found = resolve(request)
    told = beside_degrees(request, found.job(found.layout))
    assert told["job.cuda_graph_impl"] is CudaGraphImpl.TRANSFORMER_ENGINE
    assert told["job.cuda_graph_modules"] == MODULES
