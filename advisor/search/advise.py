"""The whole answer: resolve the request, evaluate, rank, and find what else would help."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from advisor.answer.answer import Answer, CalibrationNote, RankedEvaluation, Rejection, Remedy
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.units import human_bytes
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.differences import beside_precision, differences
from advisor.request.layout_fields import degree_words, freed
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve
from advisor.search.evaluate import known_error, step_time_error
from advisor.search.layout_search import (
    ROWS,
    Searched,
    best_on_any_layout,
    evaluate_settings,
    search_layouts,
)
from advisor.search.ranking import first_replayed, rank
from advisor.search.remedies import besides, find_remedies, other_layout
from advisor.search.undecided import told


def advise(request: Request) -> Answer:
    """Rank every legal recompute setting of the requested job.

    Raises UserError where the request is wrong. What neither a preset nor the request says of the
    layout is as in the recipe for the nearest number of the same GPUs; where there is none or
    nothing fits in it, the best of a search over all legal ones. `--search layout` ranks them all,
    `--search optimum` proves what is the best that can be had on the usual answer's layout.
    """
    resolution = resolve(request, borrow=request.search is not SearchScope.LAYOUT)
    calibration = _calibration(request, resolution)
    advice = told(_advise(request, resolution, calibration), calibration, request)
    if advice.recipe != resolution.recipe:
        return advice
    beside = beside_precision(request, resolution)
    return replace(advice, differences=(*advice.differences, *beside))


def _calibration(request: Request, resolution: Resolution) -> Calibration:
    """The GPU's, or what --calibration names, with what was learned from measured runs."""
    shipped = load_calibration(resolution.gpu, request.config_dir)
    if not request.calibration:
        return shipped
    from advisor.search.learn import calibration_from

    return calibration_from(request.calibration, shipped, resolution.gpu, request.config_dir)


def _advise(request: Request, resolution: Resolution, calibration: Calibration) -> Answer:
    if request.search is SearchScope.OPTIMUM:
        return _with_optimum(request, resolution, calibration)
    layouts = request.search is SearchScope.LAYOUT
    stack = adapter_of(resolution.config.framework)
    asked = tuple(dict.fromkeys(stack.parse(text) for text in request.recompute))
    if layouts:
        advice = _rank_layouts(resolution, stack, calibration)
        usual = resolve(request)
        return replace(advice, differences=differences(resolution, usual), usual=_job_of(usual))
    layout = resolution.layout
    if layout is not None and not resolution.borrowed and not resolution.open_degrees:
        advice = _rank_settings(resolution, layout, stack, calibration, asked)
        return _with_another_layout(advice, resolution, calibration, asked)
    if resolution.borrowed:
        borrowed = _rank_borrowed(resolution, stack, calibration, asked)
        if borrowed is not None:
            return borrowed
        usual, resolution = resolution, resolve(request, borrow=False)
        advice = _rank_best_layout(resolution, stack, calibration, asked)
        return replace(advice, differences=differences(resolution, usual))
    return _rank_best_layout(resolution, stack, calibration, asked)


def _with_optimum(request: Request, resolution: Resolution, calibration: Calibration) -> Answer:
    """The usual answer, with the optimum of its job before the menu's rows, and the proof."""
    if request.recompute:
        raise UserError(
            "--recompute",
            request.recompute[0],
            "leaves nothing for --search optimum to decide",
            "give one of the two",
        )
    if type(calibration) is not Calibration:
        raise UserError(
            "--calibration",
            ", ".join(map(str, request.calibration)),
            "moves settings one by one, of which --search optimum proves nothing",
            "give one of the two",
        )
    from advisor.search.optimum.proven import with_optimum

    usual = _advise(replace(request, search=None), resolution, calibration)
    stack = adapter_of(usual.job.config.framework)
    return with_optimum(usual, stack, calibration)


def _job_of(resolution: Resolution) -> Job | None:
    """The job of a request whose layout is settled and legal."""
    if resolution.layout is None:
        return None
    try:
        return resolution.job(resolution.layout)
    except UserError:
        return None


def _rank_borrowed(
    resolution: Resolution,
    stack: FrameworkAdapter,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> Answer | None:
    """The layout of a recipe for another number of GPUs; None where it is illegal or too large."""
    if resolution.layout is None:
        return None
    try:
        advice = _rank_settings(resolution, resolution.layout, stack, calibration, asked)
    except UserError:
        return None
    return advice if advice.fits else None


def _rank_best_layout(
    resolution: Resolution,
    stack: FrameworkAdapter,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> Answer:
    """The layout on which the best setting of a search runs."""
    try:
        searched = best_on_any_layout(resolution, calibration, asked)
    except UserError:
        if resolution.layout is not None:
            resolution.job(resolution.layout)  # says more where what is given is illegal itself
        raise
    best = searched.best.job
    batch = (f"micro batch {best.config.micro_batch_size}",) * resolution.micro_batch_is_free
    found = replace(
        resolution,
        config=best.config,
        assumptions=(*batch, *resolution.assumptions, _chosen(resolution, searched)),
    )
    advice = _rank_settings(found, best.layout, stack, calibration, asked)
    advice = replace(advice, evaluated=advice.evaluated + searched.evaluated)
    return _with_another_layout(advice, resolution, calibration, asked)


def _with_another_layout(
    advice: Answer, resolution: Resolution, calibration: Calibration, asked: tuple[Setting, ...]
) -> Answer:
    """Where nothing fits in the layout that was given: with the best one that does, as the first
    remedy. Only of a framework whose degrees are free; none where nothing was given."""
    stack = adapter_of(resolution.config.framework)
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free_already = resolution.layout is None and given == resolution.layout_fields
    if advice.fits or free_already or stack.layouts(given, resolution.num_gpus) is not None:
        return advice
    free = replace(resolution, layout=layout, layout_fields=given)
    try:
        searched = best_on_any_layout(free, calibration, asked)
    except UserError:
        return advice
    best = searched.best
    if not best.fits:
        return advice
    first = advice.candidates[0].evaluation
    remedy = other_layout(best, first, searched.num_layouts)
    return replace(
        advice,
        remedies=(remedy, *besides(best, first, advice.remedies)),
        evaluated=advice.evaluated + searched.evaluated,
    )


def _chosen(resolution: Resolution, searched: Searched) -> str:
    """What a search has settled; degrees by name where others were given."""
    found = f"the best of {searched.num_layouts} legal layouts"
    if resolution.layout is None:
        return found
    degrees = degree_words(searched.best.job.layout, resolution.open_degrees)
    return f"{degrees} chosen: {found} with what is given"


def _rank_settings(
    resolution: Resolution,
    layout: ParallelLayout,
    stack: FrameworkAdapter,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> Answer:
    """Settings of one job: those asked for, or all legal ones with the preset's own."""
    job, shipped = resolution.job(layout), resolution.shipped
    if asked:
        refused = {setting: stack.check(setting, job) for setting in asked}
        settings = tuple(setting for setting in asked if not refused[setting])
        rejected = tuple(rejection for found in refused.values() for rejection in found)
        if not settings:
            first = rejected[0]
            raise UserError(
                "--recompute", first.setting.spec, first.reason.rstrip("."), first.fix.rstrip(".")
            )
    else:
        settings = stack.candidates(job)
        rejected = stack.rejected(job)
        if shipped and not _among(shipped, settings):
            refused_preset = stack.check(shipped, job)
            settings += () if refused_preset else (shipped,)
            rejected = (*refused_preset, *(r for r in rejected if r.setting != shipped))
    if not settings and (found := stack.check(stack.none, job)):
        raise UserError("--framework", job.config.framework, found[0].reason, found[0].fix)
    compared = tuple(s for s in settings if s == stack.none or (shipped and _among(shipped, (s,))))
    evaluations = first_replayed(evaluate_settings(job, settings, calibration), compared)

    def is_preset(evaluation: Evaluation) -> bool:
        return shipped is not None and _among(shipped, (evaluation.setting,))

    candidates = tuple(
        replace(candidate, preset=is_preset(candidate.evaluation))
        for candidate in rank(
            evaluations,
            _notes(evaluations, stack),
            kept=lambda evaluation: bool(asked) or is_preset(evaluation),
        )
    )
    remedies: tuple[Remedy, ...] = ()
    if candidates:
        remedies = find_remedies(candidates[0].evaluation, calibration, asked)
    return _advice(resolution, job, calibration, candidates, rejected, len(evaluations), remedies)


def _among(setting: Setting, others: tuple[Setting, ...]) -> bool:
    """Whether `setting` runs like one of `others`: unset and empty lists are what they mean."""
    return any(setting.promoted == other.promoted for other in others)


def _rank_layouts(
    resolution: Resolution, stack: FrameworkAdapter, calibration: Calibration
) -> Answer:
    """Every layout with every setting, in one ranking."""
    searched = search_layouts(resolution, calibration)
    evaluations = first_replayed(searched.evaluations)
    candidates = rank(evaluations, _notes(evaluations, stack))
    said = f"{searched.num_layouts} legal layouts searched"
    if not searched.whole:
        said += f", for the first {ROWS} rows"
    first = candidates[0].evaluation
    return _advice(
        replace(resolution, assumptions=(*resolution.assumptions, said)),
        first.job,
        calibration,
        candidates,
        stack.rejected(first.job),
        searched.evaluated,
        () if first.fits else find_remedies(first, calibration),
    )


def _advice(
    resolution: Resolution,
    job: Job,
    calibration: Calibration,
    candidates: tuple[RankedEvaluation, ...],
    rejected: tuple[Rejection, ...],
    evaluated: int,
    remedies: tuple[Remedy, ...],
) -> Answer:
    return Answer(
        job=job,
        assumptions=(*resolution.assumptions, *adapter_of(job.config.framework).remarks(job)),
        calibration=CalibrationNote(
            name=calibration.name,
            provenance=calibration.provenance,
            summary=calibration.summary(step_time_error(job.model, calibration)),
            known_error=_known_error(job, calibration),
        ),
        evaluated=evaluated,
        candidates=candidates,
        rejected=rejected,
        remedies=remedies,
        recipe=resolution.recipe,
        recipe_framework=resolution.recipe_framework,
        recipe_differs=resolution.differs,
        origin={path: str(origin) for path, origin in resolution.origins_of(job).items()},
    )


def _known_error(job: Job, calibration: Calibration) -> str:
    """In words; empty where nothing is known to be off."""
    found = known_error(job, calibration)
    if found is None:
        return ""
    return f"{found.rows} published runs like this ({found.of.words}) were predicted {found.words}"


def _notes(
    evaluations: Sequence[Evaluation], stack: FrameworkAdapter
) -> Callable[[Evaluation], tuple[str, ...]]:
    """What is to be said of each setting: that it buys nothing, what a label or default does.

    A setting is held against `none` on the same job. By how much it is worse is said of one job
    only: among many layouts every row would carry another figure.
    """
    without = {id(e.job): e for e in evaluations if not recomputes(e.setting)}
    alone = len({id(e.job) for e in evaluations}) == 1

    def notes(evaluation: Evaluation) -> tuple[str, ...]:
        said = list(stack.notes(evaluation.setting, evaluation.job))
        none = without.get(id(evaluation.job))
        if none is not None and recomputes(evaluation.setting):
            more = evaluation.usual_reserved_bytes - none.usual_reserved_bytes
            if more >= 0:
                figure = f": {human_bytes(more)} more than none" if alone and more else ""
                said.insert(0, f"buys nothing{figure}")
        return tuple(said)

    return notes
