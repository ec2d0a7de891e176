"""A community guide to activation checkpointing in Megatron-LM (version 1.0), walked through.

Its numbers are in docs/claims.md; here every option, module, method, example and failure it names.
"""

import pytest

from tests.advisor.jobs import batches, parallel
from tests.seeds.walk import advice, evaluation, lint, refused

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
        **parallel(tp=1, pp=1),
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
