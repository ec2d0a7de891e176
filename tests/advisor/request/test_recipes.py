"""Tables of published recipes: every row is a legal job and agrees with the file that cites it."""

import re
from math import prod
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.configuration import ConfigGroup, packaged_configs
from advisor.base.errors import UserError
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.names import Framework
from advisor.job.job import CudaGraphImpl
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.request.recipe_choice import Wanted, find_experiment, nearest_experiment
from advisor.request.recipes import (
    Experiment,
    Recipe,
    experiment_names,
    load_experiment,
    load_recipes,
    preset_of,
    recipe_models,
    with_split,
)
from tests.advisor.request.test_experiments import job_of

RECIPES = [recipe for model in recipe_models() for recipe in load_recipes(model)]
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
# The release that a framework's recipes were read with.
REVISIONS = {
    "megatron_bridge": resolve_revision(Framework.MEGATRON_BRIDGE, "main"),
    "megatron_lm": resolve_revision(Framework.MEGATRON_LM, "main"),
    "nemo2": resolve_revision(Framework.MEGATRON_LM, "0.14"),
    "nemo1": resolve_revision(Framework.MEGATRON_LM, "0.11"),
}


def test_there_are_many_and_their_names_are_unique() -> None:
    assert len(RECIPES) == len(BY_NAME) >= 375
    assert {"deepseek_v3", "kimi_k2", "qwen3_235b_a22b", "gpt_oss_120b", "mixtral_8x7b"} <= {
        recipe.model for recipe in RECIPES
    }
    assert {recipe.framework for recipe in RECIPES} == set(REVISIONS)
    assert all(re.search(r"@[0-9a-f]{7,}|arXiv|@", recipe.source) for recipe in RECIPES)


@pytest.mark.parametrize("model", recipe_models())
def test_every_row_can_be_read_and_fills_its_gpus(model: str) -> None:
    for recipe in load_recipes(model):
        preset = preset_of(recipe)
        assert preset.layout.world_size == recipe.num_gpus, recipe.name
        assert recipe.runs_on(recipe.num_gpus), recipe.name
        assert recipe.shipped_recompute == preset.shipped, recipe.name
        assert parse_setting(preset.shipped), recipe.name


def leaves_something_out(recipe: Recipe) -> bool:
    """Whether the table lacks what makes the job legal: how layers are split unevenly, in one row
    a global batch that its 24 replicas can divide, in another that biases go uncut."""
    stages = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    chunks = prod(int(recipe.values.get(name, 1)) for name in stages)
    uneven = load_model(recipe.model).num_layers % chunks != 0
    said = SPLITS & set(recipe.values)
    return recipe.name in INCOMPLETE or (uneven and not said)


SPLITS = {
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
}
INCOMPLETE = {
    "launcher_mixtral_mixtral_8x22b",
    "gpt_oss_120b_sft_48gpu_h100_bf16_32k",
    # 16 chunks on 8 stages, without the VPP
    "deepseek_v3_pretrain_256gpu_gb200_fp8mx_partial_cg_dev",
    "deepseek_v3_pretrain_256gpu_gb300_fp8mx_partial_cg_dev",
}
# What Bridge's own check refuses of recipes that it ships (067f987): local graphs of layers. Those
# of whole layers hold experts of a fixed size (moe_expert_rank_capacity_factor), which no field of
# a job says.
REFUSED = {
    "gpt_oss_20b_pretrain_8gpu_b300_fp8mx",
    "gpt_oss_20b_pretrain_64gpu_b300_fp8mx",
    "gpt_oss_20b_pretrain_512gpu_gb300_fp8mx",
    "gpt_oss_20b_pretrain_512gpu_gb200_fp8mx",
}


@pytest.mark.parametrize("model", recipe_models())
def test_every_recipe_is_a_legal_job_with_a_legal_setting(model: str) -> None:
    for recipe in load_recipes(model):
        if leaves_something_out(recipe):
            with pytest.raises(UserError):
                job_of(preset_of(recipe))
            continue
        job, revision = job_of(preset_of(recipe)), REVISIONS[recipe.framework]
        assert job.num_microbatches >= 1, recipe.name
        rules = [one.rule for one in check(parse_setting(preset_of(recipe).shipped), job, revision)]
        assert rules == ["bridge_local_graphs"] * (recipe.name in REFUSED), recipe.name


def test_graphs_of_every_recipe_with_experts_name_their_modules() -> None:
    """Except those of a whole iteration and the four above; NeMo's releases read no list."""
    unnamed = [
        recipe.name
        for recipe in RECIPES
        if recipe.framework == "megatron_bridge"
        and load_model(recipe.model).num_moe_experts
        and recipe.values.get("cuda_graph_impl") in ("transformer_engine", "local")
        and not recipe.values.get("cuda_graph_modules")
    ]
    assert set(unnamed) == REFUSED


def cited(experiment: Experiment) -> Recipe | None:
    names = (word for word in re.findall(r"[\w.]+", experiment.source) if word in BY_NAME)
    return BY_NAME.get(next(names, ""))


@pytest.mark.parametrize("name", experiment_names())
def test_a_preset_file_agrees_with_the_recipe_that_it_cites(name: str) -> None:
    """Except CUDA graphs, which most files leave off, and the single-GPU cut of one of them."""
    experiment = load_experiment(name)
    recipe = cited(experiment)
    if recipe is None or "cut to one GPU" in experiment.source:
        assert experiment.shipped or "cut to one GPU" in experiment.source
        return
    published = preset_of(recipe)
    assert experiment.layout == published.layout
    assert experiment.shipped == published.shipped
    for field in ("seq_length", "micro_batch_size", "global_batch_size", "precision"):
        assert getattr(experiment.config, field) == getattr(published.config, field), field
    graphs = experiment.config.cuda_graph_impl
    assert graphs in (CudaGraphImpl.NONE, published.config.cuda_graph_impl)
    assert experiment.config.fp8_param_gather is published.config.fp8_param_gather


def test_the_exact_number_comes_first_then_the_nearest_that_divides() -> None:
    wanted = Wanted(model="llama3.1_405b", num_gpus=1024, gpu_type="H100")
    exact = find_experiment(wanted)
    assert exact.gpus == "1024xH100"
    twice = replace(wanted, num_gpus=2048)
    assert find_experiment(twice) is None
    near = nearest_experiment(twice)
    assert near.layout.data_parallel_size == 2 * exact.layout.data_parallel_size
    assert near.config.global_batch_size == 2 * exact.config.global_batch_size
    assert nearest_experiment(replace(wanted, num_gpus=17)) is None
    assert nearest_experiment(replace(wanted, gpu_type="A100-40GB")) is None


def test_recipes_whose_split_no_table_has_are_split_evenly() -> None:
    completed = [r for r in RECIPES if leaves_something_out(r) and r.name not in INCOMPLETE]
    assert len(completed) >= 34
    for recipe in completed:
        preset, revision = with_split(preset_of(recipe)), REVISIONS[recipe.framework]
        assert not preset.splits_as_published
        assert not check(parse_setting(preset.shipped), job_of(preset), revision)


def test_a_recipe_is_used_as_soon_as_its_split_is_known() -> None:
    found = find_experiment(Wanted(model="glm4.5_air", num_gpus=32, gpu_type="H100"), complete=True)
    assert found.layout.pipeline_model_parallel_layout == "Et*12|(t*12|)*2t*10mL"
    assert not found.splits_as_published
    wanted = Wanted(model="deepseek_v3", num_gpus=1024, gpu_type="H100")
    assert find_experiment(wanted, complete=True).splits_as_published


def test_recipes_for_long_context_wait_until_they_are_asked_for() -> None:
    wanted = Wanted(model="llama3_8b", num_gpus=16, gpu_type="H100")
    assert find_experiment(replace(wanted, seq_length=16384)).config.seq_length == 16384
    assert find_experiment(wanted) is None


TABLE = """\
name,gpus,precision,seq_length,micro_batch_size,global_batch_size,pipeline_model_parallel_size
one,8xH100,bf16,4096,1,16,2
"""


def own(folder: Path, text: str) -> Path:
    (folder / ConfigGroup.RECIPE).mkdir()
    (folder / ConfigGroup.RECIPE / "llama3_8b.csv").write_text(text)
    return folder


def test_a_table_of_the_user_s_own_comes_first(tmp_path: Path) -> None:
    folder = own(tmp_path, TABLE)
    (recipe,) = load_recipes("llama3_8b", folder)
    preset = preset_of(recipe, 16, "H100")
    assert preset.layout == ParallelLayout(pipeline_model_parallel_size=2, data_parallel_size=8)
    assert preset.config.global_batch_size == 32
    assert preset.shipped == ""
    assert "llama3_8b" in recipe_models(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TABLE.replace("pipeline_", "pipelin_"), "pipelin_model_parallel_size = .column.: is not"),
        (TABLE.replace("bf16", ""), "one = precision: is missing"),
        (TABLE.replace("8xH100", "H100"), "is not COUNTxTYPE"),
        (TABLE.replace(",1,16,2", ",one,16,2"), "recipe one: micro_batch_size = one: is not an"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    folder = own(tmp_path, text)
    with pytest.raises(UserError, match=says):
        preset_of(load_recipes("llama3_8b", folder)[0])


def test_a_model_without_a_table_has_no_recipes() -> None:
    assert load_recipes("no_such_model") == ()
    assert load_recipes("../experiment/x") == ()
    assert (packaged_configs() / ConfigGroup.RECIPE).is_dir()
