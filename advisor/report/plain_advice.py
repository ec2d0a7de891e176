"""The ranked answer as plain data: every figure that is worked out when it is looked at, now."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from advisor.answer.advice import (
    Advice,
    AdvisedGpus,
    AdvisedJob,
    AdvisedModel,
    Candidate,
    Explanation,
    FastestFound,
    MemoryShare,
    RecipeNote,
    Recompute,
    RejectedSetting,
)
from advisor.answer.answer import Answer, RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.base.plain_json import to_plain
from advisor.job.job import Job
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.plan.recompute_plan import Setting
from advisor.reading.read_configuration import ReadConfiguration
from advisor.report.changes import caveat, read_file
from advisor.report.sample_block import sample_note_of
from advisor.report.setting_flags import all_flags, all_job_flags, environment_words
from advisor.report.wording import row_of, verdict
from advisor.request.origin import changes


def plain_advice(
    answer: Answer,
    *,
    top: int | None = None,
    front: bool = False,
    explained: int | None = None,
    read: ReadConfiguration | None = None,
    price_per_gpu_hour: float | None = None,
) -> Advice:
    """`answer` with its `top` best candidates (all where None), of the Pareto `front` alone where
    that is asked for; `explained` is the rank of the candidate whose bytes and seconds are
    explained, `read` what the job was taken from."""
    best = answer.chosen
    listed = [c for c in answer.candidates if c.pareto or not front][:top]
    of_jobs = {id(c.evaluation.job): c.evaluation for c in listed}
    extras = {number: _extras(evaluation, answer) for number, evaluation in of_jobs.items()}
    explain = None
    if explained is not None and best is not None:
        rank = 0 if explained == 0 and answer.fastest_found else row_of(answer, explained).rank
        explain = _explanation(row_of(answer, explained), rank)
    own: dict[str, Any] = {
        "job": _job(answer.job, best.evaluation if best else None, price_per_gpu_hour),
        "candidates": tuple(
            _candidate(candidate, *extras[id(candidate.evaluation.job)], price_per_gpu_hour)
            for candidate in listed
        ),
        "rejected": tuple(
            RejectedSetting(
                **_of_same_name(one, RejectedSetting), recompute=_recompute(one.setting)
            )
            for one in answer.rejected
        ),
        "recipe": RecipeNote(name=answer.recipe, differs=answer.recipe_differs),
        "origin": dict(answer.origin),
        "fits": answer.fits or answer.fastest_found is not None,
        "fastest_found": _fastest_found(answer, price_per_gpu_hour),
        "samples": sample_note_of(answer),
    }
    return Advice(
        **_of_same_name(answer, Advice) | own,
        verdict=f"{verdict(answer)} {caveat(read)}".strip(),
        job_flags=_plain(all_job_flags(best.evaluation)) if best else {},
        explain=explain,
        read_from=read_file(answer.job, read) if read else None,
    )


def _of_same_name(source: object, contract: type[Struct]) -> dict[str, Any]:
    """What the `source` has under the names of the contract's keys."""
    kind = type(source)
    return {n: getattr(source, n) for n in contract.__struct_fields__ if hasattr(kind, n)}


def _job(job: Job, evaluation: Evaluation | None, price: float | None) -> AdvisedJob:
    from advisor.layers.parameters import active_parameters, parameter_count

    gpu = asdict(job.gpu)
    return AdvisedJob(
        **asdict(job.config),
        model=AdvisedModel(
            **asdict(job.model),
            num_parameters=parameter_count(job.model).total,
            num_active_parameters=active_parameters(job.model),
        ),
        layout=job.layout,
        gpus=AdvisedGpus(count=job.num_gpus, type=gpu.pop("name"), **gpu),
        model_flops_per_step=evaluation.model_flops_per_step if evaluation else None,
        price_per_gpu_hour=price,
    )


def _recompute(setting: Setting) -> Recompute:
    """The parts of a setting that the contract has a key for."""
    assert isinstance(setting, Struct)
    known = Recompute.__struct_fields__
    return Recompute(
        spec=setting.spec,
        effective_modules=getattr(setting, "effective_modules", ()),
        **{name: value for name, value in asdict(setting).items() if name in known},
    )


def _extras(evaluation: Evaluation, answer: Answer) -> tuple[dict[str, Any], dict[str, str]]:
    """What its job changes, and its flags where it is not the answer's."""
    job = evaluation.job
    own = changes(job, answer.usual or answer.job)
    found: dict[str, Any] = to_plain({**answer.beside_degrees, **own} if own else {})
    return found, {} if job == answer.job else _plain(all_job_flags(evaluation))


def _candidate(
    candidate: RankedEvaluation,
    changes: dict[str, Any],
    job_flags: dict[str, str],
    price: float | None,
) -> Candidate:
    evaluation = candidate.evaluation
    peak, hours = evaluation.peak, evaluation.gpu_hours_per_trillion_tokens
    return Candidate(
        **_of_same_name(candidate, Candidate),
        **{name: getattr(evaluation, name) for name in _FIGURES},
        recompute=_recompute(evaluation.setting),
        layout=evaluation.job.layout,
        changes=changes,
        micro_batch_size=evaluation.job.config.micro_batch_size,
        peak_allocated_bytes=max(s.peak_allocated_bytes for s in evaluation.stages),
        peak_reserved_bytes=evaluation.peak_reserved_bytes,
        phases=evaluation.phases,
        host_memory_bytes=evaluation.host_bytes,
        replayed=evaluation.requests is not None,
        peak_stage=peak.stage,
        saved_bytes_per_layer=_saved(evaluation.detail.saved_bytes_per_layer),
        price_per_trillion_tokens=None if price is None else hours * price,
        flags=_plain(all_flags(evaluation)),
        job_flags=job_flags,
        environment=environment_words(evaluation),
    )


_FIGURES: Final = (
    *("fits", "fit_probability", "budget_bytes", "stages", "time_seconds", "step_time_seconds"),
    *("step_time_low_seconds", "step_time_high_seconds", "tokens_per_second"),
    *("tokens_per_second_per_gpu", "gpu_hours_per_trillion_tokens", "tflops_per_gpu", "mfu", "hfu"),
    "recompute_overhead",
)
"""What a candidate and its evaluation have under the same names."""


def _plain(by_framework: Mapping[str, str]) -> dict[str, str]:
    return {str(name): flags for name, flags in by_framework.items()}


def _saved(kept: Mapping[LayerKind, int]) -> dict[str, int | None]:
    """One layer with an MLP and one with experts, None where the model has none; then every kind by
    its mixer and its feed-forward part, as a hybrid's layers have one of the two."""
    saved: dict[str, int | None] = {"dense": None, "moe": None}
    words = {FeedForward.DENSE: "dense", FeedForward.MOE: "moe"}
    for kind, size in kept.items():
        word = words.get(kind.feed_forward)
        if word and saved[word] is None:
            saved[word] = size
        saved.setdefault(kind.name, size)
    return saved


def _fastest_found(answer: Answer, price: float | None) -> FastestFound | None:
    """With what its job changes, and all flags of it."""
    found = answer.fastest_found
    if found is None:
        return None

    def plain(one: RankedEvaluation) -> Candidate:
        return _candidate(one, *_extras(one.evaluation, answer), price)

    own, other = plain(found.candidate), found.without
    without = plain(other) if other is not None else None
    return FastestFound(**asdict(own), gain=found.gain, rests_on=found.rests_on, without=without)


def _explanation(candidate: RankedEvaluation, rank: int) -> Explanation:
    from advisor.search.explain import memory_lines, time_lines

    return Explanation(
        rank=rank,
        memory=tuple(
            MemoryShare(**asdict(line), num_bytes=line.num_bytes)
            for line in memory_lines(candidate.evaluation)
        ),
        time=tuple(time_lines(candidate.evaluation)),
    )


def csv_report(advice: Advice) -> str:
    """Head and one line for each candidate; empty where there is none."""
    return csv_of(advice.rows())


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Head and one line for each of plain rows; empty where there is none."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
