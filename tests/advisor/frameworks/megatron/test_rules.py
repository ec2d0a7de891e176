"""What the rules say beyond the exceptions of TransformerConfig, which test_probes.py compares."""

import importlib
import pkgutil
from typing import Any

import pytest

from advisor.base.rule import Verdict, rows_of
from advisor.frameworks.megatron import rules
from advisor.frameworks.megatron.lint.read_rules import DEPRECATED, READ_RULES
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_CORE, Revision, resolve_revision
from advisor.frameworks.megatron.rules import written_jobs
from advisor.frameworks.megatron.rules.cuda_graphs import capturable
from advisor.frameworks.megatron.rules.engine import (
    RULES,
    check,
    find,
    notes,
    remarks,
    without_effect,
)
from advisor.frameworks.megatron.rules.examples import settings
from advisor.frameworks.megatron.rules.hardware import HARDWARE_RULES
from advisor.frameworks.megatron.rules.stated import Authority
from advisor.frameworks.megatron.setting import NONE, parse_setting
from advisor.frameworks.names import Framework
from advisor.job.pipeline_split import most_layers_of_chunk
from scripts.write_docs.megatron_rules_page import PAGE, example_of, mended, rules_page
from tests.advisor.tables import tables

TABLES = tables(__file__)

LM, BRIDGE = Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE


def lm(version: str = "") -> Revision:
    return resolve_revision(LM, version)


def bridge(version: str = "") -> Revision:
    return resolve_revision(BRIDGE, version)


def rules_of(revision: Revision, **raw: Any) -> dict[str, Verdict]:
    return {finding.rule: finding.verdict for finding in find(RawSettings(**raw), revision)}


def rejected_by(spec: str, job: Any, revision: Revision) -> list[str]:
    return [rejection.rule for rejection in check(parse_setting(spec), job, revision)]


SELECTIVE = {"recompute_granularity": "selective"}
LEGAL = (
    *("none", "selective", "selective:core_attn", "selective:mlp", "selective:core_attn,mlp"),
    *("selective:layernorm", "full:uniform:1", "full:uniform:24", "full:block:1", "full:block:24"),
)


@pytest.mark.parametrize("revision", MEGATRON_CORE, ids=lambda r: r.core)
@pytest.mark.parametrize("spec", LEGAL)
def test_ordinary_settings_are_legal_in_every_release(spec, revision, make_job) -> None:
    unlisted = parse_setting(spec).modules not in (None, ("core_attn",))
    expected = ["unknown_field"] if revision.core == "0.11" and unlisted else []
    assert rejected_by(spec, make_job(), revision) == expected


def test_no_table_takes_the_id_of_another_s_rule() -> None:
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
        if not module.name.endswith(".engine")
    ]
    tables = [
        value for one in modules for name, value in vars(one).items() if name.endswith("RULES")
    ]
    ids = [name for table in tables for name in table]
    assert len(ids) > 100
    assert len(ids) == len(set(ids))
    assert set(ids) == {*RULES, *HARDWARE_RULES}
    rows = [name for table in rows_of("megatron.json").values() for name in table]
    assert {*rows, *written_jobs.RULES} == {*ids, *READ_RULES, *DEPRECATED}


def test_every_rule_says_what_it_is_and_none_fires_on_the_defaults() -> None:
    for name, rule in RULES.items():
        assert rule.says.endswith("."), name
        assert "{" not in rule.says
    for revision in (*MEGATRON_CORE, bridge()):
        assert find(RawSettings(), revision) == ()


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fires_on_its_example_and_not_on_what_mends_it(name: str) -> None:
    example = example_of(name)
    before = find(settings(example.before), example.breaks_in)
    after = find(settings(example.after), example.mended_in)
    assert name in {found.rule for found in before}
    assert name not in {found.rule for found in after}
    if example.mended_in is example.breaks_in:
        illegal = {found.rule for found in before if found.verdict.illegal}
        assert {found.rule for found in after if found.verdict.illegal} <= illegal


def test_the_page_shows_every_rule_as_it_is() -> None:
    assert PAGE.read_text(encoding="utf-8") == rules_page()


@pytest.mark.parametrize(
    ("raw", "version", "rules"), TABLES["test_precision_rules_of_newer_releases"]
)
def test_precision_rules_of_newer_releases(raw, version, rules) -> None:
    assert list(rules_of(lm(version), **raw)) == rules


def test_gdp_labels_on_a_model_without_that_attention() -> None:
    raw = {**SELECTIVE, "recompute_modules": ("gdp_in_proj", "mlp")}
    assert rules_of(lm("main"), **raw) == {"gdp_labels_without_gdp": Verdict.NO_EFFECT}
    assert "recompute_modules" in rules_of(lm("0.19"), **raw)


@pytest.mark.parametrize(
    ("revision", "rule"), [(lm(), "offload_environment"), (bridge(), "bridge_offload_environment")]
)
def test_each_launcher_has_its_own_word_on_the_offload_environment(revision, rule) -> None:
    raw = {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn",)}
    assert rules_of(revision, **raw) == {rule: Verdict.NOTE}


# Uniform and block


@pytest.mark.parametrize(("version", "breaks"), [("0.15", True), ("0.16", True), ("0.17", False)])
def test_uniform_must_divide_the_chunk_up_to_0_16(version, breaks, make_job) -> None:
    job = make_job(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert most_layers_of_chunk(job.model, job.layout) == 6
    expected = ["uniform_must_divide"] if breaks else []
    assert rejected_by("full:uniform:4", job, lm(version)) == expected
    assert rejected_by("full:uniform:3", job, lm(version)) == []


def test_the_reason_has_the_values_and_the_fix_the_nearest_legal_ones(make_job) -> None:
    (rejection,) = check(parse_setting("full:uniform:7"), make_job(), lm("0.16"))
    assert "7 layers does not divide model chunks of 24" in rejection.reason
    assert rejection.reason.endswith("(crashes)")
    assert "6 or 8" in rejection.fix


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"transformer_impl": "local", "add_bias_linear": True}, ["mlp_recompute_with_bias"]),
        ({"transformer_impl": "local", "add_bias_linear": False}, []),
        ({"transformer_impl": "transformer_engine", "add_bias_linear": True}, []),
    ],
)
def test_mlp_recompute_with_a_bias_hangs_on_local_layers(changes, refused, make_job) -> None:
    job = make_job(**changes)
    assert rejected_by("selective:mlp", job, lm()) == refused
    assert rejected_by("selective:core_attn,mlp", job, lm()) == refused
    assert rejected_by("selective:core_attn", job, lm()) == []
    assert rejected_by("full:uniform:1", job, lm()) == []


def test_mlp_recompute_with_a_bias_is_noted_on_transformer_engine(make_job) -> None:
    setting = parse_setting("selective:mlp")
    said = notes(setting, make_job(add_bias_linear=True), lm())
    assert any("not tried with Transformer Engine" in note for note in said)
    assert not any("never ends" in note for note in notes(setting, make_job(), lm()))


def test_an_unknown_bias_or_a_mixture_of_experts_says_nothing() -> None:
    raw = {**SELECTIVE, "recompute_modules": ("mlp",), "transformer_impl": "local"}
    biased = {**raw, "add_bias_linear": True}
    assert "mlp_recompute_with_bias" not in rules_of(lm(), **raw)
    assert "mlp_recompute_with_bias" not in rules_of(lm(), **biased, num_moe_experts=8)
    assert rules_of(lm(), **biased) == {"mlp_recompute_with_bias": Verdict.HANGS}


@pytest.mark.parametrize(
    ("spec", "plain", "changes", "words"), TABLES["test_what_megatron_makes_of_it_is_noted"]
)
def test_what_megatron_makes_of_it_is_noted(spec, plain, changes, words, make_job) -> None:
    job = make_job(**changes)
    assert notes(parse_setting(spec), job, lm("0.16")) == (words,)
    assert notes(parse_setting(plain), job, lm()) == ()


# Labels that act on nothing, or buy nothing


def test_layernorm_does_nothing_on_te_and_acts_on_the_local_spec(make_job) -> None:
    setting = parse_setting("selective:layernorm")
    te, local = make_job(), make_job(transformer_impl="local")
    assert [r.rule for r in without_effect(setting, te, lm())] == ["layernorm_on_te"]
    assert without_effect(setting, local, lm()) == ()
    assert "fused into the linear layers" in notes(setting, te, lm())[0]


def test_layernorm_on_the_local_spec_compiles_an_extension_from_0_17_on(make_job) -> None:
    setting, local = parse_setting("selective:layernorm"), make_job(transformer_impl="local")
    assert notes(setting, local, lm("0.16")) == ()
    assert "g++ and ninja" in notes(setting, local, lm("0.17"))[0]


@pytest.mark.parametrize(("backend", "says"), [("flash", 1), ("fused", 1), ("unfused", 0)])
def test_core_attn_buys_nothing_where_no_scores_are_kept(backend, says, make_job) -> None:
    job = make_job(attention_backend=backend)
    found = notes(parse_setting("selective:core_attn"), job, lm())
    assert len(found) == says
    assert all("softmax statistics" in note for note in found)


def test_the_promoted_default_of_a_dumped_configuration_is_no_finding() -> None:
    assert rules_of(bridge(), recompute_modules=("core_attn",)) == {}


# What the launchers add


@pytest.mark.parametrize("spec", ["selective:mlp", "none"])
def test_distribute_is_refused_by_megatron_lm_and_ignored_by_bridge(spec, make_job) -> None:
    spec, job = f"{spec}+distribute_saved_activations", make_job(tensor_model_parallel_size=2)
    assert rejected_by(spec, job, lm()) == ["distribute_needs_full"]
    assert rejected_by(spec, job, bridge()) == []
    ignored = without_effect(parse_setting(spec), job, bridge())
    assert [rejection.rule for rejection in ignored] == ["distribute_ignored"]


def test_distribute_with_full_recompute(make_job) -> None:
    spec = "full:uniform:1+distribute_saved_activations"
    tp1, tp2 = make_job(), make_job(tensor_model_parallel_size=2)
    sp = make_job(tensor_model_parallel_size=2, sequence_parallel=True)
    assert rejected_by(spec, tp1, lm()) == ["distribute_needs_tp"]
    assert rejected_by(spec, tp2, lm()) == []
    assert rejected_by(spec, sp, lm()) == ["distribute_with_sequence_parallel"]
    assert rejected_by(spec, sp, bridge()) == ["distribute_with_sequence_parallel"]
    ignored = without_effect(parse_setting(spec), tp1, bridge())
    assert [rejection.rule for rejection in ignored] == ["distribute_ignored"]


METHOD = {**SELECTIVE, "recompute_method": "block", "recompute_modules": ("mlp",)}
EMPTY = {**SELECTIVE, "recompute_modules": ()}


@pytest.mark.parametrize(
    ("raw", "revision", "rule", "verdict"),
    [
        (METHOD, lm(), "selective_with_method", Verdict.REFUSED),
        (METHOD, bridge(), "method_with_selective", Verdict.NO_EFFECT),
        (EMPTY, lm(), "recompute_modules_empty", Verdict.REFUSED),
        (EMPTY, lm("0.15"), "selective_without_modules", Verdict.NO_EFFECT),
        (EMPTY, bridge(), "selective_without_modules", Verdict.NO_EFFECT),
    ],
)
def test_a_method_with_selective_and_an_empty_list_of_modules(raw, revision, rule, verdict) -> None:
    assert rules_of(revision, **raw) == {rule: verdict}


def test_module_offload_asks_for_te_and_its_environment(make_job) -> None:
    spec = "none+offload=core_attn,attn_proj"
    assert rejected_by(spec, make_job(), lm()) == []
    assert "NVTE_CPU_OFFLOAD_V1=1" in notes(parse_setting(spec), make_job(), lm())[0]
    local = make_job(transformer_impl="local")
    assert rejected_by(spec, local, lm()) == ["offload_needs_te_impl"]
    assert rejected_by(spec, local, bridge()) == ["bridge_offload_needs_te_impl"]
    assert rejected_by(spec, make_job(), lm("0.15")) == ["unknown_field"]


@pytest.mark.parametrize("spec", ["full:uniform:1", "selective:core_attn"])
def test_offloading_what_is_recomputed_anyway(spec: str, make_job) -> None:
    found = notes(parse_setting(spec + "+offload=core_attn"), make_job(), lm())
    assert any("both recomputed and offloaded" in note for note in found)  # offload_of_recomputed


@pytest.mark.parametrize("version", ["0.14", "0.15", "0.16"])
def test_graphs_with_expandable_segments(version: str, make_job) -> None:
    job = make_job(cuda_graph_impl="transformer_engine", expandable_segments=True)
    refused = [rejection.rule for rejection in check(NONE, job, lm(version))]
    assert refused == ([] if version == "0.16" else ["graphs_with_expandable_segments"])
    environment = any("NCCL_GRAPH_REGISTER=0" in note for note in notes(NONE, job, lm(version)))
    assert environment == (version == "0.16")


GRAPHS = {"cuda_graph_impl": "transformer_engine", "num_moe_experts": 8}
DROPS = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
RECOMPUTED = {"recompute_granularity": "selective", "recompute_modules": ("moe",)}


@pytest.mark.parametrize("version", ["0.16", "0.17", "0.18", "0.19", "main"])
@pytest.mark.parametrize(
    ("more", "instead"),
    [
        ({}, "attn moe_router moe_preprocess"),
        ({"cuda_graph_impl": "local"}, "attn moe_router moe_preprocess"),
        ({"moe_router_padding_for_fp8": True, "fp8": "hybrid"}, "attn moe_router"),
        (RECOMPUTED, "attn"),
        ({"hybrid_layer_pattern": "M*-E"}, "attn mamba moe_router moe_preprocess"),
        (
            {"hybrid_layer_pattern": "M*-E", "cuda_graph_impl": "local"},
            "attn mamba moe_router moe_preprocess",
        ),
        (
            {"cuda_graph_impl": "local", "cuda_graph_modules": ("attn", "moe_router")},
            "attn moe_router moe_preprocess",
        ),
        ({"cuda_graph_modules": ("attn",)}, ""),
        ({"cuda_graph_impl": "none"}, ""),
        ({"num_moe_experts": None}, ""),
        (DROPS, ""),
    ],
)
def test_graphs_of_whole_layers_do_not_hold_experts_without_a_capacity(
    more, instead, version
) -> None:
    alltoall = {"moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True}
    raw = RawSettings(**{**alltoall, **GRAPHS, **more})
    found = {f.rule: f for f in find(raw, lm(version))}.get("cuda_graph_whole_experts")
    assert (found is not None) == bool(instead)
    if found is not None:
        assert found.verdict is Verdict.CRASHES
        assert found.fix.endswith(f" {instead}")
        named, _ = mended(raw, found.change, lm(version))
        assert not [f for f in find(named, lm(version)) if f.verdict.illegal]


@pytest.mark.parametrize(("version", "waits"), [("0.16", True), ("0.17", False)])
def test_up_to_0_16_the_permutation_waits_where_it_is_not_fused(version, waits) -> None:
    parts = ("attn", "moe_router", "moe_preprocess")
    raw = {**GRAPHS, "moe_token_dispatcher_type": "alltoall", "cuda_graph_modules": parts}
    assert list(rules_of(lm(version), **raw)) == ["cuda_graph_unfused_permutation"] * waits
    held = capturable(RawSettings(**raw), "transformer_engine", lm(version))
    assert held == (parts[:2] if waits else parts)


@pytest.mark.parametrize("version", ["0.16", "0.17", "0.18", "0.19", "main"])
@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({}, True),
        ({"moe_token_dispatcher_type": "allgather"}, True),
        ({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}, True),
        ({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}, False),
        (DROPS, False),
        ({"num_moe_experts": None}, False),
    ],
)
def test_a_graph_of_the_whole_iteration_holds_no_dispatch_that_waits(
    more, refused, version
) -> None:
    """Bridge's DeepSeek-V3, Qwen3 and gpt-oss on GB200 (26.06) run one with HybridEP."""
    iteration = {"cuda_graph_impl": "local", "cuda_graph_modules": ("full_iteration",)}
    whole = {**GRAPHS, **iteration, "moe_token_dispatcher_type": "alltoall", **more}
    found = rules_of(lm(version), **whole)
    assert ("cuda_graph_iteration_experts" in found) == refused
    assert "cuda_graph_whole_experts" not in found


def test_what_is_said_of_a_job_is_said_once(make_job) -> None:
    """With any setting, and it makes none of them one that cannot act."""
    unread = "cuda_graph_modules attn without cuda_graph_impl captures nothing"
    job, setting = make_job(cuda_graph_modules=("attn",)), parse_setting("selective:mlp")
    assert remarks(job, lm()) == (unread,)
    assert unread not in notes(setting, job, lm())
    assert not without_effect(setting, job, lm())
    assert not remarks(make_job(), lm())


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ({"moe_flex_dispatcher_backend": "deepep"}, ""),
        ({"moe_flex_dispatcher_backend": "hybridep", "moe_token_dispatcher_type": "flex"}, ""),
        ({"cuda_graph_modules": ("attn",), "cuda_graph_impl": "transformer_engine"}, ""),
        (
            {"delay_wgrad_compute": True, "overlap_moe_expert_parallel_comm": True}
            | {"expert_model_parallel_size": 2},
            "untimed_delay",
        ),
    ],
)
def test_options_without_effect(raw, rule) -> None:
    experts = {"num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall"}
    assert list(rules_of(lm(), **{**experts, **raw})) == ([rule] if rule else [])


def test_what_one_release_refuses_and_another_takes(make_job) -> None:
    """Bridge takes local graphs for the whole iteration only; groups below TP need 0.16."""
    graphed = make_job(cuda_graph_impl="local")
    assert rejected_by("none", graphed, bridge()) == ["bridge_local_graphs"]
    assert rejected_by("none", graphed, lm()) == []
    job = make_job(num_query_groups=2, tensor_model_parallel_size=4)
    assert rejected_by("none", job, lm("0.15")) == ["query_groups_match_tp"]
    assert rejected_by("none", job, lm("0.16")) == []


def test_a_label_that_the_release_lacks_names_those_that_have_it(make_job) -> None:
    (rejection, *_) = check(parse_setting("selective:gdn_norm_out"), make_job(), lm("0.16"))
    assert rejection.rule == "recompute_modules"
    assert "megatron-core 0.16" in rejection.reason
    assert rejection.fix == "gdn_norm_out needs --framework-version 0.19 or main"
    assert rejection.source == "megatron-core 0.16.1 transformer_config.py:1207"
    misspelt = RawSettings(recompute_granularity="selective", recompute_modules=("layer_norm",))
    assert "layernorm" in find(misspelt, lm())[0].fix


@pytest.mark.parametrize(
    ("rule", "version", "source"),
    [
        ("recompute_modules", "0.13", "megatron-core 0.13.1 transformer_config.py:819"),
        ("recompute_modules", "main", "Megatron-LM main"),
        ("distribute_needs_tp", "0.16", "megatron-core 0.16.1 training/arguments.py"),
        ("sequence_parallel_needs_tp", "", "megatron-core 0.19.2 model_parallel_config.py:504"),
    ],
)
def test_sources_name_the_release_that_was_read(rule, version, source) -> None:
    cited = RULES[rule].cited(lm(version))
    assert cited.startswith(source) if version == "main" else cited == source


def test_each_release_cites_a_line_for_each_refusal_that_it_makes() -> None:
    """A rule that fires in a release must have been seen in it (except a missing field)."""
    for name, rule in RULES.items():
        if rule.authority is not Authority.CONFIG or rule.verdict is not Verdict.REFUSED:
            continue
        lines = [rule.cited(revision) for revision in MEGATRON_CORE]
        expected = name == "unknown_field" or rule.since == (0, 20)  # main alone has those
        assert any(":" in source for source in lines) != expected, name
