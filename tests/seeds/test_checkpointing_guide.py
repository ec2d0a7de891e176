"""A community guide to activation checkpointing in Megatron-LM (version 1.0), walked through.

Its numbers are in docs/claims.md; here every option, module, method, example and failure it names.
"""

import pytest

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.revisions import CheckpointKind, checkpoint_kind, resolve_revision
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.names import Framework
from advisor.models.layer_kind import DENSE
from advisor.models.presets import load_model
from tests.advisor.jobs import batches
from tests.seeds.walk import CORE, advice, evaluation, failures, lint, refused

SELECTIVE = "--recompute-granularity selective --recompute-modules"
FULL = "--recompute-granularity full --recompute-method"
V16 = "0.16"
"""The line numbers that the guide cites are those of a release of its time (December 2025)."""
MOE = "--num-experts 8 --moe-grouped-gemm"


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        (
            "--recompute-activations",
            ["core_attn_under_flash", "promoted_core_attn", "recompute_activations"],
        ),
        (f"{SELECTIVE} core_attn", ["core_attn_under_flash"]),
        (f"{FULL} uniform --recompute-num-layers 1", []),
        (f"{FULL} uniform --recompute-num-layers 4", []),
        (f"{FULL} block --recompute-num-layers 8", []),
        ("--recompute-granularity selective", ["core_attn_under_flash", "promoted_core_attn"]),
        (f"{SELECTIVE} mlp", []),
        (f"{SELECTIVE} moe {MOE}", []),
        (f"{SELECTIVE} moe_act {MOE}", []),
        (f"{SELECTIVE} shared_experts {MOE} --moe-shared-expert-intermediate-size 2048", []),
        (f"{SELECTIVE} layernorm", ["layernorm_on_te"]),
        (f"{SELECTIVE} mla_up_proj --multi-latent-attention", []),
        (f"{SELECTIVE} core_attn mlp", ["core_attn_under_flash"]),
        (f"{SELECTIVE} core_attn moe_act {MOE}", ["core_attn_under_flash"]),
        (
            f"{SELECTIVE} core_attn --fp8-format hybrid --transformer-impl transformer_engine",
            ["core_attn_under_flash"],
        ),
        (
            f"{SELECTIVE} core_attn --use-distributed-optimizer --overlap-grad-reduce "
            "--overlap-param-gather --fp8-format hybrid --fp8-amax-history-len 1024",
            ["core_attn_under_flash"],
        ),
    ],
)
def test_every_command_line_is_understood(flags: str, rules: list[str]) -> None:
    assert lint(flags, V16) == rules


def test_granularity_none_is_spelt_by_leaving_it_out() -> None:
    """The guide's `--recompute-granularity None` is no value that Megatron takes."""
    assert lint("--micro-batch-size 4 --num-layers 32", V16) == []


def test_the_deepseek_example_needs_grouped_gemm_and_another_fp8_recipe() -> None:
    """As printed the command is refused, twice: moe_act wants grouped GEMMs, and FP8 with an unset
    recipe is delayed scaling, which excludes moe_act."""
    example = f"{SELECTIVE} core_attn mla_up_proj moe_act --num-experts 256 --fp8-format hybrid "
    assert refused(f"{example} --multi-latent-attention", V16) == [
        "moe_act_needs_grouped_gemm",
        "fp8_layernorm_recompute",
    ]
    repaired = f"{example} --multi-latent-attention --moe-grouped-gemm --fp8-recipe blockwise"
    assert refused(repaired, V16) == []
    assert refused(f"{example} --moe-grouped-gemm --fp8-recipe blockwise", V16) == [
        "mla_up_proj_needs_mla"
    ]


def test_the_mixtral_example_needs_grouped_gemm() -> None:
    example = f"{SELECTIVE} core_attn moe_act --num-layers 32 --num-experts 8"
    assert refused(example, V16) == ["moe_act_needs_grouped_gemm"]
    assert refused(f"{example} --moe-grouped-gemm", V16) == []


def test_the_modules_and_their_kinds_of_checkpoint() -> None:
    assert CORE.recompute_modules == (
        "core_attn",
        "moe_act",
        "layernorm",
        "mla_up_proj",
        "mlp",
        "moe",
        "shared_experts",
    )
    discarding = {
        m for m in CORE.recompute_modules if checkpoint_kind(m) is CheckpointKind.OUTPUT_DISCARDING
    }
    assert discarding == {"moe_act", "layernorm", "mla_up_proj"}


def test_uniform_four_of_thirty_two_makes_eight_checkpoints() -> None:
    model = load_model("llama2_7b")
    plan = chunk_plan(parse_setting("full:uniform:4"), model, (DENSE,) * 32, False)
    assert sum(segment.copies for segment in plan.segments) == 8
    assert all(segment.whole and segment.num_layers == 4 for segment in plan.segments)


def test_block_eight_of_eight_layers_a_stage_checkpoints_all() -> None:
    model = load_model("llama2_7b")
    plan = chunk_plan(parse_setting("full:block:8"), model, (DENSE,) * 8, False)
    assert sum(segment.copies for segment in plan.segments if segment.whole) == 8


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (
            "AssertionError: recompute_granularity must not be full when CUDA Graphs are enabled.",
            "megatron_graph_full_recompute",
        ),
        (
            "AssertionError: recompute method is not yet supported for selective activation "
            "checkpointing",
            "megatron_selective_with_method",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "cuda_out_of_memory",
        ),
    ],
)
def test_its_failures_are_diagnosed(text: str, failure: str) -> None:
    assert failures(text) == [failure]


def test_its_failures_are_refused_before_they_happen() -> None:
    graphs = "--cuda-graph-impl transformer_engine"
    assert refused(f"{FULL} uniform --recompute-num-layers 1 {graphs}", V16) == [
        "cuda_graph_full_recompute"
    ]
    assert refused(f"{SELECTIVE} core_attn --recompute-method uniform", V16) == [
        "selective_with_method"
    ]
    assert refused(f"{SELECTIVE} core_attn --cuda-graph-impl none", V16) == []


def test_fp8_with_recomputed_norms_is_refused_where_it_cannot_work() -> None:
    delayed = f"{SELECTIVE} layernorm {MOE} --fp8-format hybrid"
    assert refused(delayed, V16) == ["fp8_layernorm_recompute"]
    assert refused(f"{delayed} --fp8-recipe mxfp8", V16) == []
    assert "fp8_recompute_te_version" in lint(f"{delayed} --fp8-recipe mxfp8", V16)


def test_seven_billion_on_eight_small_gpus_need_no_recompute() -> None:
    found = advice("llama2_7b", "8xA100-40GB", **batches(2048, 4, 64))
    assert evaluation(found, "none").fits
    assert found.candidates[0].evaluation.setting.spec == "none"


def test_seventy_billion_on_sixty_four_gpus_need_none_either() -> None:
    """The guide recommends core_attn; the best legal layout runs without."""
    found = advice("llama3_70b", "64xA100", seq_length=2048, micro_batch_size=1)
    assert found.candidates[0].evaluation.setting.spec == "none"


def test_gpt3_175b_on_128_gpus_is_answered() -> None:
    found = advice("gpt3_175b", "128xA100", seq_length=2048, micro_batch_size=1)
    assert found.fits


def test_long_sequences_with_context_parallelism_are_answered() -> None:
    found = advice(
        "llama3_8b",
        "64xH100",
        **batches(32768, 1, 64),
        context_parallel_size=4,
        overrides=("model.max_position_embeddings=131072",),
    )
    assert found.fits
    note = next(
        c.note for c in found.candidates if c.evaluation.setting.spec == "selective:core_attn"
    )
    assert note.startswith("saves nothing")


def test_remedies_it_names_are_among_ours() -> None:
    """Sharding the optimizer, a smaller micro batch, more recompute."""
    unsharded = advice(
        "llama3_8b",
        "8xA100",
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        overrides=("layout.use_distributed_optimizer=false",),
    )
    assert not unsharded.fits
    assert any("use_distributed_optimizer=true" in one.change for one in unsharded.remedies)


@pytest.mark.parametrize(
    ("model", "gpus", "spec"),
    [
        ("mixtral_8x7b", "64xA100", "selective:core_attn,moe_act"),
        ("deepseek_v3", "1024xH100", "selective:core_attn,mla_up_proj,moe_act"),
    ],
)
def test_models_with_experts_are_ranked(model: str, gpus: str, spec: str) -> None:
    found = advice(model, gpus)
    assert spec in [c.evaluation.setting.spec for c in found.candidates]


def test_the_release_of_the_guide_crashes_where_uniform_does_not_divide() -> None:
    old = resolve_revision(Framework.MEGATRON_LM, V16)
    assert old.uniform_must_divide
    assert refused(f"{FULL} uniform --recompute-num-layers 3 --num-layers 32", V16) == [
        "uniform_must_divide"
    ]
