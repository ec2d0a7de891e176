"""`--format json`: the whole answer as one strict JSON object, schema version 1.

Sizes are bytes, times seconds, rates per second. Keys may be added; while the version is 1 none is
renamed or removed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from advisor.answer.advice import Advice, Candidate, Evaluation, Rejection, StageMemory
from advisor.job.job import Job
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.plan.recompute_plan import Setting
from advisor.report.setting_flags import all_flags
from advisor.report.wording import chosen

SCHEMA_VERSION: Final = 1
SCALARS: Final = (
    "step_time_seconds",
    "step_time_low_seconds",
    "step_time_high_seconds",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "recompute_overhead",
)
"""Keys of a candidate that are attributes of its evaluation under the same name."""


def json_report(advice: Advice, *, top: int | None = None, explained: int | None = None) -> str:
    """The answer with its `top` best candidates (all where None), with a final newline."""
    report = _finite(report_object(advice, top=top, explained=explained))
    return json.dumps(report, allow_nan=False, ensure_ascii=False, indent=2) + "\n"


def report_object(
    advice: Advice, *, top: int | None = None, explained: int | None = None
) -> dict[str, Any]:
    """The object before it is written; `explained` is the rank that `explain` is about."""
    best = chosen(advice)
    report = {
        "schema_version": SCHEMA_VERSION,
        "fits": advice.fits,
        "job": _job(advice.job, best.evaluation if best else None),
        "assumptions": list(advice.assumptions),
        "evaluated": advice.evaluated,
        "calibration": plain(advice.calibration),
        "candidates": [_candidate(candidate) for candidate in advice.candidates[:top]],
        "rejected": [_rejection(rejection) for rejection in advice.rejected],
        "remedies": [plain(remedy) for remedy in advice.remedies],
    }
    wanted = next((c for c in advice.candidates if c.rank == explained), None)
    return {**report, "explain": _explain(wanted)} if wanted else report


def plain(instance: Any) -> dict[str, Any]:
    """Fields of a dataclass of plain values; enums become their strings, tuples lists."""
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _job(job: Job, evaluation: Evaluation | None) -> dict[str, Any]:
    from advisor.layers.parameters import active_parameters, parameter_count

    count = parameter_count(job.model).total
    gpu = plain(job.gpu)
    return {
        "model": {
            **plain(job.model),
            "num_parameters": count,
            "num_active_parameters": active_parameters(job.model),
        },
        "layout": plain(job.layout),
        "gpus": {"count": job.num_gpus, "type": gpu.pop("name"), **gpu},
        **plain(job.config),
        "model_flops_per_step": evaluation.model_flops_per_step if evaluation else None,
    }


_NO_WORDS: Final[dict[str, Any]] = {
    "granularity": None,
    "modules": None,
    "method": None,
    "num_layers": None,
    "distribute_saved_activations": False,
    "offload_modules": [],
}
"""Keys of the contract that a framework may have no word for."""


def recompute(setting: Setting) -> dict[str, Any]:
    """A setting with its short spelling; `effective_modules` are those after promotion."""
    return {
        "spec": setting.spec,
        **_NO_WORDS,
        **plain(setting),
        "effective_modules": list(getattr(setting, "effective_modules", ())),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    evaluation = candidate.evaluation
    peak = evaluation.peak
    return {
        "rank": candidate.rank,
        "recompute": recompute(evaluation.setting),
        "layout": plain(evaluation.job.layout),
        "micro_batch_size": evaluation.job.config.micro_batch_size,
        "fits": evaluation.fits,
        "pareto": candidate.pareto,
        "preset": candidate.preset,
        "note": candidate.note,
        "fit_probability": evaluation.fit_probability,
        "budget_bytes": evaluation.budget_bytes,
        "peak_allocated_bytes": max(s.peak_allocated_bytes for s in evaluation.stages),
        "peak_reserved_bytes": peak.peak_reserved_bytes,
        "peak_stage": peak.stage,
        "stages": [_stage(stage) for stage in evaluation.stages],
        "saved_bytes_per_layer": _saved(evaluation.saved_bytes_per_layer),
        "time_seconds": plain(evaluation.time_seconds),
        **{name: getattr(evaluation, name) for name in SCALARS},
        "verification": plain(candidate.verification) if candidate.verification else None,
        "flags": {str(name): flags for name, flags in all_flags(evaluation).items()},
    }


def _saved(kept: Mapping[LayerKind, int]) -> dict[str, int | None]:
    """One layer with an MLP and one with experts, null where the model has none; then every kind by
    its mixer and its feed-forward part, as a hybrid's layers have one of the two."""
    saved: dict[str, int | None] = {"dense": None, "moe": None}
    words = {FeedForward.DENSE: "dense", FeedForward.MOE: "moe"}
    for kind, size in kept.items():
        word = words.get(kind.feed_forward)
        if word and saved[word] is None:
            saved[word] = size
        saved.setdefault(kind.name, size)
    return saved


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {**plain(stage), "memory_bytes": plain(stage.memory_bytes)}


def _explain(candidate: Candidate) -> dict[str, Any]:
    from advisor.search.explain import memory_lines, time_lines

    lines = memory_lines(candidate.evaluation)
    memory = [{**plain(line), "num_bytes": line.num_bytes} for line in lines]
    time = [plain(line) for line in time_lines(candidate.evaluation)]
    return {"rank": candidate.rank, "memory": memory, "time": time}


def _rejection(rejection: Rejection) -> dict[str, Any]:
    report = plain(rejection)
    return {"recompute": recompute(report.pop("setting")), **report}


def _finite(value: Any) -> Any:
    """`value` with null for what JSON cannot say: infinities and NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
