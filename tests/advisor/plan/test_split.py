"""Splits of layers that no number of stages divides, next to those that recipes publish."""

import pytest
from msgspec.structs import replace

from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import chunk_texts, pipeline_stages
from advisor.models.presets import load_model
from advisor.plan.split import balanced_text, split_evenly, virtual_degrees
from advisor.request.recipes import load_recipes, preset_of
from tests.advisor.toys import LLAMA

PUBLISHED = [
    recipe
    for name in ("deepseek_v3", "kimi_k2", "moonlight_16b_a3b")
    for recipe in load_recipes(name)
    if recipe.values.get("pipeline_model_parallel_layout") and "partial_cg" not in recipe.name
]


def test_every_published_text_of_these_models_is_found_again() -> None:
    """61 layers with and without multi-token prediction on 8, 16 and 32 chunks, 27 on 2."""
    assert len(PUBLISHED) > 40
    for recipe in PUBLISHED:
        preset, text = preset_of(recipe), recipe.values["pipeline_model_parallel_layout"]
        model = preset.configure(load_model(recipe.model))
        pp = preset.layout.pipeline_model_parallel_size
        ours = balanced_text(model, pp, len(chunk_texts(text)) // pp)
        assert chunk_texts(ours) == chunk_texts(text), recipe.name


def test_two_layers_left_out_are_embedding_and_loss_counted_as_layers() -> None:
    """What the recipes of Llama 3.1 405B ask for: 126 layers as 128."""
    model = load_model("llama3.1_405b")
    layout = ParallelLayout(pipeline_model_parallel_size=8, virtual_pipeline_model_parallel_size=8)
    counted = replace(
        layout,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
    )
    assert pipeline_stages(model, split_evenly(model, layout)) == pipeline_stages(model, counted)


@pytest.mark.parametrize(
    ("layers", "vocabulary", "pp", "vpp", "text"),
    [
        # 24 x 1000 weights after layers of 36,864: the head is 1.7 layers
        (7, 1000, 2, 2, "Ett|(tt|)*2tL"),
        (15, 1000, 4, 1, "Et*4|(t*4|)*2tttL"),
        (14, 1000, 4, 1, "Et*4|(t*4|)*2ttL"),
        (13, 8, 4, 1, "Ettt|ttt|t*4|tttL"),  # a light head: the first stages, in turn
        (6, 1000, 2, 4, "E|(t|)*6L"),  # embedding and head in chunks of their own
    ],
)
def test_what_is_too_many_is_left_out_where_a_stage_works_longest(
    layers: int, vocabulary: int, pp: int, vpp: int, text: str
) -> None:
    model = replace(LLAMA, num_layers=layers, vocab_size=vocabulary)
    layout = ParallelLayout(
        pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp
    )
    assert split_evenly(model, layout).pipeline_model_parallel_layout == text
    pipeline_stages(model, split_evenly(model, layout))


def test_releases_without_the_text_number_the_ends() -> None:
    model, layout = load_model("kimi_k2"), ParallelLayout(pipeline_model_parallel_size=16)
    ends = split_evenly(model, layout, as_text=False)
    assert ends.num_layers_in_first_pipeline_stage == 4
    assert ends.num_layers_in_last_pipeline_stage == 1
    assert [chunk.num_layers for (chunk,) in pipeline_stages(model, ends)] == [*[4] * 15, 1]


def test_what_divides_or_is_spelt_stays() -> None:
    even = ParallelLayout(pipeline_model_parallel_size=2)
    assert split_evenly(LLAMA, even) == even
    spelt = replace(even, pipeline_model_parallel_size=3, num_layers_in_first_pipeline_stage=2)
    assert split_evenly(LLAMA, spelt) == spelt


def test_virtual_stages_worth_a_try() -> None:
    model = load_model("deepseek_v3")  # 61 layers
    assert virtual_degrees(model, 1) == (1,)
    assert virtual_degrees(model, 8) == (1, 2, 4)  # not 64 chunks for 61 layers
    assert virtual_degrees(model, 61) == (1,)
    assert virtual_degrees(model, 64) == ()
    assert virtual_degrees(load_model("llama3.1_405b"), 16) == (1, 2, 4, 8)
    assert virtual_degrees(load_model("llama3_70b"), 32) == ()  # 16 of 96 would be missing
    assert virtual_degrees(load_model("nemotron3_nano_30b_a3b"), 8) == ()
