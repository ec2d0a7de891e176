"""The published tables are complete, and their figures agree with each other."""

from collections.abc import Callable, Sequence
from math import prod

import pytest

from . import rows as published
from .rows import PUBLISHED, PublishedRow

TABLES: dict[str, tuple[Callable[[], Sequence[PublishedRow]], int]] = {
    "korthikanti2022": (published.korthikanti2022, 13),
    "simumax_b200": (published.simumax_b200, 12),
    "megatron_lm_ci_golden": (published.megatron_lm_ci_golden, 4),
    "dgxc_benchmarking": (published.dgxc_benchmarking, 60),
    "llm_foundry": (published.llm_foundry, 216),
    "torchtitan": (published.torchtitan, 26),
    "megatron_lm_readme_scaling": (published.megatron_lm_readme_scaling, 10),
    "mbridge_perf_summary": (published.mbridge_perf_summary, 114),
    "mbridge_skills": (published.mbridge_skills, 10),
    "ibm_fms_fsdp": (published.ibm_fms_fsdp, 6),
    "stas_h200_b200": (published.stas_h200_b200, 12),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_read_and_names_its_source(name: str) -> None:
    load, count = TABLES[name]
    rows = load()
    assert len(rows) == count
    assert all(row.source and row.source_path_or_table and row.recompute for row in rows)


def test_every_table_of_the_folder_has_a_loader_and_a_place_in_the_readme() -> None:
    files = {path.stem for path in PUBLISHED.glob("*.csv")}
    readme = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    assert files == {*TABLES, "prime_rl", "fine_tuning"}  # rows of research.rows alone
    assert all(f"{name}.csv" in readme for name in files)


@pytest.mark.parametrize("name", TABLES)
def test_layouts_multiply_to_the_number_of_gpus(name: str) -> None:
    """TP x PP x CP x DP = GPUs, where all of them are published."""
    for row in TABLES[name][0]():
        model = (row.tensor_model_parallel_size, row.pipeline_model_parallel_size)
        sizes = (*model, row.context_parallel_size or 1, row.data_parallel_size)
        if row.num_gpus is not None and None not in sizes:
            assert prod(sizes) == row.num_gpus, row.source_path_or_table


def test_simumax_peaks_are_the_maxima_of_their_ranks() -> None:
    """The release measured memory once a layout, so these rows are four points and not twelve."""
    layouts = set()
    for row in published.simumax_b200():
        layout = (row.tensor_model_parallel_size, row.pipeline_model_parallel_size)
        layouts.add((*layout, row.peak_memory_gib))
        assert len(row.allocated_gib_by_rank) == len(row.reserved_gib_by_rank) == row.num_gpus
        assert row.peak_memory_gib == max(row.allocated_gib_by_rank)
        assert row.reserved_gib_max == max(row.reserved_gib_by_rank)
        pairs = zip(row.allocated_gib_by_rank, row.reserved_gib_by_rank, strict=True)
        assert all(reserved >= allocated for allocated, reserved in pairs)
    assert len(layouts) == 4


def test_korthikanti_layer_times_add_up_and_their_overheads_follow() -> None:
    """Table 4 prints 0.1 ms and whole percents of the rounded sums."""
    layers = [row for row in published.korthikanti2022() if row.forward_backward_ms is not None]
    base = next(row for row in layers if row.recompute == "none").forward_backward_ms
    assert base == 19.6
    assert len(layers) == 5
    for row in layers:
        assert row.forward_backward_ms is not None
        assert row.forward_ms + row.backward_ms == pytest.approx(row.forward_backward_ms)
        if row.overhead_percent is not None:
            ratio = row.forward_backward_ms / base
            assert (ratio - 1) * 100 == pytest.approx(row.overhead_percent, abs=0.6)


def test_korthikanti_table_5_throughput_increase() -> None:
    full, present = [row for row in published.korthikanti2022() if row.step_time_seconds]
    increase = full.step_time_seconds / present.step_time_seconds - 1
    assert increase * 100 == pytest.approx(29.0, abs=0.15)  # times are printed to 10 ms
    assert (present.mfu_percent, present.hfu_percent) == (41.5, 43.7)


def test_korthikanti_table_2_has_the_six_formulae() -> None:
    formulae = {row.recompute: row.formula for row in published.korthikanti2022() if row.formula}
    assert len(formulae) == 6
    assert formulae["tensor + sequence parallel + selective"] == "sbh(34/t)"


def test_dgxc_step_times_agree_with_the_tokens_per_second() -> None:
    """global batch x sequence / step time / GPUs; step times are printed to 0.01 s."""
    for row in published.dgxc_benchmarking():
        tokens = row.global_batch_size * row.seq_length / row.step_time_seconds
        assert tokens == pytest.approx(row.readme_total_tokens_per_s, rel=0.015)
        per_gpu = row.readme_total_tokens_per_s / row.num_gpus
        assert per_gpu == pytest.approx(row.tokens_per_second_per_gpu, rel=1e-4)


def test_llm_foundry_hfu_with_checkpointing_is_four_thirds_of_mfu() -> None:
    """So this source measures no recompute overhead: the ratio is its definition."""
    for row in published.llm_foundry():
        ratio = 1.0 if row.recompute == "none" else 4 / 3
        assert row.hfu_percent == pytest.approx(ratio * row.mfu_percent, rel=0.01)
        tokens = row.global_batch_size * row.seq_length
        rate = row.tokens_per_second_per_gpu * row.num_gpus
        assert tokens / rate == pytest.approx(row.derived_step_time_seconds, rel=0.02)


def test_torchtitan_memory_is_reserved_and_that_of_megatrons_goldens_of_the_last_rank() -> None:
    for row in published.torchtitan():
        assert row.peak_memory_gib is None or "reserved" in (row.peak_memory_kind or "")
    for row in published.megatron_lm_ci_golden():
        assert row.peak_memory_gib > row.allocated_gib
        assert "LAST global rank" in (row.peak_memory_kind or "")


def test_megatron_readme_throughput_agrees_with_its_aggregate() -> None:
    weak = [row for row in published.megatron_lm_readme_scaling() if row.num_gpus is not None]
    assert len(weak) == 9
    for row in weak:
        total = row.tflops_per_gpu * row.num_gpus / 1000
        rounding = 0.05 * (1 + row.num_gpus / 1000)  # both figures are printed to one decimal
        assert total == pytest.approx(row.aggregate_pflops, abs=rounding)


def test_bridge_tflops_are_tokens_a_second_times_flops_a_token() -> None:
    """Except releases that round tokens a second; TFLOP/s are printed to 1."""
    for row in published.mbridge_perf_summary():
        made = row.tokens_per_second_per_gpu * row.derived_gflop_per_token / 1000
        assert made == pytest.approx(row.tflops_per_gpu, rel=0.005)
        if row.rounded_tokens:
            assert row.tokens_per_second_per_gpu % 16 == 0


def test_bridge_skills_without_a_batch_are_a_pair() -> None:
    pair = [row for row in published.mbridge_skills() if row.global_batch_size is None]
    without, graphs = (row.step_time_seconds for row in pair)
    assert graphs / without == pytest.approx(0.777, abs=0.001)


def test_fms_rows_that_checkpoint_do_more_than_the_model_needs() -> None:
    table = [row for row in published.ibm_fms_fsdp() if row.global_batch_size]
    assert len(table) == 4
    for row in table:
        assert (row.hfu_percent > row.mfu_percent) == (row.recompute != "No AC")


def test_ml_engineering_memory_grows_with_the_sequence() -> None:
    rows = [row for row in published.stas_h200_b200() if row.peak_memory_gib]
    peaks = {row.seq_length: row.peak_memory_gib for row in rows}
    assert len(peaks) == 6
    assert list(peaks.values()) == sorted(peaks.values())


def test_a_range_is_text_and_no_number() -> None:
    (strong,) = [row for row in published.megatron_lm_readme_scaling() if row.num_gpus is None]
    assert (strong.num_gpus_text, strong.mfu_text) == ("96 -> 4608", "47 -> 42")
    assert strong.mfu_percent is None


@pytest.mark.parametrize(
    ("cell", "column", "value"),
    [
        ("", "mfu", None),
        ("59.99%", "mfu", 59.99),
        ("-0.014", "check_tokens_rel_diff", -0.014),
        ("8", "tp", 8),
        ("False", "sp", False),
        ("1", "sp", True),
        ("47 -> 42", "mfu", None),
        ("47 -> 42", "notes", "47 -> 42"),
        ("1:2.5;0:1.5", "allocated_gib_by_rank", (1.5, 2.5)),
    ],
)
def test_cells(cell: str, column: str, value: object) -> None:
    assert published.parse(cell, column) == value


@pytest.mark.parametrize(
    ("cell", "column"), [("yes", "sp"), ("many", "tp"), ("0:1;2:1", "allocated_gib_by_rank")]
)
def test_broken_cells_are_refused(cell: str, column: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        published.parse(cell, column)
