import pytest

from advisor.frameworks.megatron.candidates import (
    acting_labels,
    enumerate_settings,
    label_sets,
    rejected_settings,
    settings_in_vain,
    uniform_numbers,
)
from advisor.frameworks.megatron.plan import chunk_plan, has_effect
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check, without_effect
from advisor.frameworks.megatron.setting import NONE, parse_setting
from advisor.frameworks.names import Framework
from advisor.models.layer_kind import DENSE
from advisor.request.recipes import load_recipes, recipe_models

LM = Framework.MEGATRON_LM
V16, V19 = resolve_revision(LM, "0.16"), resolve_revision(LM, "0.19")


def specs(job, revision=V19) -> list[str]:
    return [setting.spec for setting in enumerate_settings(job, revision)]


def test_the_candidates_of_six_layers_to_a_chunk(make_job) -> None:
    job = make_job(pipeline_model_parallel_size=4)
    modules = [f"selective:{labels}" for labels in ("core_attn", "mlp", "core_attn,mlp")]
    uniform = [f"full:uniform:{n}" for n in (1, 2, 3, 6)]
    assert specs(job) == ["none", *modules, *uniform, *(f"full:block:{n}" for n in range(1, 6))]


def test_layernorm_is_a_candidate_on_the_local_spec_only(make_job) -> None:
    local = [s for s in specs(make_job(transformer_impl="local")) if "layernorm" in s]
    others = ("", "core_attn,", "mlp,", "core_attn,mlp,")
    assert local == [f"selective:{labels}layernorm" for labels in others]
    assert not [s for s in specs(make_job()) if "layernorm" in s]


@pytest.mark.parametrize(("sequence_parallel", "variants"), [(False, True), (True, False)])
def test_distributed_variants_need_tp_without_sp(sequence_parallel, variants, make_job) -> None:
    job = make_job(tensor_model_parallel_size=2, sequence_parallel=sequence_parallel)
    shared = [s for s in specs(job) if "distribute" in s]
    plain = [s for s in specs(job) if s.startswith("full") and "distribute" not in s]
    assert len(shared) == (len(plain) if variants else 0)


def test_uniform_numbers_give_every_count_of_checkpoints_once() -> None:
    for layers in range(1, 40):
        numbers = uniform_numbers(layers, must_divide=False)
        counts = [-(-layers // n) for n in numbers]
        reachable = {-(-layers // n) for n in range(1, layers + 1)}
        assert len(set(counts)) == len(counts)
        assert set(counts) == reachable
        for n, count in zip(numbers, counts, strict=True):
            assert n == 1 or -(-layers // (n - 1)) > count, "a smaller N does the same"


def test_up_to_0_16_uniform_numbers_divide_every_chunk_of_an_uneven_pipeline(make_job) -> None:
    split = {"pipeline_model_parallel_layout": "Et*14|t*10L"}
    job = make_job(pipeline_model_parallel_size=2, **split)
    uniform = [spec for spec in specs(job, V16) if "uniform" in spec]
    assert uniform == ["full:uniform:1", "full:uniform:2"]
    assert "full:uniform:14" in specs(job)


def test_up_to_0_16_uniform_numbers_divide_the_chunk() -> None:
    assert uniform_numbers(20, must_divide=True) == (1, 2, 4, 5, 10, 20)
    assert uniform_numbers(20, must_divide=False) == (1, 2, 3, 4, 5, 7, 10, 20)


def test_an_old_release_has_fewer_uniform_candidates(make_job) -> None:
    job = make_job(num_layers=20)
    assert set(specs(job)) - set(specs(job, V16)) == {"full:uniform:3", "full:uniform:7"}


@pytest.mark.parametrize("impl", ["transformer_engine", "local"])
@pytest.mark.parametrize("precision", ["bf16", "fp8_delayed"])
@pytest.mark.parametrize("graphs", ["none", "transformer_engine", "full_iteration"])
def test_every_candidate_is_legal_and_acts(impl, precision, graphs, make_job) -> None:
    job = make_job(
        transformer_impl=impl,
        precision=precision,
        cuda_graph_impl=graphs,
        tensor_model_parallel_size=2,
    )
    candidates = enumerate_settings(job, V19)
    assert NONE in candidates
    assert len(set(candidates)) == len(candidates)
    for setting in candidates:
        assert check(setting, job, V19) == ()
        assert without_effect(setting, job, V19) == ()
        assert setting == NONE or has_effect(setting, job.model)


def test_candidates_differ_in_what_they_keep(make_job) -> None:
    job = make_job()
    plans = [
        chunk_plan(setting, job.model, (DENSE,) * 24, False)
        for setting in enumerate_settings(job, V19)
    ]
    assert len(set(plans)) == len(plans)


def test_te_graphs_leave_no_full_recompute(make_job) -> None:
    job = make_job(cuda_graph_impl="transformer_engine")
    assert not [s for s in specs(job) if s.startswith("full")]
    assert [s for s in specs(make_job(cuda_graph_impl="full_iteration")) if s.startswith("full")]


def test_every_other_setting_is_rejected_with_a_reason(make_job) -> None:
    job = make_job(tensor_model_parallel_size=2, sequence_parallel=True)
    rejected = rejected_settings(job, V19)
    candidates = enumerate_settings(job, V19)
    assert {r.setting for r in rejected} == set(settings_in_vain(job)) - set(candidates)
    assert len({r.setting for r in rejected}) == len(rejected)
    by_spec = {r.setting.spec: r.rule for r in rejected}
    assert by_spec["selective:layernorm"] == "layernorm_on_te"
    assert by_spec["selective:moe"] == "moe_labels_on_dense"
    assert by_spec["selective:mla_up_proj"] == "mla_up_proj_needs_mla"
    assert by_spec["selective:mhc"] == "recompute_modules"
    assert by_spec["full:uniform:1+distribute_saved_activations"] == (
        "distribute_with_sequence_parallel"
    )
    assert by_spec["selective:mlp+distribute_saved_activations"] == (
        "distribute_with_sequence_parallel"
    )


def test_rejections_follow_the_job(make_job) -> None:
    graphed = {
        r.setting.spec: r.rule
        for r in rejected_settings(make_job(cuda_graph_impl="transformer_engine"), V19)
    }
    assert graphed["full:uniform:1"] == "cuda_graph_full_recompute"
    old = {r.setting.spec: r.rule for r in rejected_settings(make_job(num_layers=20), V16)}
    assert old["full:uniform:3"] == "uniform_must_divide"
    local = make_job(transformer_impl="local", precision="fp8_delayed")
    fp8 = {r.setting.spec: r.rule for r in rejected_settings(local, V19)}
    assert fp8["selective:layernorm"] == "fp8_layernorm_recompute"


def test_of_many_labels_the_published_sets_come_before_invented_ones() -> None:
    labels = ("core_attn", "mlp", "layernorm", "mla_up_proj", "moe_act", "shared_experts", "moe")
    sets = label_sets(labels)
    assert sets[: len(labels)] == tuple((label,) for label in labels)
    assert len(sets) == len(set(map(frozenset, sets))) <= 25
    assert {("mlp", "mla_up_proj"), ("layernorm", "moe_act", "moe")} <= set(sets)
    assert all(set(names) <= set(labels) for names in sets)
    assert ("mlp", "layernorm", "mla_up_proj", "moe_act", "shared_experts") in sets


def test_every_set_of_labels_that_a_recipe_ships_is_tried() -> None:
    """Except those that repeat what another label of the set covers already."""
    shipped = {
        frozenset(parse_setting(recipe.shipped_recompute).effective_modules)
        for model in recipe_models()
        for recipe in load_recipes(model)
    }
    labels = ("core_attn", "mlp", "layernorm", "mla_up_proj", "moe_act", "shared_experts", "moe")
    tried = set(map(frozenset, label_sets(labels)))
    redundant = {s for s in shipped if {"moe", "moe_act"} <= s or {"core_attn", "moe"} <= s}
    assert shipped - tried - redundant <= {frozenset()}


@pytest.mark.parametrize("model", ["transformer_engine", "local"])
def test_the_labels_that_act_are_those_of_the_layers(model: str, make_job) -> None:
    labels = acting_labels(make_job(transformer_impl=model).model)
    assert labels == ("core_attn", "mlp", *(["layernorm"] if model == "local" else []))
