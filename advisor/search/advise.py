"""The whole answer: resolve the request, evaluate, rank, and find what else would help."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from advisor.answer.answer import Answer, CalibrationNote, RankedEvaluation, Rejection, Remedy
from advisor.answer.evaluation import LIKELY, Evaluation
from advisor.base.errors import UserError
from advisor.base.fields import spelled
from advisor.base.units import human_bytes
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.differences import beside_precision
from advisor.request.layout_fields import DEGREES, degree_words, freed
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import Resolution, resolve
from advisor.search.changed_options import changed
from advisor.search.fewest_changes import with_fewest_changes
from advisor.search.known_errors import known_error, step_time_error
from advisor.search.known_jobs import known_jobs
from advisor.search.layout_search import NEAR, Search, Searched, Watch, evaluate_settings
from advisor.search.ranking import first_replayed, order, rank
from advisor.search.remedies import find_remedies, other_job
from advisor.search.undecided import told


def advise(request: Request, watch: Watch | None = None) -> Answer:
    """Rank every legal recompute setting of the requested job.

    Raises UserError where the request is wrong. What neither a preset nor the request says of the
    layout is as in the recipe for the nearest number of the same GPUs; where there is none or
    nothing fits in it, the best of a search over all legal ones. `--search layout` ranks them all,
    `--search optimum` proves what is the best that can be had on the usual answer's layout.

    watch: is told how far a search of layouts is.
    """
    resolution = resolve(request)
    calibration = _calibration(request, resolution)
    advice = told(_advise(request, resolution, calibration, watch), calibration, request)
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


def _advise(
    request: Request,
    resolution: Resolution,
    calibration: Calibration,
    watch: Watch | None = None,
) -> Answer:
    if request.search is SearchScope.OPTIMUM:
        return _with_optimum(request, resolution, calibration)
    layouts = request.search is SearchScope.LAYOUT
    stack = adapter_of(resolution.config.framework)
    asked = tuple(dict.fromkeys(stack.parse(text) for text in request.recompute))
    if layouts:
        return _rank_layouts(resolution, stack, calibration, asked, watch)
    layout = resolution.layout
    if layout is not None and not resolution.borrowed and not resolution.open_degrees:
        advice = _rank_settings(resolution, layout, stack, calibration, asked)
        return _with_another_job(advice, resolution, calibration, asked)
    if resolution.borrowed:
        borrowed = _rank_borrowed(resolution, stack, calibration, asked)
        if borrowed is not None:
            return borrowed
        resolution = replace(resolution, layout=resolution.layout, borrowed=False)
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
        searched = Search(resolution, calibration, asked).run()
    except UserError:
        if resolution.layout is not None:
            resolution.job(resolution.layout)  # says more where what is given is illegal itself
        raise
    best = searched.best.job
    if not searched.best.fits:
        with_options = Search(resolution, calibration, asked, options=True).near(best)
        if with_options.evaluations and with_options.best.fits:
            searched = with_options
            best = with_fewest_changes(with_options.best, resolution).job
    batch = (f"micro batch {best.config.micro_batch_size}",) * resolution.micro_batch_is_free
    options = (f"{k} {spelled(v)}" for k, v in changed(resolution, best).items())
    batch += tuple(f"{words}, without which nothing fits" for words in options)
    found = replace(
        resolution,
        model=best.model,
        config=best.config,
        assumptions=(*resolution.of_search, *batch, _chosen(resolution, searched)),
    )
    advice = _rank_settings(found, best.layout, stack, calibration, asked)
    advice = replace(advice, evaluated=advice.evaluated + searched.evaluated, searched=True)
    return _with_another_job(advice, resolution, calibration, asked)


def _with_another_job(
    advice: Answer, resolution: Resolution, calibration: Calibration, asked: tuple[Setting, ...]
) -> Answer:
    """Where nothing fits, and no change alone makes anything fit: with the best layout and options
    that do, as the first remedy."""
    if advice.fits or any(remedy.fit_probability >= LIKELY for remedy in advice.remedies):
        return advice
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    try:
        searched = Search(free, calibration, asked, options=True).near(advice.job)
    except UserError:
        return advice
    if not (searched.evaluations and searched.best.fits):
        return advice
    best = with_fewest_changes(searched.best, free)
    first = advice.candidates[0].evaluation
    remedy = other_job(best, first)
    return replace(
        advice,
        remedies=(remedy, *advice.remedies),
        evaluated=advice.evaluated + searched.evaluated,
    )


def _chosen(resolution: Resolution, searched: Searched) -> str:
    """What a search has settled; degrees by name where others were given."""
    which = "the best of all legal layouts" if searched.whole else "the best layout that was found"
    if not any(name in resolution.layout_fields for name in DEGREES):
        return which
    degrees = degree_words(searched.best.job.layout, resolution.open_degrees or DEGREES)
    return f"{degrees} chosen: {which} with what is given"


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
    resolution: Resolution,
    stack: FrameworkAdapter,
    calibration: Calibration,
    asked: tuple[Setting, ...],
    watch: Watch | None,
) -> Answer:
    """The best setting of each layout, micro batch and choice of options, in one ranking."""
    known = known_jobs(resolution)
    search = Search(resolution, calibration, asked, within=NEAR, options=True, watch=watch)
    searched = search.run(known)
    rows = [with_fewest_changes(row, resolution) for row in searched.first_rows(known)]
    first = min(first_replayed(rows), key=order)
    rows += _without_recompute(first)
    evaluations = first_replayed(rows)
    candidates = rank(evaluations, _notes(evaluations, stack))
    first = candidates[0].evaluation
    said = "every legal layout searched"
    if searched.interrupted:
        said = "stopped: the best so far"
    elif not searched.whole:
        said = "so many layouts did not fit that the rest was not searched"
    return replace(
        _advice(
            replace(resolution, assumptions=(*resolution.of_search, said)),
            first.job,
            calibration,
            candidates,
            stack.rejected(first.job),
            searched.evaluated,
            () if first.fits else find_remedies(first, calibration, asked),
        ),
        usual=_job_of(resolution),
        searched=True,
        stopped=searched.interrupted,
    )


def _without_recompute(row: Evaluation) -> list[Evaluation]:
    """No recompute on the job of a row that recomputes, to hold it against."""
    none = adapter_of(row.job.config.framework).none
    if not recomputes(row.setting):
        return []
    return list(evaluate_settings(row.job, (none,), row.calibration))


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
