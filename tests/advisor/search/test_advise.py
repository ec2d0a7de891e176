"""From a request to the whole answer: presets, overrides, searches, remedies."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import LIKELY
from advisor.job.layout import ParallelLayout
from advisor.request.recipe_choice import Wanted, find_experiment
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.near_changes import neighbours
from tests.advisor.jobs import parallel
from tests.advisor.refusals import refused
from tests.advisor.tables import tables
from tests.harness.simulated import SimulatedDevice

TABLES = tables(__file__)


def ask(model: str = "llama3_70b", gpus: str = "32xH100", **fields: object) -> Answer:
    """The answer for the job as typed, unless `fields` have quick=False."""
    return advise(Request(model=model, gpus=gpus, **{"quick": True, **fields}))


def specs(advice: Answer) -> list[str]:
    return [candidate.evaluation.setting.spec for candidate in advice.candidates]


def test_the_main_job_starts_from_its_preset_and_needs_neither_recompute_nor_a_remedy() -> None:
    advice = ask()
    layout = advice.job.layout
    assert "preset llama3_70b_32xh100" in advice.assumptions
    assert layout.tensor_model_parallel_size == 4
    assert layout.pipeline_model_parallel_size == 4
    assert layout.virtual_pipeline_model_parallel_size == 5
    assert layout.data_parallel_size == 2
    assert advice.job.config.global_batch_size == 32
    assert advice.evaluated >= len(advice.candidates)
    assert specs(advice)[0] == "none"
    assert not advice.remedies
    assert advice.search is None


def test_of_context_parallelism_is_said_how_likely_it_fits_until_runs_say_more(tmp_path) -> None:
    said = "context parallelism: at most 94 % likely to fit, as one run reserved 8 % more"
    cut = {"model": "llama3_8b", "gpus": "8xH100", "context_parallel_size": 2}
    advice = ask(**cut)
    SimulatedDevice().run([row.evaluation for row in advice.candidates[:2]], tmp_path)
    learned = ask(**cut, calibration=(tmp_path,))
    likely = [one.candidates[2].evaluation.fit_probability for one in (advice, learned)]
    assert likely[0] == 0.949 < 0.99 < likely[1]
    assert [said in one.assumptions for one in (advice, ask(), learned)] == [True, False, False]


def test_a_tight_budget_asks_for_recompute() -> None:
    best = ask(memory_budget="62GiB").candidates[0].evaluation
    assert best.fits
    assert best.recompute_overhead > 0


def test_nothing_fits_and_remedies_need_less() -> None:
    advice = ask(gpus="1xH100")
    assert not advice.fits
    assert advice.remedies
    assert all(remedy.effect_bytes < 0 for remedy in advice.remedies)


def test_a_label_that_buys_nothing_is_said_to_and_a_remark_says_by_how_much() -> None:
    notes = {c.evaluation.setting.spec: c.note for c in ask().candidates}
    assert notes["selective:core_attn"].startswith("saves nothing")
    assert notes["selective:mlp"] == ""
    remarks = [note.partition(";")[0] for note in notes.values() if note.startswith("saves")]
    assert all("above that of none" in remark for remark in remarks)


def test_an_unset_setting_is_shown_as_promoted() -> None:
    advice = ask(recompute=("selective", "none"))
    promoted = next(c for c in advice.candidates if c.evaluation.setting.spec == "selective")
    assert "core_attn" in promoted.note
    assert promoted.evaluation.recompute_overhead > 0


def test_asked_settings_alone_are_evaluated_and_refusals_listed() -> None:
    advice = ask(recompute=("full:uniform:1", "none", "selective:mla_up_proj"))
    assert sorted(specs(advice)) == ["full:uniform:1", "none"]
    assert [rejection.setting.spec for rejection in advice.rejected] == ["selective:mla_up_proj"]


def test_flags_reshape_the_preset_and_data_parallelism_follows() -> None:
    layout = ask(tensor_model_parallel_size=8).job.layout
    assert (layout.tensor_model_parallel_size, layout.data_parallel_size) == (8, 1)
    assert layout.sequence_parallel
    layout = ask(pipeline_model_parallel_size=8).job.layout
    assert layout.virtual_pipeline_model_parallel_size == 1


def test_key_value_reaches_model_layout_and_job() -> None:
    advice = ask(
        overrides=(
            "model.num_layers=40",
            "layout.use_distributed_optimizer=false",
            "job.main_grads_dtype=fp32",
            "job.memory_budget_bytes=70GiB",
        )
    )
    assert advice.job.model.num_layers == 40
    assert not advice.job.layout.use_distributed_optimizer
    assert advice.job.config.main_grads_dtype.itemsize == 4
    assert advice.job.config.memory_budget_bytes == 70 * 2**30


def test_without_a_preset_the_layout_is_chosen() -> None:
    advice = ask(model="megatron_ci_gpt3_7b", gpus="4xH100")
    assert any("legal layouts" in text for text in advice.assumptions)
    assert advice.job.layout.world_size == 4
    assert advice.evaluated > len(advice.candidates)


def test_a_recipe_for_another_number_of_gpus_lends_its_layout_and_scales_its_batch() -> None:
    advice = ask(gpus="128xH100")
    published = find_experiment(Wanted(model="llama3_70b", num_gpus=64, gpu_type="H100"))
    layout, config = advice.job.layout, advice.job.config
    replicas = 2 * published.layout.data_parallel_size
    assert layout == replace(published.layout, data_parallel_size=replicas)
    assert config.global_batch_size == 2 * published.config.global_batch_size
    assert "preset llama3_70b_pretrain_64gpu_h100_bf16" in advice.assumptions
    assert f"the preset's layout and batch per replica; DP {replicas}" in advice.assumptions


@pytest.mark.slow
def test_a_borrowed_layout_that_is_too_large_gives_way_to_a_search() -> None:
    advice = ask(gpus="16xH100")
    assert advice.searched
    assert advice.assumptions[-1] == "layout: best layout found"
    assert "the preset's global batch, scaled with the number of GPUs" in advice.assumptions


def test_a_search_assumes_no_layout_nor_micro_batch() -> None:
    borrowed = resolve(Request(model="llama3_70b", gpus="128xH100", global_batch_size=256))
    assert "the preset's layout; DP 4" in borrowed.assumptions
    assert not any(text.startswith("its ") for text in borrowed.of_search)
    plain = resolve(Request(model="llama3_70b", gpus="16xA100", framework="deepspeed"))
    assert set(plain.assumptions) - set(plain.of_search) == {"micro batch 1"}


def test_what_is_given_stays_and_the_nearest_recipe_says_the_rest() -> None:
    published = find_experiment(Wanted(model="llama3_70b", num_gpus=64, gpu_type="H100"))
    advice = ask(gpus="128xH100", tensor_model_parallel_size=8)
    assert advice.job.layout == replace(published.layout, **parallel(tp=8, dp=2))
    said = "the preset's layout and batch per replica, except for values given; DP 2"
    assert said in advice.assumptions


def test_degrees_that_nobody_says_are_searched_and_said() -> None:
    advice = ask("mixtral_8x7b", "16xH200", tensor_model_parallel_size=2)
    layout = advice.job.layout
    assert advice.fits
    assert layout.tensor_model_parallel_size == 2
    assert layout.expert_model_parallel_size > 1
    (said,) = (text for text in advice.assumptions if "legal layouts" in text)
    assert f"EP {layout.expert_model_parallel_size} chosen" in said
    assert sum(text.startswith("micro batch") for text in advice.assumptions) == 1


def test_a_layout_without_an_open_degree_is_taken_as_it_is() -> None:
    advice = ask("llama3_8b", "4xH200", **parallel(tp=2, pp=2, vpp=1))
    assert advice.evaluated >= len(advice.candidates)
    assert not any("chosen" in text for text in advice.assumptions)


def test_another_depth_than_the_recipe_s_splits_the_layers_anew() -> None:
    wanted = Request(model="kimi_k2", gpus="512xH100", pipeline_model_parallel_size=8)
    layout = resolve(wanted).layout
    assert layout.pipeline_model_parallel_layout == "Et*8|(t*8|)*6t*5L"
    before = replace(
        wanted,
        pipeline_model_parallel_size=None,
        framework_version="0.12",
        overrides=("job.optimizer=adam",),
    )
    old = resolve(replace(before, framework="megatron_lm")).layout
    assert not old.pipeline_model_parallel_layout
    assert old.num_layers_in_last_pipeline_stage == 1


def test_where_nothing_fits_the_remedies_name_the_layout_and_the_experts_parallelism() -> None:
    advice = ask(
        "mixtral_8x7b",
        "16xH100",
        **parallel(tp=1, pp=1, ep=1),
        recompute=("none", "full:uniform:1"),
        quick=False,
    )
    assert not advice.fits
    first, *others = (remedy.change for remedy in advice.remedies)
    assert "best combination" in advice.remedies[0].why
    assert any(word.startswith("EP 8 instead of 1") for word in others)
    words = first.replace(",", "").lower().split()
    named = dict(zip(words[::2], words[1::2], strict=False))
    degrees = {degree: int(named.get(degree, 1)) for degree in ("tp", "pp", "vpp", "ep")} | {
        "etp": 1
    }
    recompute = ("none", "full:uniform:1")
    assert ask("mixtral_8x7b", "16xH100", recompute=recompute, **parallel(**degrees)).fits


@pytest.mark.slow
def test_where_no_layout_fits_options_are_chosen_as_well_and_named() -> None:
    advice = ask(
        "kimi_k2",
        "256xH200",
        overrides=("job.optimizer=adam",),
        memory_budget="84GiB",
        expert_model_parallel_size=64,
        recompute=("full:uniform:1",),
    )
    assert advice.fits
    assert advice.job.layout.expert_model_parallel_size == 64
    assert any(text.endswith("(as asked, nothing fits)") for text in advice.assumptions)


def test_remedies_split_layers_that_their_stages_do_not_divide() -> None:
    """27 layers on 2 stages, by a text that cannot be combined with 4 stages or with VPP 2."""
    advice = ask(
        "moonlight_16b_a3b",
        "8xH200",
        **parallel(tp=1, pp=2, vpp=1, ep=2),
        micro_batch_size=1,
        memory_budget="20GiB",
        recompute=("full:uniform:1",),
    )
    assert advice.job.layout.pipeline_model_parallel_layout == "Et*14|t*13L"
    assert any(remedy.change.startswith("PP 4 and DP 2") for remedy in advice.remedies)


def test_the_preset_s_own_setting_is_evaluated_and_marked() -> None:
    advice = ask(model="llama3_70b", gpus="64xH100")
    assert [c.evaluation.setting.spec for c in advice.candidates if c.preset] == ["none"]
    asked = ask(recompute=("full:uniform:1", "none"))
    assert [c.preset for c in asked.candidates] == [True, False]


def test_an_offload_label_that_the_release_lacks_names_those_that_have_it() -> None:
    with pytest.raises(UserError, match=r"fused_group_mlp needs --framework-version 0.19 or main"):
        ask(recompute=("none+offload=fused_group_mlp",), framework_version="0.18")
    with pytest.raises(UserError, match=r"gdn_norm_out needs --framework-version 0.19 or main"):
        ask(recompute=("selective:gdn_norm_out",), framework_version="0.18")


@pytest.mark.slow
def test_a_model_that_the_release_refuses_in_every_layout_is_reported_why() -> None:
    for pp in (None, 4):
        with pytest.raises(UserError, match=r"--framework = nemo: .* has no attention_output_gate"):
            ask("qwen3_next_80b_a3b", "64xH100", framework="nemo", pipeline_model_parallel_size=pp)


def test_layout_search_ranks_layouts_and_keeps_what_was_fixed() -> None:
    advice = ask(
        model="llama3_8b", gpus="8xH100", search=SearchScope.LAYOUT, tensor_model_parallel_size=2
    )
    layouts: set[ParallelLayout] = {c.evaluation.job.layout for c in advice.candidates}
    assert len(layouts) > 1
    assert {layout.tensor_model_parallel_size for layout in layouts} == {2}
    assert advice.candidates[0].evaluation.fits


@pytest.mark.parametrize(
    ("fields", "words"),
    TABLES["test_a_wrong_request_is_one_line_that_names_what_is_right"],
)
def test_a_wrong_request_is_one_line_that_names_what_is_right(fields, words) -> None:
    request = {"model": "llama3_70b", "gpus": "32xH100", **fields}
    with refused(*words):
        advise(Request(**request))


def test_learned_positions_bound_the_sequence() -> None:
    with pytest.raises(UserError, match="max_position_embeddings"):
        resolve(Request(model="gpt3_175b", gpus="64xA100", seq_length=4096))


def test_default_batch_is_a_multiple_of_the_gpus() -> None:
    resolution = resolve(Request(model="llama3_8b", gpus="12xL40S"))
    assert resolution.config.global_batch_size % 12 == 0
    assert resolution.layout is None


@pytest.mark.parametrize(
    ("model", "gpus", "framework"),
    [
        ("llama3_8b", "8xH100", Framework.MEGATRON_LM),
        ("gemma2_9b", "8xH100", Framework.MEGATRON_BRIDGE),
        ("gemma3_27b", "32xB200", Framework.MEGATRON_BRIDGE),
        ("llama4_scout_17b_16e", "256xH100", Framework.NEMO),  # whose recipe it is
        ("olmo2_32b", "64xH200", Framework.HUGGINGFACE),
    ],
)
def test_the_framework_is_one_that_builds_the_model(
    model: str, gpus: str, framework: Framework
) -> None:
    resolution = resolve(Request(model=model, gpus=gpus))
    assert resolution.config.framework is framework
    named = f"framework {framework}" in resolution.assumptions
    assert named is (framework != Framework.MEGATRON_LM)
    job = resolution.job(
        resolution.layout or ParallelLayout(data_parallel_size=parse_gpus(gpus)[0])
    )
    builds = parts_of(Framework.MEGATRON_LM).jobs.builds(job.model)
    assert builds is (framework == Framework.MEGATRON_LM)


def test_keys_that_need_each_other_may_stand_in_any_order() -> None:
    pair = ("job.optimizer_cpu_offload=true", "job.use_precision_aware_optimizer=true")
    first, second = ask(overrides=pair).job.config, ask(overrides=pair[::-1]).job.config
    assert first == second
    assert first.optimizer_cpu_offload
    budget = ask(overrides=("job.memory_budget_bytes=60GiB", *pair)).job.config.memory_budget_bytes
    assert budget == 60 * 2**30


@pytest.mark.slow
def test_under_bridge_delayed_restores_the_remainders_that_the_optimizer_lacks() -> None:
    """Its step, which no recompute lowers, is the peak of the recipe on 8 GPUs."""
    moonlight = {"model": "moonlight_16b_a3b", "gpus": "8xH100", "memory_budget": "38GiB"}
    advice = ask(framework="megatron_bridge", **moonlight)
    first_row = advice.candidates[0].evaluation
    assert first_row.stages[0].peak_phase.startswith("optimizer step")
    delayed = advice.remedies[0]
    assert delayed.change.startswith("mixed_precision.fp8_recipe=delayed")
    assert -4.5 < delayed.effect_bytes / 2**30 < -3.0
    restored = ask(framework="megatron_bridge", overrides=("job.fp8_recipe=delayed",), **moonlight)
    assert restored.fits
    assert all("fp8_recipe" not in remedy.change for remedy in restored.remedies)
    assert ask(framework="megatron_lm", **moonlight).fits


@pytest.mark.parametrize(
    ("change", "job"),
    TABLES["test_options_are_changes_that_can_be_typed"],
)
def test_options_are_changes_that_can_be_typed(change: str, job: dict) -> None:
    """Done as it says, a change is legal, and no change any more."""
    (found,) = [one for one in neighbours(ask(**job).job) if change in one.words]
    changed = ask(**{**job, "overrides": tuple(found.words.split())})
    assert changed.candidates
    assert not [one for one in neighbours(changed.job) if change in one.words]


@pytest.mark.slow
def test_where_no_change_alone_fits_the_best_of_all_layouts_is_the_first_remedy() -> None:
    budget = {"tensor_model_parallel_size": 1, "memory_budget": "16GiB"}
    job = {"pipeline_model_parallel_size": 1, **budget}
    advice = ask(model="llama2_7b", gpus="8xA100", quick=False, **job)
    first, *others = advice.remedies
    assert first.why.startswith("no single change is enough")
    assert first.fit_probability >= LIKELY
    assert all(one.fit_probability < LIKELY for one in others)


@pytest.mark.parametrize(("version", "beside"), [("0.17", False), ("0.19", True)])
def test_shared_experts_run_with_deepep_where_the_release_does_it(version, beside) -> None:
    advice = ask(
        model="deepseek_v3", gpus="1024xH100", framework="megatron_lm", framework_version=version
    )
    (found,) = [one for one in neighbours(advice.job) if "dispatcher_type=flex" in one.words]
    assert ("moe_shared_expert_overlap=false" not in found.words) == beside


def test_degrees_apart_every_remedy_of_a_switch_is_typed_as_it_stands() -> None:
    """KEY=VALUE of sequence parallelism, the sharded optimizer and the mask."""
    off = ("layout.sequence_parallel=false", "layout.use_distributed_optimizer=false")
    more = {"tensor_model_parallel_size": 2, "memory_budget": "30GiB"}
    advice = ask(model="llama3_8b", gpus="8xH100", overrides=off, **more)
    words = {one.change.partition(" with ")[0] for one in advice.remedies}
    assert words & {"layout.sequence_parallel=true", "layout.use_distributed_optimizer=true"}


@pytest.mark.parametrize(
    ("model", "fields", "why"),
    TABLES["test_a_search_whose_settings_no_layout_takes_says_why"],
)
def test_a_search_whose_settings_no_layout_takes_says_why(model, fields, why) -> None:
    for search in (None, SearchScope.LAYOUT):
        with pytest.raises(UserError, match=why):
            ask(model, "8xA100", tensor_model_parallel_size=8, search=search, **fields)
