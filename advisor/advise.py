"""The whole answer: resolve the request, evaluate, rank, and find what else would help."""

from dataclasses import replace

from advisor.answer import Advice, CalibrationNote, Candidate, Evaluation, Rejection, Remedy
from advisor.cost.calibration import Calibration, load_calibration
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


def advise(request: Request) -> Advice:
    """Rank every legal recompute setting of the requested job.

    Raises UserError where the request is wrong. Without a preset or a layout in the request, the
    layout is the best of a search over all legal ones; `--search layout` ranks them all.
    """
    resolution = resolve(request)
    revision = resolve_revision(resolution.config.framework, resolution.config.framework_version)
    calibration = load_calibration(resolution.gpu, request.config_dir)
    asked = tuple(parse_setting(text) for text in request.recompute)
    if request.search is SearchScope.LAYOUT:
        return _rank_layouts(resolution, revision, calibration)
    if resolution.layout is not None:
        job = resolution.job(resolution.layout)
        return _rank_settings(job, resolution.assumptions, revision, calibration, asked)
    searched = search_layouts(resolution, revision, calibration)
    advice = _rank_settings(
        searched.best.job,
        (*resolution.assumptions, f"the best of {searched.num_layouts} legal layouts"),
        revision, calibration, asked,
    )  # fmt: skip
    return replace(advice, evaluated=advice.evaluated + len(searched.evaluations))


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
    else:
        settings = enumerate_settings(job, revision)
        rejected = rejected_settings(job, revision)
    evaluations = evaluate_settings(job, settings, calibration)
    candidates = rank(evaluations, lambda evaluation: _note(evaluation, revision))
    remedies = find_remedies(candidates[0].evaluation, revision, calibration) if candidates else ()
    return _advice(job, assumptions, calibration, candidates, rejected, len(evaluations), remedies)


def _rank_layouts(resolution: Resolution, revision: Revision, calibration: Calibration) -> Advice:
    """Every layout with every setting, in one ranking."""
    searched: Searched = search_layouts(resolution, revision, calibration)
    candidates = rank(searched.evaluations, lambda evaluation: _note(evaluation, revision))
    assumptions = (*resolution.assumptions, f"{searched.num_layouts} legal layouts searched")
    return _advice(
        candidates[0].evaluation.job, assumptions, calibration, candidates, (),
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


def _note(evaluation: Evaluation, revision: Revision) -> str:
    """What is to be said of a setting: a label that buys nothing, a promotion."""
    if evaluation.setting == NONE:
        return ""
    return "; ".join(notes(evaluation.setting, evaluation.job, revision))
