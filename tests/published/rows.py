"""The tables of results/published as typed rows; independent of the advisor.

A row has one class a file. Numbers are parsed, an empty cell is None, a range (`96 -> 4608`) is
None as a number and kept as text beside it. Fields carry Megatron's names and their unit; the
column a field is read from is the one of `_COLUMNS`, or has the field's own name.
"""

import csv
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

_COLUMNS = {
    "params_billion": "params_b",
    "gpu_memory_gb": "gpu_mem_gb",
    "seq_length": "seq_len",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "tensor_model_parallel_size": "tp",
    "sequence_parallel": "sp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "data_parallel_size": "dp",
    "peak_memory_gib": "peak_mem_gb",
    "peak_memory_kind": "peak_mem_kind",
    "step_time_seconds": "step_time_s",
    "tokens_per_second_per_gpu": "tokens_per_s_per_gpu",
    "mfu_percent": "mfu",
    "hfu_percent": "hfu",
    "hidden_size": "hidden",
    "num_layers": "layers",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_groups",
    "ffn_hidden_size": "ffn",
    "num_moe_experts": "experts",
    "moe_router_topk": "topk",
    "vocab_size": "vocab",
    "forward_ms": "fwd_ms",
    "backward_ms": "bwd_ms",
    "forward_backward_ms": "fwd_bwd_ms",
    "overhead_percent": "overhead_pct_vs_no_recompute_no_sp",
    "throughput_increase_percent": "throughput_increase_pct",
    "num_microbatches": "mbc",
    "simumax_predicted_allocated_gib": "simumax_pred_alloc_gib",
    "simumax_predicted_step_ms": "simumax_pred_ms",
    "derived_step_time_seconds": "derived_step_time_s",
    "allocated_gib": "mem_allocated_gib",
    "num_gpus_text": "num_gpus",
    "mfu_text": "mfu",
    "tokens_check_relative_difference": "check_tokens_rel_diff",
    "attention_share_percent": "attn_share_pct",
}


class PublishedRow(Struct, frozen=True, kw_only=True):
    """The columns that all tables share. `peak_memory_gib` is in GiB in every file, although the
    column's name says gb; `peak_memory_kind` says allocated or reserved, and of which rank."""

    source: str
    source_path_or_table: str
    model: str
    params_billion: float | None
    gpu: str | None
    gpu_memory_gb: float | None
    num_gpus: int | None
    precision: str | None
    seq_length: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    tensor_model_parallel_size: int | None
    sequence_parallel: bool | None
    pipeline_model_parallel_size: int | None
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int | None
    expert_model_parallel_size: int | None
    data_parallel_size: int | None
    zero_or_fsdp: str | None
    recompute: str
    attention_impl: str | None
    peak_memory_gib: float | None
    peak_memory_kind: str | None
    step_time_seconds: float | None
    tokens_per_second_per_gpu: float | None
    tflops_per_gpu: float | None
    mfu_percent: float | None
    hfu_percent: float | None
    notes: str | None


class KorthikantiRow(PublishedRow, frozen=True, kw_only=True):
    """arXiv 2205.05198: `kind` tells a formula (bytes a layer) from a measured layer or step."""

    kind: str
    num_attention_heads: int | None
    hidden_size: int | None
    num_layers: int | None
    vocab_size: int | None
    forward_ms: float | None
    backward_ms: float | None
    forward_backward_ms: float | None
    overhead_percent: float | None
    throughput_increase_percent: float | None
    formula: str | None


class SimuMaxRow(PublishedRow, frozen=True, kw_only=True):
    """B200, measured; the by-rank tuples are in the order of the ranks, in GiB."""

    num_layers: int
    num_microbatches: int
    reserved_gib_max: float
    reported_real_alloc_gib: float
    allocated_gib_by_rank: tuple[float, ...]
    reserved_gib_by_rank: tuple[float, ...]
    simumax_predicted_allocated_gib: float
    simumax_predicted_step_ms: float


class MegatronGoldenRow(PublishedRow, frozen=True, kw_only=True):
    """Megatron-LM's CI: peak of the last rank only; `allocated_gib` is after a step."""

    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_query_groups: int
    ffn_hidden_size: int | None
    num_moe_experts: int | None
    moe_router_topk: int | None
    swiglu: bool | None
    dropout: str | None
    transformer_impl: str
    allocated_gib: float
    n_steps_median: int


class DgxcRow(PublishedRow, frozen=True, kw_only=True):
    """dgxc-benchmarking: totals as its READMEs print them, and what follows from them."""

    readme_total_tokens_per_s: float
    readme_model_flops_per_seq: float | None
    derived_tflops_per_gpu: float | None
    tokens_check_relative_difference: float


class LlmFoundryRow(PublishedRow, frozen=True, kw_only=True):
    """llm-foundry: `derived_step_time_seconds` is batch times sequence over tokens per second."""

    grad_accum: int
    num_params: int
    act_cpu_offload: bool
    derived_step_time_seconds: float


class TorchtitanRow(PublishedRow, frozen=True, kw_only=True):
    """torchtitan: `compile` is None where the document does not say."""

    compile: bool | None


class ReadmeScalingRow(PublishedRow, frozen=True, kw_only=True):
    """Megatron-LM's README; the strong-scaling row has ranges, kept in the text fields."""

    num_attention_heads: int | None
    hidden_size: int | None
    num_layers: int | None
    vocab_size: int | None
    aggregate_pflops: float | None
    num_gpus_text: str
    mfu_text: str


class BridgeSummaryRow(PublishedRow, frozen=True, kw_only=True):
    """Megatron Bridge's summary: the container says the release, `recipe_extras` the workload
    configuration; releases of `rounded_tokens` print tokens a second in coarse steps."""

    container: str
    task: str
    recipe: str
    recipe_match: str
    recipe_extras: str | None
    derived_gflop_per_token: float

    @property
    def rounded_tokens(self) -> bool:
        """Whether tokens a second are rounded, so that TFLOP/s say more."""
        return self.container in ("26.04.01", "26.06.01")


class BridgeSkillsRow(PublishedRow, frozen=True, kw_only=True):
    """Megatron Bridge's notes on performance: one change at a time on 16 H100."""


class FmsFsdpRow(PublishedRow, frozen=True, kw_only=True):
    """IBM's FSDP throughput; the last two rows are from older texts."""


class MlEngineeringRow(PublishedRow, frozen=True, kw_only=True):
    """One node of H200: TFLOP/s of the model, attention halved; six rows are versions of torch."""

    attention_share_percent: float | None


Row = TypeVar("Row", bound=PublishedRow)


def korthikanti2022() -> tuple[KorthikantiRow, ...]:
    """Tables 2, 4 and 5 of the paper on activation recomputation."""
    return _rows(KorthikantiRow, "korthikanti2022")


def simumax_b200() -> tuple[SimuMaxRow, ...]:
    """Measured Llama-3 70B cut to 12 layers on eight B200."""
    return _rows(SimuMaxRow, "simumax_b200")


def megatron_lm_ci_golden() -> tuple[MegatronGoldenRow, ...]:
    """Golden values of Megatron-LM's own CI."""
    return _rows(MegatronGoldenRow, "megatron_lm_ci_golden")


def dgxc_benchmarking() -> tuple[DgxcRow, ...]:
    """Weak scaling of Llama 8B, Nemotron 15B and Grok-1 on H100."""
    return _rows(DgxcRow, "dgxc_benchmarking")


def llm_foundry() -> tuple[LlmFoundryRow, ...]:
    """MPT throughput on A100 and H100."""
    return _rows(LlmFoundryRow, "llm_foundry")


def torchtitan() -> tuple[TorchtitanRow, ...]:
    """Llama and Qwen throughput and reserved memory with FSDP2."""
    return _rows(TorchtitanRow, "torchtitan")


def megatron_lm_readme_scaling() -> tuple[ReadmeScalingRow, ...]:
    """GPT from 1.7B to 462B on H100."""
    return _rows(ReadmeScalingRow, "megatron_lm_readme_scaling")


def mbridge_perf_summary() -> tuple[BridgeSummaryRow, ...]:
    """Tuned recipes of Megatron Bridge, H100 to GB300."""
    return _rows(BridgeSummaryRow, "mbridge_perf_summary")


def mbridge_skills() -> tuple[BridgeSkillsRow, ...]:
    """Qwen3-30B-A3B on 16 H100: graphs, overlap, dispatchers."""
    return _rows(BridgeSkillsRow, "mbridge_skills")


def ibm_fms_fsdp() -> tuple[FmsFsdpRow, ...]:
    """Llama 2 from 7B to 70B under FSDP on A100."""
    return _rows(FmsFsdpRow, "ibm_fms_fsdp")


def stas_h200_b200() -> tuple[MlEngineeringRow, ...]:
    """Llama 3.1 8B with 8K to 256K tokens on one node of H200."""
    return _rows(MlEngineeringRow, "stas_h200_b200")


@lru_cache(maxsize=16)
def _rows(row: type[Row], name: str) -> tuple[Row, ...]:
    """All rows of one file; KeyError where a column is missing, ValueError for a broken cell."""
    hints = get_type_hints(row)
    columns = {item.name: _COLUMNS.get(item.name, item.name) for item in fields(row)}
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            row(**{field: _parse(cells[column], hints[field]) for field, column in columns.items()})
            for cells in csv.DictReader(file)
        )


def _parse(cell: str, hint: Any) -> Any:
    """One cell as its field's type; None for an empty cell or a range, where the field allows."""
    cell = cell.strip()
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    optional = NoneType in get_args(hint)
    if optional and (not cell or ("->" in cell and str not in kinds)):
        return None
    if hint == tuple[float, ...]:
        return _by_rank(cell)
    if kinds[0] is bool:
        return {"0": False, "1": True, "False": False, "True": True}[cell]
    if kinds[0] is float:
        return float(cell.removesuffix("%"))
    return kinds[0](cell)


def _by_rank(cell: str) -> tuple[float, ...]:
    """``0:66.552;1:66.550`` as values in the order of the ranks; every rank must be there."""
    pairs = dict(part.split(":") for part in cell.split(";"))
    return tuple(float(pairs[str(rank)]) for rank in range(len(pairs)))
