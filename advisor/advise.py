"""The whole answer: resolve the request, evaluate, rank, and find what else would help."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from advisor.answer import Advice, CalibrationNote, Candidate, Evaluation, Rejection, Remedy
from advisor.cost.calibration import Calibration, load_calibration
from advisor.errors import UserError
from advisor.frameworks.megatron.candidates import enumerate_settings, rejected_settings
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.megatron.rules import check, notes
from advisor.frameworks.megatron.setting import NONE, RecomputeSetting, parse_setting
from advisor.job import Job
from advisor.ranking import rank
from advisor.remedies import find_remedies
from advisor.request import Request, SearchScope
from advisor.resolve import Resolution, resolve
from advisor.search import Searched, evaluate_settings, search_layouts
from advisor.units import human_bytes


def advise(request: Request) -> Advice:
    """Rank every legal recompute setting of the requested job.

    Raises UserError where the request is wrong. Without a preset or a layout in the request, the
    layout is the best of a search over all legal ones; `--search layout` ranks them all.
    """
    resolution = resolve(request)
    revision = resolve_revision(resolution.config.framework, resolution.config.framework_version)
    calibration = load_calibration(resolution.gpu, request.config_dir)
    version = replace(resolution.config, framework_version=revision.version)
    resolution = replace(resolution, config=version)
    asked = tuple(_parse_asked(text) for text in request.recompute)
    if request.search is SearchScope.LAYOUT:
        return _rank_layouts(resolution, revision, calibration)
    if resolution.layout is not None:
        job = resolution.job(resolution.layout)
        return _rank_settings(job, resolution.assumptions, revision, calibration, asked)
    searched = search_layouts(resolution, revision, calibration)
    best = searched.best.job
    batch = (f"micro batch {best.config.micro_batch_size}",) * resolution.micro_batch_is_free
    advice = _rank_settings(
        best,
        (*batch, *resolution.assumptions, f"the best of {searched.num_layouts} legal layouts"),
        revision, calibration, asked,
    )  # fmt: skip
    return replace(advice, evaluated=advice.evaluated + len(searched.evaluations))


def _parse_asked(text: str) -> RecomputeSetting:
    setting = parse_setting(text)
    if setting.offload_modules:
        raise UserError("--recompute", text, "offload is not modelled yet", "leave +offload out")
    return setting


def _rank_settings(
    job: Job,
    assumptions: tuple[str, ...],
    revision: Revision,
    calibration: Calibration,
    asked: tuple[RecomputeSetting, ...],
) -> Advice:
    """Settings of one job: those asked for, or all legal ones."""
    if asked:
        refused = {setting: check(setting, job, revision) for setting in asked}
        settings = tuple(setting for setting in asked if not refused[setting])
        rejected = tuple(rejection for found in refused.values() for rejection in found)
        if not settings:
            first = rejected[0]
            raise UserError(
                "--recompute", first.setting.spec, first.reason.rstrip("."), first.fix.rstrip(".")
            )
    else:
        settings = enumerate_settings(job, revision)
        rejected = rejected_settings(job, revision)
    evaluations = evaluate_settings(job, settings, calibration)
    candidates = rank(evaluations, _notes(evaluations, revision))
    remedies: tuple[Remedy, ...] = ()
    if candidates:
        remedies = find_remedies(candidates[0].evaluation, revision, calibration, asked)
    return _advice(job, assumptions, calibration, candidates, rejected, len(evaluations), remedies)


def _rank_layouts(resolution: Resolution, revision: Revision, calibration: Calibration) -> Advice:
    """Every layout with every setting, in one ranking."""
    searched: Searched = search_layouts(resolution, revision, calibration)
    candidates = rank(searched.evaluations, _notes(searched.evaluations, revision))
    assumptions = (*resolution.assumptions, f"{searched.num_layouts} legal layouts searched")
    job = candidates[0].evaluation.job
    return _advice(
        job, assumptions, calibration, candidates, rejected_settings(job, revision),
        len(searched.evaluations), (),
    )  # fmt: skip


def _advice(
    job: Job,
    assumptions: tuple[str, ...],
    calibration: Calibration,
    candidates: tuple[Candidate, ...],
    rejected: tuple[Rejection, ...],
    evaluated: int,
    remedies: tuple[Remedy, ...],
) -> Advice:
    return Advice(
        job=job,
        assumptions=assumptions,
        calibration=CalibrationNote(
            name=calibration.name,
            provenance=calibration.provenance,
            summary=calibration.summary,
        ),
        evaluated=evaluated,
        candidates=candidates,
        rejected=rejected,
        remedies=remedies,
    )


def _notes(evaluations: Sequence[Evaluation], revision: Revision) -> Callable[[Evaluation], str]:
    """What is to be said of each setting: that it buys nothing, what a label or default does.

    A setting is held against `none` on the same job.
    """
    without = {id(e.job): e for e in evaluations if e.setting == NONE}

    def note(evaluation: Evaluation) -> str:
        if evaluation.setting == NONE:
            return ""
        said = list(notes(evaluation.setting, evaluation.job, revision))
        none = without.get(id(evaluation.job))
        if none is not None:
            more = evaluation.peak.peak_reserved_bytes - none.peak.peak_reserved_bytes
            if more >= 0:
                said.insert(0, f"buys nothing: {human_bytes(more)} more than none")
        return "; ".join(said)

    return note
