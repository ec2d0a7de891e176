"""Labels, rules, offload and flags of Megatron for linear attention and hybrid patterns."""

import shlex

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.candidates import acting_labels, enumerate_settings
from advisor.frameworks.megatron.flags import layout_flags
from advisor.frameworks.megatron.plan import chunk_plan, offloaded_modules
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.megatron.rules.engine import check, notes
from advisor.frameworks.megatron.setting import Granularity, parse_setting
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.operators import Module
from advisor.lint.target import lint_target
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import tallied
from advisor.request.request import Request
from advisor.request.resolve import resolve
from tests.advisor.jobs import job_config, parallel

QWEN, NEMOTRON = load_model("qwen3_next_80b_a3b"), load_model("nemotron3_nano_30b_a3b")


def lm(version: str) -> Revision:
    return resolve_revision(Framework.MEGATRON_LM, version)


def test_labels_that_act() -> None:
    experts = ("core_attn", "layernorm", "moe_act", "shared_experts", "moe")
    assert acting_labels(QWEN) == (*experts, "gdn_norm_out")
    assert acting_labels(NEMOTRON) == experts
    none = {"num_moe_experts": None, "moe_ffn_hidden_size": None}
    dense = replace(NEMOTRON, num_layers=3, hybrid_layer_pattern="M*-", **none)
    assert acting_labels(dense) == ("core_attn", "mlp")


def test_offload_of_attention_leaves_linear_layers_alone() -> None:
    setting = parse_setting("none+offload=qkv_linear,core_attn,attn_proj,mlp_norm")
    linear, softmax = (offloaded_modules(setting, QWEN, QWEN.layer_kinds[i]) for i in (0, 3))
    assert linear == {Module.PRE_MLP_LAYERNORM}
    assert {Module.LINEAR_QKV, Module.CORE_ATTENTION, Module.LINEAR_PROJ} < softmax


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    made = {}
    for name, gpus in (("qwen3_next_80b_a3b", "32xH100"), ("nemotron3_nano_30b_a3b", "16xH100")):
        resolved = resolve(Request(model=name, gpus=gpus))
        assert resolved.layout is not None
        job = resolved.job(resolved.layout)
        made[name] = replace(job, config=replace(job.config, cuda_graph_impl=CudaGraphImpl.NONE))
    return made


def test_gdn_norm_out_by_release(jobs: dict[str, Job]) -> None:
    setting, job = parse_setting("selective:gdn_norm_out"), jobs["qwen3_next_80b_a3b"]
    assert not check(setting, job, lm("0.19"))
    assert not check(setting, job, lm("main"))  # there the variant is called gdn
    assert check(setting, job, lm("0.18"))[0].rule == "recompute_modules"
    assert check(setting, jobs["nemotron3_nano_30b_a3b"], lm("0.19"))


def test_full_recompute_of_a_hybrid_pattern_came_with_0_18(jobs: dict[str, Job]) -> None:
    job, setting = jobs["nemotron3_nano_30b_a3b"], parse_setting("full:uniform:1")
    assert "is ignored by megatron-core 0.17" in "".join(notes(setting, job, lm("0.17")))
    assert "is ignored" not in "".join(notes(setting, job, lm("0.18")))
    full = [
        [s.granularity is Granularity.FULL for s in enumerate_settings(job, lm(version))]
        for version in ("0.17", "0.18")
    ]
    assert [any(each) for each in full] == [False, True]


@pytest.mark.parametrize("option", ["--hybrid-layer-pattern", "--hybrid-override-pattern"])
def test_lint_reads_both_spellings(option: str) -> None:
    flags = f"{option} M*- --recompute-granularity full --recompute-method uniform"
    report = lint_target(f"{flags} --recompute-num-layers 1", "0.16")
    assert [finding.rule for finding in report.findings] == ["hybrid_ignores_full"]


def test_segments_came_with_0_17(jobs: dict[str, Job]) -> None:
    job = jobs["nemotron3_nano_30b_a3b"]
    pattern = job.model.hybrid_layer_pattern or ""
    split = replace(job.model, hybrid_layer_pattern=f"{pattern[:26]}|{pattern[26:]}")
    layout = replace(job.layout, **parallel(pp=2, dp=job.layout.data_parallel_size // 2))
    job = replace(job, model=split, layout=layout)
    none = parse_setting("none")
    assert [found.rule for found in check(none, job, lm("0.16"))] == ["hybrid_segments"]
    assert not check(none, job, lm("0.17"))


def test_flags(jobs: dict[str, Job]) -> None:
    qwen = layout_flags(jobs["qwen3_next_80b_a3b"], lm("0.19"))
    assert (
        "--attention-output-gate --experimental-attention-variant gated_delta_net "
        "--linear-attention-freq 4" in qwen
    )
    assert "--linear-key-head-dim" not in qwen  # 128 is Megatron's default
    nemotron = jobs["nemotron3_nano_30b_a3b"]
    options = {"0.19": "--hybrid-layer-pattern", "0.16": "--hybrid-override-pattern"}
    for version, option in options.items():
        words = shlex.split(layout_flags(nemotron, lm(version)))
        assert words[words.index(option) + 1] == NEMOTRON.hybrid_layer_pattern
        assert words[words.index("--mamba-num-heads") + 1] == "64"


def test_equal_segments_are_tallied_wherever_they_stand() -> None:
    plan = chunk_plan(parse_setting("none"), NEMOTRON, NEMOTRON.layer_kinds, False)
    assert [segment.copies for segment in tallied(plan)] == [23, 23, 6]
    assert len(plan.segments) > 40
    pairs = chunk_plan(parse_setting("full:uniform:2"), NEMOTRON, NEMOTRON.layer_kinds, False)
    assert sum(segment.total_layers for segment in tallied(pairs)) == 52


@pytest.mark.parametrize(("version", "fused"), [("0.13", False), ("0.14", True), ("0.19", True)])
def test_a_release_without_the_fused_weighted_squared_relu_runs_without(version, fused) -> None:
    config = job_config(8, 1, 1, framework_version=version)
    model = load_model("nemotron3_nano_30b_a3b")
    run, _ = parts_of(Framework.MEGATRON_LM).jobs.configure(model, config, frozenset())
    assert run.use_fused_weighted_squared_relu is fused
