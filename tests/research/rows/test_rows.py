"""Every target is the job of its row: degrees, tokens, batch and seconds."""

from collections.abc import Callable, Iterable
from functools import cache

import pytest

from advisor.base.dtypes import Precision
from advisor.layers.parameters import parameter_count
from research.rows import SOURCES, all_targets
from research.rows.bridge_skills import bridge_skills_targets
from research.rows.bridge_summary import bridge_summary_targets
from research.rows.dgxc import dgxc_targets
from research.rows.fms_fsdp import fms_fsdp_targets, spec_of_flops
from research.rows.korthikanti import korthikanti_targets
from research.rows.llm_foundry import llm_foundry_targets
from research.rows.megatron_ci import megatron_ci_targets
from research.rows.megatron_readme import megatron_readme_targets
from research.rows.ml_engineering import ml_engineering_targets, model_flops_per_token
from research.rows.row import spec_of
from research.rows.simumax import simumax_targets
from research.rows.targets import Quantity, Target
from research.rows.torchtitan_docs import torchtitan_targets
from tests.published import rows as published
from tests.published.rows import PublishedRow

STATED = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size")
BLANK_IS_1 = (
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
PAIRS: dict[str, Callable[[], tuple[Iterable[Target], Iterable[PublishedRow]]]] = {
    "dgxc": lambda: (
        dgxc_targets(),
        [row for row in published.dgxc_benchmarking() if "LoRA" not in row.model],
    ),
    "simumax": lambda: (simumax_targets(), published.simumax_b200()),
    "summary": lambda: (
        bridge_summary_targets(),
        [row for row in published.mbridge_perf_summary() if row.task != "LoRA"],
    ),
    "skills": lambda: (
        [one for one in bridge_skills_targets() if one.quantity is Quantity.STEP],
        [row for row in published.mbridge_skills() if row.global_batch_size],
    ),
    "mpt": lambda: (
        llm_foundry_targets(),
        [row for row in published.llm_foundry() if row.precision != "amp_fp8"],
    ),
    "fms": lambda: (
        [one for one in fms_fsdp_targets() if not one.name.endswith("not compiled")],
        [row for row in published.ibm_fms_fsdp() if row.global_batch_size],
    ),
    "one node": lambda: (ml_engineering_targets(), published.stas_h200_b200()),
    "readme": lambda: (
        megatron_readme_targets(),
        [row for row in published.megatron_lm_readme_scaling() if row.tflops_per_gpu],
    ),
    "titan": lambda: (
        torchtitan_targets(),
        [
            row
            for row in published.torchtitan()
            if not row.gpu.startswith("not") and not row.precision.endswith("rowwise")
        ],
    ),
}


@cache
def pairs(source: str) -> list[tuple[Target, PublishedRow]]:
    """The targets of a source, each with its row."""
    return list(zip(*PAIRS[source](), strict=True))


@pytest.mark.parametrize("source", ["dgxc", "simumax", "summary", "skills", "mpt", "fms"])
def test_a_job_has_the_degrees_and_the_batch_of_its_row(source: str) -> None:
    for target, row in pairs(source):
        config = target.job.config
        assert (row.gpu or "").removeprefix("DGX-").split(" ")[0] in target.job.gpu.name
        for name in (*STATED, *BLANK_IS_1):
            degree = getattr(row, name) or (1 if name in BLANK_IS_1 else None)
            assert getattr(target.job.layout, name) == degree, (target.name, name)
        tokens = config.global_batch_size * config.seq_length, target.job.num_gpus
        assert tokens == ((row.global_batch_size or 0) * (row.seq_length or 0), row.num_gpus)
        of_one_pass = (row.micro_batch_size or 0) * (row.seq_length or 0)
        assert config.micro_batch_size * config.seq_length == of_one_pass, target.name


@pytest.mark.parametrize("source", ["dgxc", "simumax", "skills"])
def test_seconds_are_those_of_the_row(source: str) -> None:
    for target, row in pairs(source):
        assert target.seconds == row.step_time_seconds, target.name


def test_korthikanti_targets_are_the_layers_and_steps_of_the_paper() -> None:
    rows = published.korthikanti2022()
    layers = [one for one in korthikanti_targets() if one.quantity is Quantity.LAYER]
    seconds = [row.forward_backward_ms for row in rows if row.forward_backward_ms]
    assert [one.seconds * 1000 for one in layers] == pytest.approx(seconds)
    steps = [one for one in korthikanti_targets() if one.quantity is Quantity.STEP]
    assert [one.seconds for one in steps] == [
        row.step_time_seconds for row in rows if row.step_time_seconds
    ]


def test_seconds_of_the_summary_make_its_throughput() -> None:
    """Tokens a second where they are exact; to 3 % where the release rounds them."""
    for target, row in pairs("summary"):
        config = target.job.config
        tokens = config.global_batch_size * config.seq_length / target.job.num_gpus
        rel = 0.035 if row.rounded_tokens else 1e-9
        assert tokens / target.seconds == pytest.approx(row.tokens_per_second_per_gpu, rel=rel)


def test_a_recipe_completes_what_a_row_does_not_say() -> None:
    h100 = next(one for one, _ in pairs("summary") if one.name == "LLAMA3_70B H100 64 FP8 26.04")
    config, layout = h100.job.config, h100.job.layout
    assert config.precision is Precision.FP8_CURRENT
    assert config.fp8_param_gather
    assert layout.tp_comm_overlap
    assert layout.splits_evenly
    assert str(h100.job.model.cross_entropy_fusion) == "te"


def test_deepseek_is_cut_as_bridge_cuts_it() -> None:
    deepseek = [one for one, _ in pairs("summary") if one.job.model.name == "deepseek_v3"]
    assert len(deepseek) == 11
    texts = {one.job.layout.pipeline_model_parallel_layout for one in deepseek}
    assert texts == {"Et*4|(t*4|)*14tmL"}


def test_shared_experts_run_with_a_plain_all_to_all_alone() -> None:
    overlapped = [
        one.name for one, _ in pairs("summary") if one.job.model.moe_shared_expert_overlap
    ]
    assert overlapped == ["DeepSeekV3 (w/ MTP) B200 256 FP8-MX 25.11"]


def test_what_no_job_says_is_carried_along() -> None:
    assert all(dict(one.options)["fsdp_version"] == "1" for one, _ in pairs("mpt"))
    by_name = {one.name: one for one, _ in pairs("summary")}
    target = by_name["LLAMA3_70B GB200 64 FP8 26.04"]
    assert target.job.layout.data_parallel_sharding == "full"
    assert "cpu_offloading" in target.setting.spec


def test_the_rows_without_a_batch_are_a_ratio() -> None:
    (ratio,) = [one for one in bridge_skills_targets() if one.quantity is Quantity.RATIO]
    assert ratio.seconds == pytest.approx(0.777, abs=0.001)
    assert ratio.baseline.config.cuda_graph_impl == "none"
    assert ratio.job.config.cuda_graph_modules == ("attn", "moe_router", "moe_preprocess")


def test_mpt_has_the_published_number_of_parameters() -> None:
    for target, row in pairs("mpt"):
        assert parameter_count(target.job.model).total == row.num_params
        assert target.seconds == row.derived_step_time_seconds
        assert (target.setting.spec == "none") == (row.recompute == "none")
        assert row.zero_or_fsdp
        sharding = "gradients" if "SHARD_GRAD_OP" in row.zero_or_fsdp else "full"
        assert target.job.layout.data_parallel_sharding == sharding


@pytest.mark.parametrize("source", ["fms", "titan"])
def test_seconds_make_the_tokens_a_second(source: str) -> None:
    for target, row in pairs(source):
        config, name = target.job.config, target.name
        tokens = config.global_batch_size * config.seq_length / target.job.num_gpus
        rate = tokens / target.seconds
        assert rate == pytest.approx(row.tokens_per_second_per_gpu), name
        assert target.job.num_gpus == row.num_gpus, name
        assert target.job.layout.tensor_model_parallel_size == row.tensor_model_parallel_size, name


@pytest.mark.parametrize(
    ("ratio", "spec"), [(1.0, "none"), (69 / 61, "selective:3"), (74 / 55, "full")]
)
def test_checkpointing_follows_from_the_flops(ratio: float, spec: str) -> None:
    assert spec_of_flops(ratio) == spec


def test_shares_of_attention_are_those_that_the_source_prints() -> None:
    for target, row in pairs("one node"):
        if row.attention_share_percent is None:
            continue
        job = target.job
        model = job.model
        attention = 6 * model.num_layers * model.query_projection_size * job.config.seq_length
        share = 100 * attention / model_flops_per_token(job)
        assert share == pytest.approx(row.attention_share_percent, abs=0.75)
        flops = job.config.seq_length * model_flops_per_token(job)
        assert flops / target.seconds / 1e12 == pytest.approx(row.tflops_per_gpu)


def test_sizes_of_the_readme_are_those_of_its_models() -> None:
    for target, row in pairs("readme"):
        billions = parameter_count(target.job.model).total / 1e9
        assert row.params_billion
        assert billions == pytest.approx(row.params_billion, rel=0.04)
        assert target.job.num_gpus == row.num_gpus
        assert target.judged_only


def test_a_step_of_the_ci_has_three_microbatches() -> None:
    targets = megatron_ci_targets()
    assert [one.job.num_microbatches for one in targets] == [3, 3]
    rows = [row for row in published.megatron_lm_ci_golden() if "15b" in row.model]
    assert [one.seconds for one in targets] == [row.step_time_seconds for row in rows]


def test_every_table_has_targets_and_names_are_unique() -> None:
    targets = all_targets()
    assert {one.table for one in targets} == set(SOURCES)
    names = [(one.table, one.name) for one in targets]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        ("none (no recompute override in the perf config)", "none"),
        ("selective, recompute_modules=['mla_up_proj', 'mlp']", "selective:mla_up_proj,mlp"),
        ("selective with empty module list = no recompute", "none"),
        ("full, recompute_method=block, recompute_num_layers=5", "full:block:5"),
    ],
)
def test_recompute_in_words(words: str, spec: str) -> None:
    assert spec_of(words) == spec
