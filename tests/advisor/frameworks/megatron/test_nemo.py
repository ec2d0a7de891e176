"""NeMo 1 and 2: spelling, rules, and overrides that OmegaConf reads back to the same setting."""

import shlex
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.megatron.bridge import bridge_overrides
from advisor.frameworks.megatron.candidates import enumerate_settings
from advisor.frameworks.megatron.flags import nemo_layout_overrides, nemo_overrides
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    Method,
    RecomputeSetting,
    parse_setting,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.lint.target import lint_target
from tests.advisor.jobs import parallel

FIRST, SECOND = (resolve_revision(Framework.NEMO, version) for version in ("1", "2"))
BRIDGE = resolve_revision(Framework.MEGATRON_BRIDGE, "")
SPECS = (
    *("none", "selective:core_attn", "selective:core_attn,mlp", "selective:mlp,layernorm"),
    *("full:uniform:1", "full:uniform:4", "full:block:8"),
    "full:block:2+distribute_saved_activations",
)


def merged(overrides: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe's configuration after the overrides, as Hydra and NeMo merge them."""
    OmegaConf = pytest.importorskip("omegaconf").OmegaConf  # noqa: N806 - a class
    lines = OmegaConf.from_dotlist(shlex.split(overrides))
    tree = OmegaConf.to_container(OmegaConf.merge(recipe, lines))
    assert isinstance(tree, dict)
    return tree


def as_setting(fields: dict[str, Any]) -> RecomputeSetting:
    """The setting that fields of TransformerConfig spell."""
    method = fields["recompute_method"]
    modules = tuple(fields["recompute_modules"] or ())
    return RecomputeSetting(
        granularity=Granularity(fields["recompute_granularity"] or "none"),
        modules=modules or None,
        method=Method(method) if method else None,
        num_layers=fields["recompute_num_layers"],
        distribute_saved_activations=fields.get("distribute_saved_activations", False),
    )


# What a recipe may have set before: the overrides must win over all of it.
RECIPE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 7,
    "recompute_modules": ["moe_act"],
}


@pytest.mark.parametrize("recipe", [RECIPE, {}], ids=["full", "none"])
def test_omegaconf_reads_bridge_and_nemo_2_back(recipe: dict[str, Any], make_job) -> None:
    job = make_job(tensor_model_parallel_size=2)
    settings = (*map(parse_setting, SPECS), *enumerate_settings(job, BRIDGE))
    for setting in settings:
        bridge = merged(bridge_overrides(setting, job, BRIDGE), {"model": dict(recipe)})
        assert as_setting(_effective(bridge["model"])) == setting
        nemo = merged(nemo_overrides(setting, job, SECOND), {"model": {"config": dict(recipe)}})
        assert as_setting(_effective(nemo["model"]["config"])) == setting


def _effective(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that the granularity reads."""
    selective = fields["recompute_granularity"] == "selective"
    return fields if selective else {**fields, "recompute_modules": None}


@pytest.mark.parametrize("spec", [s for s in SPECS if "mlp" not in s and "distribute" not in s])
def test_omegaconf_reads_nemo_1_back(spec: str, make_job) -> None:
    setting = parse_setting(spec)
    tree = merged(nemo_overrides(setting, make_job(), FIRST), {"model": {}})["model"]
    read = {
        f"recompute_{name}": tree[f"activations_checkpoint_{name}"]
        for name in ("granularity", "method", "num_layers")
    }
    if setting.granularity is Granularity.SELECTIVE:  # core attention, with the method it demands
        assert tuple(read.values()) == ("selective", "uniform", None)
        return
    assert as_setting({**read, "recompute_modules": None}) == setting


def test_the_spelling_of_both(make_job) -> None:
    job = make_job(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    block = parse_setting("full:block:2")
    assert nemo_overrides(block, job, FIRST) == (
        "model.activations_checkpoint_granularity=full model.activations_checkpoint_method=block "
        "model.activations_checkpoint_num_layers=2"
    )
    # nemo-run reads a list as a Python literal (nemo_run 0.11.1 cli_parser.py parse_list).
    assert shlex.split(nemo_overrides(parse_setting("selective:mlp"), job, SECOND)) == [
        "model.config.recompute_granularity=selective",
        'model.config.recompute_modules=["mlp"]',
        "model.config.recompute_method=null",
        "model.config.recompute_num_layers=null",
    ]
    offload = parse_setting("none+cpu_offloading=4")
    assert "model.cpu_offloading_num_layers=4" in nemo_overrides(offload, job, FIRST)
    assert "model.config.cpu_offloading_num_layers=4" in nemo_overrides(offload, job, SECOND)
    assert "trainer.strategy.pipeline_model_parallel_size=2" in nemo_layout_overrides(job, SECOND)
    assert "data.global_batch_size=32" in nemo_layout_overrides(job, SECOND)
    assert "model.global_batch_size=32" in nemo_layout_overrides(job, FIRST)


def test_a_job_is_reported_all_that_moves_its_step(make_job) -> None:
    job = make_job(
        **parallel(tp=2, sp=True, ep=2, etp=1),
        num_moe_experts=8,
        tp_comm_overlap=True,
        cross_entropy_fusion="te",
        cuda_graph_impl="transformer_engine",
        cuda_graph_modules=("attn",),
        moe_token_dispatcher_type="alltoall",
        overlap_moe_expert_parallel_comm=True,
        delay_wgrad_compute=True,
    )
    words = shlex.split(nemo_layout_overrides(job, SECOND))
    config = (
        "moe_token_dispatcher_type=alltoall overlap_moe_expert_parallel_comm=true "
        "delay_wgrad_compute=true tp_comm_overlap=true cross_entropy_loss_fusion=true "
        "cross_entropy_fusion_impl=te external_cuda_graph=true enable_cuda_graph=false "
        "cuda_graph_scope=attn"  # a text in megatron-core 0.14
    )
    assert {f"model.config.{word}" for word in config.split()} <= set(words)
    assert {"trainer.strategy.expert_model_parallel_size=2"} <= set(words)
    assert {"trainer.strategy.expert_tensor_parallel_size=1"} <= set(words)
    assert not any("cuda_graph_impl" in word or "hybridep" in word for word in words)
    assert "model.ub_tp_comm_overlap=true" in nemo_layout_overrides(job, FIRST)
    assert "dispatcher" not in nemo_layout_overrides(job, FIRST)
    dense = nemo_layout_overrides(make_job(), SECOND)
    assert "expert" not in dense
    assert "moe" not in dense


def test_what_is_left_to_the_recipe_is_said(make_job) -> None:
    job = make_job(main_grads_dtype="bfloat16", precision="fp8_current")
    nemo, bridge = parts_of("nemo"), parts_of("megatron_bridge")
    rest = f"sequence length {job.config.seq_length}, gradients in bfloat16"
    assert nemo.spelling.omitted(job) == f"set this in the recipe: precision fp8_current, {rest}"
    held = "the mixed_precision.… overrides work only in recipes (perf_recipes)"
    sequence = f"sequence length {job.config.seq_length}"
    assert f"{sequence} · {held}" in bridge.spelling.omitted(job)
    assert bridge.spelling.omitted(make_job()) == f"set this in the recipe: {sequence}"
    assert parts_of("megatron_lm").spelling.omitted(job) == ""


def test_the_newest_nemo_is_2() -> None:
    assert resolve_revision(Framework.NEMO, "") is SECOND is resolve_revision(Framework.NEMO, "2.5")
    assert SECOND.label == "NeMo 2 (megatron-core 0.14)"
    assert resolve_revision(Framework.NEMO, "3") is SECOND
    with pytest.raises(UserError, match="use 1 or 2"):
        resolve_revision(Framework.NEMO, "0")
    for text in ("1", "1.23", "1.23.0", "v1.20.0"):
        assert resolve_revision(Framework.NEMO, text) is FIRST


def test_what_nemo_1_cannot_say_is_refused(make_job) -> None:
    job = make_job(tensor_model_parallel_size=2)

    def refused(spec: str) -> list[str]:
        return [rejection.rule for rejection in check(parse_setting(spec), job, FIRST)]

    assert refused("selective:mlp") == ["unknown_field"]
    assert refused("full:uniform:1+distribute_saved_activations") == ["nemo_distribute"]
    assert refused("selective:core_attn") == refused("full:block:3") == []
    assert check(NONE, job, FIRST) == ()


YAML = """
trainer: {{precision: bf16}}
model:
  mcore_gpt: {}
  num_layers: 32
  pipeline_model_parallel_size: {}
  fp8: false
  activations_checkpoint_granularity: {}
  activations_checkpoint_method: {}
  activations_checkpoint_num_layers: {}
  num_micro_batches_with_partial_activation_checkpoints: {}
"""


@pytest.mark.parametrize(
    ("core", "pp", "granularity", "method", "number", "window", "rules"),
    [
        ("true", 1, "selective", "null", "null", "null", []),
        ("true", 1, "selective", "uniform", "null", "null", []),
        ("false", 1, "selective", "null", "null", "null", ["nemo_selective_needs_method"]),
        ("false", 1, "full", "block", "null", "null", ["nemo_default_layers"]),
        ("false", 4, "full", "block", "2", "1", []),
        ("true", 4, "full", "block", "2", "1", ["nemo_partial_microbatches"]),
        ("false", 1, "full", "block", "2", "1", ["nemo_partial_microbatches"]),
        ("true", 1, "partial", "block", "2", "null", ["recompute_granularity"]),
        ("true", 1, "null", "null", "null", "null", []),
    ],
)
def test_lint_reads_nemo_1_yaml(core, pp, granularity, method, number, window, rules, tmp_path):
    path = tmp_path / "megatron_gpt_config.yaml"
    path.write_text(YAML.format(core, pp, granularity, method, number, window))
    report = lint_target(str(path))
    assert report.checked[0].release is FIRST
    # core_attn_under_flash depends on TE's backend, which the YAML does not name.
    found = [finding.rule for finding in report.findings]
    assert sorted(set(found) - {"core_attn_under_flash"}) == sorted(rules)


def test_lint_reads_nemo_2_yaml_and_overrides(tmp_path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model:\n  config:\n    recompute_granularity: full\n    num_layers: 8\n")
    report = lint_target(str(path))
    assert report.checked[0].release is SECOND
    assert "full_needs_method" in {finding.rule for finding in report.findings}
    flags = "model.config.recompute_granularity=selective model.config.recompute_num_layers=2"
    found = lint_target(f"nemo llm pretrain --factory llama3_70b {flags}").findings
    assert "selective_num_layers" in {finding.rule for finding in found}
