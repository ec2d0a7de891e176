"""Multi-token prediction on a toy: replays, weights, FLOPs, place in the pipeline; what it keeps
stands in tests/oracles."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import Method, full
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk, most_layers_of_chunk, pipeline_stages
from advisor.layers.parameters import parameter_count
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import stage_elements
from advisor.models.layer_kind import DENSE, Role
from advisor.plan.flops import model_flops
from advisor.plan.recompute_plan import kept_tensors
from tests.advisor.toys import LLAMA, toy_shape

MODEL = replace(LLAMA, mtp_num_layers=1)
MTP = DENSE._replace(role=Role.MULTI_TOKEN_PREDICTION)
NORM = DENSE._replace(role=Role.FINAL_LAYERNORM)
SHAPE = toy_shape(MODEL)
ROWS = 1008 // 2  # 1000 tokens padded to 8 x TP


def kept(*runs: object) -> dict[str, int]:
    tensors = kept_tensors(transformer_layer(SHAPE, MTP), runs)
    return {name: tensor.num_bytes for name, tensor in tensors.items()}


def test_full_recompute_replays_all_but_the_lookup() -> None:
    plan = chunk_plan(full(Method.UNIFORM, 1), MODEL, (DENSE, NORM, MTP), True)
    layer, norm, mtp = plan.segments
    assert layer.whole
    assert not norm.whole
    assert not norm.runs
    assert set(kept(*mtp.runs)) == {"masked_input", "input_mask", "mtp_embedding", "mtp_input"}
    block = chunk_plan(full(Method.BLOCK, 1), MODEL, (DENSE, DENSE, NORM, MTP), True)
    assert [segment.whole for segment in block.segments] == [True, False, False, False]
    assert not block.segments[-1].runs


def test_the_last_stage_holds_the_depths_unless_the_layout_says_otherwise() -> None:
    two = ParallelLayout(pipeline_model_parallel_size=2)
    assert pipeline_stages(MODEL, two) == (
        (ModelChunk((DENSE,) * 4, embedding=True),),
        (ModelChunk((*(DENSE,) * 4, NORM, MTP), head=True),),
    )
    assert most_layers_of_chunk(MODEL, two) == 4
    text = ParallelLayout(
        pipeline_model_parallel_size=4, pipeline_model_parallel_layout="Et*4|t*4|m|L"
    )
    stages = pipeline_stages(MODEL, text)
    assert [stage[0].layers for stage in stages[1:]] == [(*(DENSE,) * 4, NORM), (MTP,), ()]
    assert [stage[0].predicts for stage in stages] == [False, False, True, False]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Et*8|L", r"has 0 MTP layers \(m\), but mtp_num_layers = 1"),
        ("Et*4|mt*4L", "after the last t"),
        ("Et*4|t*4mmL", "has 2 MTP layers"),
    ],
)
def test_layouts_that_megatron_refuses(layout: str, words: str) -> None:
    two = ParallelLayout(pipeline_model_parallel_size=2, pipeline_model_parallel_layout=layout)
    with pytest.raises(UserError, match=words):
        pipeline_stages(MODEL, two)


def test_a_stage_that_predicts_holds_a_copy_of_the_embedding() -> None:
    depth = 64 * 5 + 32 * 128 + stage_elements(SHAPE, (ModelChunk((DENSE,)),)) - 64 * 2
    words = ROWS * 64
    assert stage_elements(SHAPE, (ModelChunk((MTP,)),)) == depth + words
    assert stage_elements(SHAPE, (ModelChunk((NORM, MTP), head=True),)) == depth + 2 * words + 64
    assert stage_elements(SHAPE, (ModelChunk((MTP,), embedding=True),)) == depth + words


def test_counts_and_flops_of_one_more_layer() -> None:
    plain, count = parameter_count(LLAMA), parameter_count(MODEL)
    assert count.total == plain.total
    assert count.multi_token_prediction == plain.layers // 8 + 3 * 64 + 64 * 128
    more = replace(LLAMA, num_layers=9)
    extra = 6 * 32 * (3 * 64 + 2 * 64 * 64 + 64 * 1000)
    assert model_flops(MODEL, 32, 1, 1000) == model_flops(more, 32, 1, 1000) + extra
