"""Layers of every stage, as Megatron Core splits them (its own split: tests/oracles)."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.job import pipeline_split
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from tests.advisor.jobs import parallel
from tests.advisor.tables import tables
from tests.advisor.toys import LLAMA

TABLES = tables(__file__)


def model(num_layers: int) -> ModelSpec:
    return replace(LLAMA, num_layers=num_layers)


def counts(num_layers: int, **layout: object) -> list[list[int]]:
    """Layers by stage and chunk."""
    stages = pipeline_split.pipeline_stages(model(num_layers), ParallelLayout(**layout))
    return [[len(chunk.layers) for chunk in stage] for stage in stages]


def pipeline(pp: int, vpp: int = 1, **fields: object) -> dict[str, object]:
    return {**parallel(pp=pp, vpp=vpp), **fields}


def test_an_even_split() -> None:
    assert counts(8, **pipeline(2, 2)) == [[2, 2], [2, 2]]
    assert counts(3) == [[3]]


def test_first_and_last_stage_of_their_own() -> None:
    first = pipeline(4, num_layers_in_first_pipeline_stage=2)
    assert counts(14, **first) == [[2], [4], [4], [4]]
    both = pipeline(4, 2, num_layers_in_first_pipeline_stage=2, num_layers_in_last_pipeline_stage=4)
    assert counts(18, **both) == [[1, 1], [3, 3], [3, 3], [2, 2]]
    ends = pipeline(2, num_layers_in_first_pipeline_stage=3, num_layers_in_last_pipeline_stage=5)
    assert counts(8, **ends) == [[3], [5]]


def test_embedding_and_loss_counted_as_layers() -> None:
    """Llama 3.1 405B has 126 layers: with both, 128 over PP 8 and VPP 8."""
    counted = {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }
    split = counts(126, **pipeline(8, 8, **counted))
    assert split[0] == [1, *[2] * 7]
    assert split[-1] == [*[2] * 7, 1]
    assert all(stage == [2] * 8 for stage in split[1:-1])
    assert counts(2, **pipeline(2, 2, **counted)) == [[0, 1], [1, 0]]


def test_a_layout_spelt_out() -> None:
    text = "Et|(tt|)*2,tL"
    assert pipeline_split.chunk_texts(text) == ["Et", "tt", "tt", "tL"]
    assert counts(6, **pipeline(2, 2, pipeline_model_parallel_layout=text)) == [[1, 2], [2, 1]]
    assert pipeline_split.chunk_texts("Et*3|t*2|L") == ["Ettt", "tt", "L"]


def test_the_ends_of_the_model_are_in_its_first_and_last_chunk() -> None:
    stages = pipeline_split.pipeline_stages(model(8), ParallelLayout(**pipeline(2, 2)))
    assert [[chunk.embedding for chunk in stage] for stage in stages] == [
        [True, False],
        [False, False],
    ]
    assert [[chunk.head for chunk in stage] for stage in stages] == [[False, False], [False, True]]


def test_what_is_alike_is_held_once() -> None:
    """Three chunks differ by their ends, two groups by their number of layers."""
    layout = pipeline(3, 2, account_for_loss_in_pipeline_split=True)
    found = pipeline_split.Pipeline(
        pipeline_split.pipeline_stages(model(11), ParallelLayout(**layout))
    )
    assert [len(layers) for layers in found.groups] == [2, 1]
    assert found.copies == (5, 1)
    assert found.group_of == (0, 0, 1)
    assert found.stages == (
        pipeline_split.Stage((0, 1), (0, 1), ((0, 2),)),
        pipeline_split.Stage((1,), (0, 0), ((0, 2),)),
        pipeline_split.Stage((1, 2), (0, 1), ((0, 1), (1, 1))),
    )


def test_the_largest_chunk() -> None:
    layout = ParallelLayout(**pipeline(4, num_layers_in_first_pipeline_stage=2))
    assert pipeline_split.most_layers_of_chunk(model(14), layout) == 4


@pytest.mark.parametrize(
    ("num_layers", "layout", "words"),
    TABLES["test_splits_that_do_not_work"],
)
def test_splits_that_do_not_work(num_layers: int, layout: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        counts(num_layers, **layout)
