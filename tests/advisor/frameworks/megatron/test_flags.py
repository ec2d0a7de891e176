import shlex

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.bridge import bridge_layout_overrides, bridge_overrides
from advisor.frameworks.megatron.candidates import enumerate_settings
from advisor.frameworks.megatron.flags import (
    environment,
    layout_flags,
    megatron_lm_flags,
    nemo_layout_overrides,
    nemo_overrides,
)
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import NONE, Granularity, parse_setting
from advisor.frameworks.names import Framework
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Optimizer
from advisor.lint.target import lint_target
from advisor.models.options import TokenDispatcher
from tests.advisor.frameworks.megatron.megatron_arguments import parser
from tests.advisor.jobs import parallel
from tests.advisor.tables import tables

TABLES = tables(__file__)

V19 = resolve_revision(Framework.MEGATRON_LM, "0.19")
BRIDGE = resolve_revision(Framework.MEGATRON_BRIDGE, "0.6")
NEMO_2 = resolve_revision(Framework.NEMO, "2")


def parsed(flags: str, core: str = "0.19"):
    return parser(core).parse_args(shlex.split(flags))


@pytest.mark.parametrize(("spec", "flags"), TABLES["test_recompute_flags_verbatim"])
def test_recompute_flags_verbatim(spec, flags, make_job) -> None:
    assert megatron_lm_flags(parse_setting(spec), make_job(), V19) == flags
    parsed(flags)


def test_layout_flags_of_the_70b_job(make_job) -> None:
    job = make_job(
        num_layers=80, num_attention_heads=64, **parallel(tp=4, sp=True, pp=4, vpp=5, dp=2)
    )
    assert layout_flags(job, V19) == (
        "--tensor-model-parallel-size 4 --sequence-parallel --context-parallel-size 1 "
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
        "--seq-length 4096 --micro-batch-size 1 --global-batch-size 32 --bf16 "
        "--attention-backend auto --hidden-dropout 0 --attention-dropout 0"
    )
    parsed(layout_flags(job, V19))


@pytest.mark.parametrize(
    ("changes", "present", "absent"), TABLES["test_layout_flags_follow_the_job"]
)
def test_layout_flags_follow_the_job(changes, present, absent, make_job) -> None:
    flags = layout_flags(make_job(**changes), V19)
    assert present in flags
    assert absent not in flags
    parsed(flags)


ENGINE, WHOLE = "transformer_engine", "full_iteration"
UNCHECKED = "--no-check-for-nan-in-loss-and-grad"


@pytest.mark.parametrize(
    ("core", "impl", "modules", "flags"),
    [
        ("0.14", "local", (), "--enable-cuda-graph"),
        ("0.14", ENGINE, ("attn",), "--external-cuda-graph --cuda-graph-scope attn"),
        ("0.15", ENGINE, ("attn",), f"--cuda-graph-impl {ENGINE} --cuda-graph-scope attn"),
        ("0.17", WHOLE, (), f"--cuda-graph-impl local --cuda-graph-scope {WHOLE} {UNCHECKED}"),
        ("0.18", WHOLE, (), f"--cuda-graph-impl {WHOLE} {UNCHECKED}"),
        ("0.19", "local", ("attn", "mlp"), "--cuda-graph-impl local --cuda-graph-modules attn mlp"),
        ("0.19", "none", ("attn",), ""),
    ],
)
def test_graph_flags_by_release(core, impl, modules, flags, make_job) -> None:
    job = make_job(cuda_graph_impl=impl, cuda_graph_modules=modules)
    written = layout_flags(job, resolve_revision(Framework.MEGATRON_LM, core))
    assert written.endswith(("--attention-dropout 0 " + flags).strip())
    parsed(written, core)


@pytest.mark.parametrize("core", ["0.16", "0.17", "0.18", "0.19"])
def test_the_release_takes_the_optimizers_flags(core, make_job) -> None:
    job = make_job(optimizer=Optimizer.DIST_MUON, use_distributed_optimizer=False)
    args = parsed(layout_flags(job, resolve_revision(Framework.MEGATRON_LM, core)), core)
    assert (args.optimizer, args.use_distributed_optimizer) == ("dist_muon", False)
    assert not getattr(args, "use_layer_wise_param_layout", False)


def test_the_environment_that_a_job_needs(make_job) -> None:
    plain = make_job()
    graphed = make_job(cuda_graph_impl="transformer_engine", expandable_segments=True)
    assert environment(NONE, plain, V19) == ()
    assert environment(NONE, graphed, V19) == (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "NCCL_GRAPH_REGISTER=0",
    )
    assert environment(NONE, make_job(deterministic_mode=True), V19) == (
        "NCCL_ALGO=Ring",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
    )
    assert "--deterministic-mode" in layout_flags(make_job(deterministic_mode=True), V19)
    offload = parse_setting("none+offload=core_attn")
    assert environment(offload, plain, V19) == ("NVTE_CPU_OFFLOAD_V1=1",)
    hopper = make_job(tensor_model_parallel_size=2, sequence_parallel=True, tp_comm_overlap=True)
    assert environment(NONE, hopper, V19) == ()
    ampere = replace(hopper, gpu=load_gpu("A100"))  # whose switches copy nothing
    assert environment(NONE, ampere, V19) == ("UB_SKIPMC=1",)


# Megatron Bridge

CLEAR = "model.recompute_method=null model.recompute_num_layers=null"


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        ("none", f"model.recompute_granularity=null 'model.recompute_modules=[]' {CLEAR}"),
        ("selective:", f"model.recompute_granularity=null 'model.recompute_modules=[]' {CLEAR}"),
        (
            "selective",
            f"model.recompute_granularity=selective 'model.recompute_modules=[core_attn]' {CLEAR}",
        ),
        (
            "selective:core_attn,mlp",
            "model.recompute_granularity=selective 'model.recompute_modules=[core_attn,mlp]' "
            f"{CLEAR}",
        ),
        (
            "full:block:5",
            "model.recompute_granularity=full model.recompute_method=block "
            "model.recompute_num_layers=5",
        ),
        (
            "none+offload=core_attn,attn_proj",
            f"model.recompute_granularity=null 'model.recompute_modules=[]' {CLEAR} "
            "model.fine_grained_activation_offloading=true "
            "'model.offload_modules=[core_attn,attn_proj]'",
        ),
    ],
)
def test_bridge_overrides_verbatim(spec, overrides, make_job) -> None:
    assert bridge_overrides(parse_setting(spec), make_job(), BRIDGE) == overrides


@pytest.mark.parametrize(
    ("spell", "version", "section"),
    [
        (bridge_layout_overrides, BRIDGE, "model"),
        (nemo_layout_overrides, NEMO_2, "trainer.strategy"),
    ],
)
@pytest.mark.parametrize(
    ("pp", "field", "value"),
    [
        (4, "pipeline_model_parallel_layout", "Et*10|(t*1|)*2t*12L"),
        (4, "num_layers_in_last_pipeline_stage", 6),
        (5, "account_for_loss_in_pipeline_split", True),
    ],
)
def test_hydra_reads_an_uneven_split(spell, version, section, pp, field, value, make_job) -> None:
    """Parentheses and stars are its own grammar: the text stands in quotes."""
    job = make_job(pipeline_model_parallel_size=pp, **{field: value})
    hydra = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    read = hydra.OverridesParser.create().parse_overrides(shlex.split(spell(job, version)))
    assert {one.key_or_group: one.value() for one in read}[f"{section}.{field}"] == value


def test_overlap_of_tp_is_printed_where_megatron_takes_it(make_job) -> None:
    for tp, split in ((1, False), (2, False), (2, True)):
        layout = {"tensor_model_parallel_size": tp, "sequence_parallel": split}
        job = make_job(**layout, tp_comm_overlap=True)
        assert ("--tp-comm-overlap" in layout_flags(job, V19)) is split
        bridge = bridge_layout_overrides(job, BRIDGE)
        assert ("comm_overlap.tp_comm_overlap=true" in bridge) is split


def test_deepep_is_switched_on_where_it_is_no_backend(make_job) -> None:
    job = make_job(
        num_moe_experts=8, **parallel(ep=2, dp=2), moe_token_dispatcher_type=TokenDispatcher.FLEX
    )
    older = resolve_revision(Framework.MEGATRON_LM, "0.15")
    assert "--moe-enable-deepep" in shlex.split(layout_flags(job, older))
    assert "--moe-enable-deepep" not in shlex.split(layout_flags(job, V19))
    assert "model.config.moe_enable_deepep=true" in nemo_layout_overrides(job, NEMO_2)
    assert "deepep=" not in bridge_layout_overrides(job, BRIDGE)


def test_bridge_layout_overrides(make_job) -> None:
    job = make_job(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        precision="fp8_current",
        fp8_param_gather=True,
        first_last_layers_bf16=True,
        cuda_graph_impl="full_iteration",
    )
    written = bridge_layout_overrides(job, BRIDGE)
    assert written == (
        "model.tensor_model_parallel_size=2 model.sequence_parallel=false "
        "model.context_parallel_size=1 model.pipeline_model_parallel_size=2 "
        "model.virtual_pipeline_model_parallel_size=null model.cuda_graph_impl=full_iteration "
        "'model.cuda_graph_modules=[]' train.micro_batch_size=1 train.global_batch_size=32 "
        "ddp.use_distributed_optimizer=true ddp.overlap_grad_reduce=true "
        "ddp.overlap_param_gather=true mixed_precision=bf16_with_fp8_current_scaling_mixed "
        "model.cross_entropy_loss_fusion=false "
        "rerun_state_machine.check_for_nan_in_loss=false"
    )
    old = bridge_layout_overrides(job, resolve_revision(Framework.MEGATRON_BRIDGE, "0.3"))
    assert "model.cuda_graph_impl=local 'model.cuda_graph_scope=[full_iteration]'" in old


@pytest.mark.parametrize(
    ("recipe", "flag", "override"),
    [
        ("delayed", "", "mixed_precision.fp8_recipe=delayed"),
        ("tensorwise", "--fp8-recipe tensorwise", ""),
        (None, "", ""),
    ],
)
def test_the_recipe_that_the_optimizer_reads_without_fp8(recipe, flag, override, make_job) -> None:
    """Where it is not the framework's default; the recipe's own mixed_precision stays."""
    job = make_job(fp8_recipe=recipe, use_precision_aware_optimizer=True)
    words = layout_flags(job, V19)
    assert flag in words
    assert ("--fp8-recipe" in words) == bool(flag)
    reported = bridge_layout_overrides(job, BRIDGE).split()
    assert ("mixed_precision=bf16_mixed" in reported) == (not override)
    assert [word for word in reported if "fp8_recipe" in word] == [override] * bool(override)


@pytest.mark.parametrize(
    ("changes", "reported"), TABLES["test_bridge_is_given_types_that_no_named_precision_has"]
)
def test_bridge_is_given_types_that_no_named_precision_has(changes, reported, make_job) -> None:
    """Bridge overwrites types with those of mixed_precision, by name or field."""
    words = bridge_layout_overrides(make_job(**changes), BRIDGE).split()
    found = [word for word in words if word.startswith("mixed_precision")]
    assert " ".join(found).replace("mixed_precision", "") == reported


def test_bridge_is_given_the_optimizer(make_job) -> None:
    aware = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bfloat16"}
    written = bridge_layout_overrides(make_job(**aware, optimizer_cpu_offload=True), BRIDGE)
    assert (
        "optimizer.use_precision_aware_optimizer=true optimizer.exp_avg_dtype=torch.bfloat16 "
        "optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1.0"
    ) in written
    assert "optimizer." not in bridge_layout_overrides(make_job(), BRIDGE)


def test_recipes_are_given_steps_that_repeat_to_the_bit(make_job) -> None:
    job = make_job(deterministic_mode=True, tensor_model_parallel_size=2)
    reported = bridge_layout_overrides(job, BRIDGE).split()
    assert "model.deterministic_mode=true" in reported
    assert "model.cross_entropy_loss_fusion=false" in reported
    assert "comm_overlap.tp_comm_overlap=false" in reported
    nemo = nemo_layout_overrides(job, resolve_revision(Framework.NEMO, "2"))
    assert "model.config.deterministic_mode=true" in nemo.lower()


# What we print, our own reader takes back, and finds nothing wrong with


PRINTED = [
    (Framework.MEGATRON_LM, "", megatron_lm_flags, layout_flags),
    (Framework.MEGATRON_BRIDGE, "", bridge_overrides, bridge_layout_overrides),
    (Framework.NEMO, "2", nemo_overrides, nemo_layout_overrides),
    (Framework.NEMO, "1", nemo_overrides, nemo_layout_overrides),
]


@pytest.mark.parametrize(("framework", "version", "spell", "spell_layout"), PRINTED)
def test_lint_accepts_what_is_printed(framework, version, spell, spell_layout, make_job) -> None:
    job = make_job(**parallel(tp=2, pp=2), transformer_impl="local", attention_backend="unfused")
    revision = resolve_revision(framework, version)
    for setting in enumerate_settings(job, revision):
        text = f"{spell_layout(job, revision)} {spell(setting, job, revision)}"
        report = lint_target(text)
        assert not any(f.verdict.illegal for f in report.findings), (text, report.findings)
        assert report.checked[0].release is revision
        read = report.checked[0].settings
        assert (read.recompute_granularity or "none") == str(setting.granularity)
        assert read.recompute_num_layers == setting.num_layers
        assert read.distribute_saved_activations == setting.distribute_saved_activations
        assert read.tensor_model_parallel_size == read.pipeline_model_parallel_size == 2
        if setting.granularity is Granularity.SELECTIVE:
            assert read.effective_modules == setting.modules
