"""The tables of results/published as rows; independent of the advisor.

A cell is text, a truth or a tuple by rank in the columns that say so, else a number; where it is
empty or a range (`96 -> 4608`) it is None. Fields carry Megatron's names and their unit: the column
that one is read from is the one of `_COLUMNS`, or has the field's own name. `peak_memory_gib` is in
GiB in every file, although the column's name says gb; `peak_memory_kind` says allocated or
reserved, and of which rank.
"""

import csv
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

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
    "tokens_check_relative_difference": "check_tokens_rel_diff",
    "attention_share_percent": "attn_share_pct",
}


_TEXTS = (
    "source source_path_or_table model gpu precision zero_or_fsdp recompute attention_impl notes"
    " peak_mem_kind dropout transformer_impl container task recipe recipe_match recipe_extras kind"
    " formula"
)
TEXTS = frozenset(_TEXTS.split())
TRUTHS = frozenset(("sp", "compile", "swiglu", "act_cpu_offload"))
BY_RANK = frozenset(("allocated_gib_by_rank", "reserved_gib_by_rank"))
_FIELDS = {column: field for field, column in _COLUMNS.items()}


class PublishedRow:
    """One row: a field a column, and `num_gpus_text` and `mfu_text` for what may be a range."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.num_gpus_text, self.mfu_text = cells["num_gpus"], cells["mfu"]
        for column, cell in cells.items():
            setattr(self, _FIELDS.get(column, column), parse(cell.strip(), column))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def rounded_tokens(self) -> bool:
        """Whether Megatron Bridge rounds tokens a second, so that TFLOP/s say more."""
        return self.container in ("26.04.01", "26.06.01")


@lru_cache(maxsize=16)
def _rows(name: str) -> tuple[PublishedRow, ...]:
    """All rows of one file; KeyError where a column is missing, ValueError for a broken cell."""
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(map(PublishedRow, csv.DictReader(file)))


def parse(cell: str, column: str) -> Any:
    if not cell or (column not in TEXTS and "->" in cell):
        return None
    if column in TEXTS:
        return cell
    if column in TRUTHS:
        return {"0": False, "1": True, "False": False, "True": True}[cell]
    if column in BY_RANK:  # ``0:66.552;1:66.550``: every rank must be there
        pairs = dict(part.split(":") for part in cell.split(";"))
        return tuple(float(pairs[str(rank)]) for rank in range(len(pairs)))
    return int(cell) if cell.isdigit() else float(cell.removesuffix("%"))


# Tables 2, 4 and 5 of arXiv 2205.05198; `kind` tells a formula from a measured layer or step.
korthikanti2022 = partial(_rows, "korthikanti2022")
# Llama-3 70B cut to 12 layers on eight B200.
simumax_b200 = partial(_rows, "simumax_b200")
# Megatron-LM's CI: peak of the last rank only; `allocated_gib` is after a step.
megatron_lm_ci_golden = partial(_rows, "megatron_lm_ci_golden")
# Weak scaling of Llama 8B, Nemotron 15B and Grok-1 on H100: totals as the READMEs print them.
dgxc_benchmarking = partial(_rows, "dgxc_benchmarking")
# MPT on A100 and H100: `derived_step_time_seconds` is batch times sequence over tokens per second.
llm_foundry = partial(_rows, "llm_foundry")
# Llama and Qwen with FSDP2; `compile` is None where the document does not say.
torchtitan = partial(_rows, "torchtitan")
# GPT from 1.7B to 462B on H100; the strong-scaling row has ranges.
megatron_lm_readme_scaling = partial(_rows, "megatron_lm_readme_scaling")
# Tuned recipes of Megatron Bridge, H100 to GB300; the container says the release.
mbridge_perf_summary = partial(_rows, "mbridge_perf_summary")
# Qwen3-30B-A3B on 16 H100, one change at a time: graphs, overlap, dispatchers.
mbridge_skills = partial(_rows, "mbridge_skills")
# Llama 2 from 7B to 70B under FSDP on A100; the last two rows are from older texts.
ibm_fms_fsdp = partial(_rows, "ibm_fms_fsdp")
# Llama 3.1 8B with 8K to 256K tokens on one node of H200; six rows are versions of torch.
stas_h200_b200 = partial(_rows, "stas_h200_b200")
