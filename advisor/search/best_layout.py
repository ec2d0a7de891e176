"""The layout of a search: where none is settled, and as the way out where nothing fits."""

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.answer.evaluation import LIKELY
from advisor.base.errors import UserError
from advisor.base.fields import spelled
from advisor.hardware.calibration import Calibration
from advisor.plan.recompute_plan import Setting
from advisor.request.layout_fields import DEGREES, degree_words, freed
from advisor.request.resolve import Resolution
from advisor.search.changed_options import changed
from advisor.search.climb import search_near
from advisor.search.fewest_changes import with_fewest_changes
from advisor.search.found import Searched
from advisor.search.layout_search import Search
from advisor.search.rank_settings import rank_settings
from advisor.search.remedies import other_job


def rank_best_layout(
    resolution: Resolution,
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
        with_options = search_near(best, resolution, calibration, asked)
        if with_options.evaluations and with_options.best.fits:
            searched = with_options
            best = with_fewest_changes(with_options.best, resolution).job
    batch = (f"micro batch {best.config.micro_batch_size}",) * resolution.micro_batch_is_free
    options = (f"{k} {spelled(v)}" for k, v in changed(resolution, best).items())
    batch += tuple(f"{words} (nothing fits without it)" for words in options)
    found = replace(
        resolution,
        model=best.model,
        config=best.config,
        assumptions=(*resolution.of_search, *batch, _chosen(resolution, searched)),
    )
    advice = rank_settings(found, best.layout, calibration, asked)
    advice = replace(
        advice,
        evaluated=advice.evaluated + searched.evaluated,
        searched=True,
        stopped=searched.interrupted,
    )
    return advice if advice.stopped else with_another_job(advice, resolution, calibration, asked)


def with_another_job(
    advice: Answer, resolution: Resolution, calibration: Calibration, asked: tuple[Setting, ...]
) -> Answer:
    """Where nothing fits, and no change alone makes anything fit: with the best layout and options
    that do, as the first remedy."""
    if advice.fits or any(remedy.fit_probability >= LIKELY for remedy in advice.remedies):
        return advice
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    try:
        searched = search_near(advice.job, free, calibration, asked)
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
    which = "best of all legal layouts" if searched.whole else "best layout found"
    if not any(name in resolution.layout_fields for name in DEGREES):
        return f"layout: {which}"
    degrees = degree_words(searched.best.job.layout, resolution.open_degrees or DEGREES)
    return f"{degrees} chosen: {which} with the given values"
