"""Every target is the job of its row: degrees, tokens, batch and seconds."""

from collections.abc import Sequence

import pytest

from advisor.base.dtypes import Precision
from harness.calibration.rows import SOURCES, all_targets
from harness.calibration.rows.bridge_skills import bridge_skills_targets
from harness.calibration.rows.bridge_summary import bridge_summary_targets
from harness.calibration.rows.dgxc import dgxc_targets
from harness.calibration.rows.korthikanti import korthikanti_targets
from harness.calibration.rows.row import spec_of
from harness.calibration.rows.simumax import simumax_targets
from harness.calibration.targets import Quantity, Target
from tests.published import rows as published
from tests.published.rows import BridgeSummaryRow, PublishedRow


def _pairs(
    targets: Sequence[Target], rows: Sequence[PublishedRow]
) -> list[tuple[Target, PublishedRow]]:
    return list(zip(targets, rows, strict=True))


DGXC = _pairs(
    dgxc_targets(), [row for row in published.dgxc_benchmarking() if "LoRA" not in row.model]
)
SIMUMAX = _pairs(simumax_targets(), published.simumax_b200())
SUMMARY = _pairs(
    bridge_summary_targets(),
    [row for row in published.mbridge_perf_summary() if row.task != "LoRA"],
)
SKILLS = _pairs(
    [one for one in bridge_skills_targets() if one.quantity is Quantity.STEP],
    [row for row in published.mbridge_skills() if row.global_batch_size],
)


@pytest.mark.parametrize(
    ("target", "row"),
    [*DGXC, *SIMUMAX, *SUMMARY, *SKILLS],
    ids=lambda one: one.name if isinstance(one, Target) else "",
)
def test_a_job_has_the_degrees_and_the_batch_of_its_row(target: Target, row: PublishedRow) -> None:
    layout, config = target.job.layout, target.job.config
    assert target.job.num_gpus == row.num_gpus
    assert (row.gpu or "").removeprefix("DGX-").split(" ")[0] in target.job.gpu.name
    assert layout.tensor_model_parallel_size == row.tensor_model_parallel_size
    assert layout.pipeline_model_parallel_size == row.pipeline_model_parallel_size
    assert layout.virtual_pipeline_model_parallel_size == (
        row.virtual_pipeline_model_parallel_size or 1
    )
    assert layout.context_parallel_size == (row.context_parallel_size or 1)
    assert layout.data_parallel_size == row.data_parallel_size
    assert layout.expert_model_parallel_size == (row.expert_model_parallel_size or 1)
    tokens = config.global_batch_size * config.seq_length
    assert tokens == (row.global_batch_size or 0) * (row.seq_length or 0)
    of_one_pass = (row.micro_batch_size or 0) * (row.seq_length or 0)
    assert config.micro_batch_size * config.seq_length == of_one_pass


@pytest.mark.parametrize(
    ("target", "row"),
    [*DGXC, *SIMUMAX, *SKILLS],
    ids=lambda one: one.name if isinstance(one, Target) else "",
)
def test_seconds_are_those_of_the_row(target: Target, row: PublishedRow) -> None:
    assert target.seconds == row.step_time_seconds


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
    for target, row in SUMMARY:
        assert isinstance(row, BridgeSummaryRow)
        config = target.job.config
        tokens = config.global_batch_size * config.seq_length / target.job.num_gpus
        assert row.tokens_per_second_per_gpu
        rel = 0.035 if row.rounded_tokens else 1e-9
        assert tokens / target.seconds == pytest.approx(row.tokens_per_second_per_gpu, rel=rel)


def test_a_recipe_completes_what_a_row_does_not_say() -> None:
    h100 = next(one for one, _ in SUMMARY if one.name == "LLAMA3_70B H100 64 FP8 26.04")
    config, layout = h100.job.config, h100.job.layout
    assert config.precision is Precision.FP8_CURRENT
    assert config.fp8_param_gather
    assert layout.tp_comm_overlap
    assert layout.splits_evenly
    assert str(h100.job.model.cross_entropy_fusion) == "te"


def test_deepseek_is_cut_as_bridge_cuts_it() -> None:
    deepseek = [one for one, _ in SUMMARY if one.job.model.name == "deepseek_v3"]
    assert len(deepseek) == 11
    texts = {one.job.layout.pipeline_model_parallel_layout for one in deepseek}
    assert texts == {"Et*4|(t*4|)*14tmL"}


def test_what_no_job_says_is_carried_along() -> None:
    by_name = {one.name: one for one, _ in SUMMARY}
    target = by_name["LLAMA3_70B GB200 64 FP8 26.04"]
    assert dict(target.options)["use_megatron_fsdp"] == "True"
    assert "cpu_offloading" in target.setting.spec


def test_the_rows_without_a_batch_are_a_ratio() -> None:
    (ratio,) = [one for one in bridge_skills_targets() if one.quantity is Quantity.RATIO]
    assert ratio.seconds == pytest.approx(0.777, abs=0.001)
    assert ratio.baseline is not None
    assert ratio.baseline.config.cuda_graph_impl == "none"
    assert ratio.job.config.cuda_graph_modules == ("attn", "moe_router", "moe_preprocess")


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
