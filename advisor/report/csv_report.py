"""`--format csv`: one row a candidate, raw bytes and seconds, names as in the JSON report."""

import csv
import io
from typing import Any

from advisor.answer.advice import Advice, Candidate
from advisor.report.json_report import SCALARS, plain
from advisor.report.setting_flags import all_flags


def csv_report(advice: Advice, *, top: int | None = None) -> str:
    """Head and one line for each of the `top` best candidates (all where None)."""
    text = io.StringIO()
    rows = [_row(candidate) for candidate in advice.candidates[:top]]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    if rows:
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _row(candidate: Candidate) -> dict[str, Any]:
    evaluation = candidate.evaluation
    job, peak = evaluation.job, evaluation.peak
    layout = job.layout
    row = {
        "rank": candidate.rank,
        "model": job.model.name,
        "gpu": job.gpu.name,
        "num_gpus": job.num_gpus,
        "tensor_model_parallel_size": layout.tensor_model_parallel_size,
        "sequence_parallel": layout.sequence_parallel,
        "context_parallel_size": layout.context_parallel_size,
        "cp_comm_type": layout.cp_comm_type,
        "pipeline_model_parallel_size": layout.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": layout.virtual_pipeline_model_parallel_size,
        "expert_model_parallel_size": layout.expert_model_parallel_size,
        "expert_tensor_parallel_size": layout.expert_tensor_parallel_size,
        "data_parallel_size": layout.data_parallel_size,
        "micro_batch_size": job.config.micro_batch_size,
        "recompute": evaluation.setting.spec,
        "fits": evaluation.fits,
        "pareto": candidate.pareto,
        "fit_probability": evaluation.fit_probability,
        "budget_bytes": evaluation.budget_bytes,
        "peak_allocated_bytes": max(s.peak_allocated_bytes for s in evaluation.stages),
        "peak_reserved_bytes": peak.peak_reserved_bytes,
        "peak_stage": peak.stage,
    }
    row |= {f"{name}_bytes": size for name, size in plain(peak.memory_bytes).items()}
    row |= _times(candidate)
    flags = {f"{name}_flags": words for name, words in all_flags(evaluation).items()}
    return row | flags | {"note": candidate.note}


def _times(candidate: Candidate) -> dict[str, Any]:
    evaluation = candidate.evaluation
    times = {name: getattr(evaluation, name) for name in SCALARS}
    return times | {f"{k}_seconds": v for k, v in plain(evaluation.time_seconds).items()}
