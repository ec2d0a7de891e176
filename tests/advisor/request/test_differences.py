"""What a recipe for 8 or 4 bits changes besides the precision is said, field by field."""

import pytest

from advisor.base.dtypes import Precision
from advisor.request.differences import changes_with_precision
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise


def _said_with_precision(request: Request) -> tuple[str, ...]:
    return changes_with_precision(request, resolve(request))


def test_another_recipe_of_a_precision_is_distinguished() -> None:
    request = Request(model="llama3_70b", gpus="64xH100", precision=Precision.FP8_CURRENT)
    said = _said_with_precision(request)
    ending = " (recipe for bf16, llama3_70b_64xh100)"
    assert f"layout.context_parallel_size 1, not 2{ending}" in said
    assert f"layout.pipeline_model_parallel_size 8, not 4{ending}" in said
    assert not any("data_parallel_size" in line or "precision" in line for line in said)
    assert advise(request).differences == said


def test_graphs_and_overlap_are_named() -> None:
    request = Request(model="gpt_oss_120b", gpus="64xGB300", precision=Precision.MXFP8)
    ending = " (recipe for bf16, gpt_oss_120b_pretrain_64gpu_gb300_bf16)"
    said = _said_with_precision(request)
    assert f"layout.overlap_moe_expert_parallel_comm true, not false{ending}" in said
    graphs = f"(empty), not attn,moe_router,moe_preprocess{ending}"
    assert f"job.cuda_graph_modules {graphs}" in said
    assert f"model.moe_token_dispatcher_type flex, not alltoall{ending}" in said


def test_what_is_given_is_no_difference() -> None:
    request = Request(
        model="llama3_70b",
        gpus="64xH100",
        precision=Precision.FP8_CURRENT,
        context_parallel_size=1,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=5,
    )
    assert not any("_parallel_" in line for line in _said_with_precision(request))


def test_a_search_shows_its_layouts_itself() -> None:
    request = Request(
        model="deepseek_v3", gpus="256xB200", precision=Precision.MXFP8, search=SearchScope.LAYOUT
    )
    said = _said_with_precision(request)
    assert any(line.startswith("job.cuda_graph_impl") for line in said)
    assert not any("expert_model_parallel_size" in line for line in said)


@pytest.mark.parametrize("precision", [None, Precision.BF16, Precision.FP8_DELAYED])
def test_the_same_recipe_changes_nothing(precision: Precision | None) -> None:
    request = Request(model="qwen3_8b", gpus="16xH100", precision=precision)
    assert not _said_with_precision(request)
