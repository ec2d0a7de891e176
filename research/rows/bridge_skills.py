"""Megatron Bridge's performance notes: Qwen3-30B-A3B on 16 H100, one thing changed at a time.

Routing is forced to balance. The canonical rows are the recipe of main with HybridEP, which
overlaps expert communication without delayed weight gradients; the others name all-to-all, no fused
permutation, and their CUDA graphs in the attention column (without modules: the recipe's). Two rows
state neither batch nor sequence: of these only the ratio counts, for 4,096 tokens and the 24
sequences that are nearest to what their TFLOP/s and seconds make.
"""

import re
from pathlib import Path
from typing import Any, Final

from advisor.base.dtypes import Precision
from research.rows.bridge_runs import BridgeRun, bridge_job
from research.rows.row import (
    PUBLISHED,
    Row,
    RowJob,
    batch_of,
    degree,
    read_rows,
    setting_of,
)
from research.rows.targets import Quantity, Target

_MODEL: Final = "qwen3_30b_a3b"
_RELEASE: Final = "main"
_RECIPE: Final = "main@067f987"
_ASSUMED: Final = {"seq_len": "4096", "mbs": "1", "gbs": "24"}
_GRAPHS: Final = re.compile(r"TE CUDA graph ([\w+]+)")


def bridge_skills_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """The rows with a batch, and the ratio of the two without."""
    rows = read_rows(folder, "mbridge_skills")
    without, graphs = (row for row in rows if not row["gbs"])
    steps = (_step(row) for row in rows if row["gbs"])
    return (*steps, _ratio(graphs, without))


def _step(row: Row) -> Target:
    done = _job(row)
    short = "a smoke test of 5 steps" if "smoke" in row["notes"] else ""
    return _target(row, done, float(row["step_time_s"]), judged_only=short, comparable=not short)


def _ratio(graphs: Row, without: Row) -> Target:
    """Step with CUDA graphs over step without."""
    done, baseline = (_job({**row, **_ASSUMED}) for row in (graphs, without))
    ratio = float(graphs["step_time_s"]) / float(without["step_time_s"])
    return _target(graphs, done, ratio, quantity=Quantity.RATIO, baseline=baseline.job)


def _target(row: Row, done: RowJob, seconds: float, **more: Any) -> Target:
    about = row["notes"].split(";")[0]
    return Target(
        name=f"Qwen3-30B 16xH100 {about}",
        table="mbridge_skills",
        family=f"Qwen3-30B 16xH100 {done.job.config.cuda_graph_modules} {done.options} {about}",
        group="Bridge skills",
        source=f"Megatron Bridge {row['source_path_or_table']}",
        job=done.job,
        setting=setting_of(done.job),
        seconds=seconds,
        options=done.options,
        **more,
    )


def _job(row: Row) -> RowJob:
    run = BridgeRun(
        model=_MODEL,
        gpus=f"{row['num_gpus']}xH100",
        release=_RELEASE,
        precision=Precision.BF16,
        fields={
            **batch_of(row),
            "tensor_model_parallel_size": degree(row, "tp"),
            "sequence_parallel": row["sp"] == "1",
            "pipeline_model_parallel_size": degree(row, "pp"),
            "virtual_pipeline_model_parallel_size": degree(row, "vpp"),
            "expert_model_parallel_size": degree(row, "ep"),
            **({"moe_permute_fusion": False} if _is_unfused(row) else {}),
        },
        extras=_extras(row),
    )
    return bridge_job(run)


def _is_unfused(row: Row) -> bool:
    return "moe_permute_fusion=false" in row["attention_impl"]


def _extras(row: Row) -> dict[str, str]:
    """The row's words as the fields of a workload configuration."""
    words = f"{row['attention_impl']}; {row['notes']}"
    found = {}
    graphs = _GRAPHS.search(words)
    if graphs is not None:
        found["cuda_graph_impl"] = "transformer_engine"
        found["cuda_graph_scope"] = graphs[1]
    elif "TE CUDA graph" in words:
        found["cuda_graph_impl"] = "transformer_engine"
        found["cuda_graph_scope"] = "moe_router moe_preprocess"
    if "HybridEP" in words:
        found["moe_flex_dispatcher_backend"] = "hybridep"
    overlaps = re.search(r"EP overlap(?! off)|canonical recipe", words) is not None
    if overlaps and "no EP overlap" not in words:
        found["moe_a2a_overlap"] = "True"
        found["delay_wgrad_compute"] = str("delay_wgrad" in words)
    return found
