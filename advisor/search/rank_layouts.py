"""The best settings of all layouts, micro batches and choices of options in one ranking; and the
layout of a search where none is settled, or nothing fits."""

from collections.abc import Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError, if_legal
from advisor.base.fields import spelled
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.memory.allocator import most_likely
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.layout_fields import DEGREES, degree_words, freed
from advisor.request.resolve import Resolution
from advisor.search.answer_parts import answer_of, notes_on
from advisor.search.changed_options import CHOSEN, changed, with_fewest_changes
from advisor.search.evaluate import Evaluator
from advisor.search.found import Searched, search_near
from advisor.search.layout_search import NEAR, Search, Watch
from advisor.search.layouts import known_jobs, seeds
from advisor.search.optimum.branches import FoundPoint, each_micro_batch, fastest_beyond_the_menu
from advisor.search.rank_settings import find_remedies, other_job, rank_settings, refusal
from advisor.search.ranking import first_simulated, order, rank


def rank_layouts(
    resolution: Resolution,
    calibration: Calibration,
    asked: tuple[Setting, ...],
    watch: Watch | None,
    usual: Answer | None = None,
) -> Answer:
    """The best setting of each layout, micro batch and choice of options, in one ranking, which the
    first rows of the `usual` answer are part of where they fit: a search never loses to it."""
    first_rows = usual.candidates[:1] if usual else ()
    if usual and usual.fastest_found:
        first_rows = (usual.fastest_found.candidate, *first_rows)
    own = [row.evaluation for row in first_rows if row.evaluation.fits]
    jobs = (row.evaluation.job for row in reversed(first_rows))
    known = tuple(dict.fromkeys((*jobs, *known_jobs(resolution))))
    search = Search(
        resolution, calibration, asked, within=NEAR, options=True, most=_EFFORT, watch=watch
    )
    try:
        searched = _some_found(search, known, asked)
    except KeyboardInterrupt:
        if usual is None:
            raise
        return replace(usual, stopped=True)
    found, stopped = searched.first_rows(known) + own, searched.interrupted
    rows: Sequence[Evaluation] = found
    try:
        if not stopped:
            found[:] = [with_fewest_changes(row, resolution) for row in found]
            if not asked:
                first = min(first_simulated(found), key=order)
                better, stopped = _better(first, searched, resolution, calibration, known, watch)
                found += better
        if not stopped:
            if not asked:
                found += _solved([min(found, key=order), *own])
            found += _without_recompute(min(found, key=order))
        rows = first_simulated(list({(row.job, row.setting): row for row in found}.values()))
    except KeyboardInterrupt:
        stopped = True
    candidates = rank(rows, notes_on(rows))
    first = candidates[0].evaluation
    note = searched.note(searched.evaluated)
    if first.step_time_seconds < searched.least_seconds:  # by settings beyond those of a search
        note = replace(note, least_possible_seconds=None)
    what = "legal layout" if resolution.num_gpus > 1 else "micro batch and option"
    said = f"every {what} searched"
    if stopped:
        said = "search stopped: the best rows so far"
    elif not searched.whole:
        said = "layout search ended early: not every layout is ruled out"
    return replace(
        answer_of(
            replace(resolution, assumptions=(*resolution.of_search, said)),
            first.job,
            calibration,
            candidates,
            parts_of(first.job.config.framework).settings.rejected(first.job),
            searched.evaluated,
            () if first.fits or stopped else find_remedies(first, calibration, asked),
        ),
        usual=_usual_job(resolution, first.job),
        search=note,
        searched=True,
        stopped=stopped,
    )


def _better(
    first: Evaluation,
    searched: Searched,
    resolution: Resolution,
    calibration: Calibration,
    known: tuple[Job, ...],
    watch: Watch | None,
) -> tuple[list[Evaluation], bool]:
    """What is faster than the first row by a setting beyond the menu, and what is surer to fit;
    whether Ctrl-C ended the search for them."""
    rows = []
    if type(calibration) is Calibration:
        beyond = _beyond_the_menu(first, searched, resolution, calibration)
        if beyond.evaluation is not None:
            first = with_fewest_changes(beyond.evaluation, resolution)
            rows.append(first)
        if beyond.stopped:
            return rows, True
    is_capped = "context_parallel_size" in resolution.layout_fields  # and so is every row
    surer = max(SURE, resolution.config.certainty)
    sure = min(surer, most_likely(first.job.layout)) if is_capped else surer
    if not first.fits or first.fit_probability >= sure:
        return rows, False
    search = Search(
        resolution, calibration, options=True, likely=sure, most=_MOST_SURER, watch=watch
    )
    again = search.run((first.job, *known))
    surest = [row for row in again.evaluations if row.fit_probability >= sure]
    return rows + sorted(surest, key=order)[:1], again.interrupted


_EFFORT: Final = 32_000.0
"""Of a search, some seconds of one core (see BestFound): what is left open then, the answer
says."""

_USUAL_EFFORT: Final = 12_000.0
"""Of the search for the usual answer's layout, about a second of one core (see BestFound)."""

SURE: Final = 0.95
"""Likelihood from which a row is sure to fit (a judgement: one job in twenty may fail)."""

_MOST_SURER: Final = 8_000.0
"""Effort for the fastest row that is sure to fit."""


def _beyond_the_menu(
    first: Evaluation, searched: Searched, resolution: Resolution, calibration: Calibration
) -> FoundPoint:
    """What is faster than the first row, of all settings of the jobs that matter; not for measured
    runs, which move settings one by one."""
    jobs, usual = [first.job, *searched.short], _job_of(resolution)
    if usual is not None and not parts_of(usual.config.framework).settings.check_job(usual):
        jobs += each_micro_batch(usual, free=resolution.micro_batch_is_free)
    below = first.step_time_seconds if first.fits else inf
    return fastest_beyond_the_menu(jobs, calibration, below * (1 - SAME_TIME))


def _solved(rows: list[Evaluation]) -> list[Evaluation]:
    """What the framework's own solver finds for the jobs of rows, tensor by tensor."""
    found = []
    for row in {row.job: row for row in rows}.values():
        evaluator = Evaluator(row.job, row.calibration)
        solved = parts_of(row.job.config.framework).optimum.solved(evaluator)
        found += [evaluator.evaluate(one) for one in solved.settings] if solved else []
    return found


def _without_recompute(row: Evaluation) -> list[Evaluation]:
    """No recompute on the job of a row that recomputes, to hold it against."""
    none = parts_of(row.job.config.framework).settings.none
    if not recomputes(row.setting):
        return []
    return [Evaluator(row.job, row.calibration).evaluate(none)]


def _usual_job(resolution: Resolution, first: Job) -> Job | None:
    """The job of the usual answer; its options alone, on the degrees of the `first` row, where that
    answer searches a layout of its own."""
    if (job := _job_of(resolution)) is not None:
        return job
    options = resolution.layout or replace(ParallelLayout(), **resolution.layout_fields)
    degrees = {name: getattr(first.layout, name) for name in CHOSEN if hasattr(options, name)}
    size = first.config.micro_batch_size
    return if_legal(resolution.job, replace(options, **degrees), size)


def _job_of(resolution: Resolution) -> Job | None:
    """The job of a request whose layout is settled and legal."""
    return if_legal(resolution.job, resolution.layout) if resolution.layout is not None else None


def _some_found(search: Search, known: tuple[Job, ...], asked: tuple[Setting, ...]) -> Searched:
    """What a search finds; UserError where no layout takes any of the settings asked for."""
    searched = search.run(known)
    if searched.evaluations:
        return searched
    for rejection in search.nothing_taken():
        raise refusal(rejection)
    spec, fix = ",".join(one.spec for one in asked), "ask for another setting"
    raise UserError("--recompute", spec, "is refused on every layout searched", fix)


def rank_best_layout(
    resolution: Resolution,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> Answer:
    """The layout on which the best setting of a search runs."""
    search = Search(resolution, calibration, asked, most=_USUAL_EFFORT)
    try:
        searched = _some_found(search, seeds(resolution), asked)
    except UserError:
        if resolution.layout is not None:
            resolution.job(resolution.layout)  # says more where what is given is illegal itself
        raise
    best = searched.best.job
    if not searched.best.fits:
        with_options = search_near(best, resolution, calibration, asked, most=_USUAL_EFFORT)
        if with_options.evaluations and with_options.best.fits:
            searched = with_options
            best = with_fewest_changes(with_options.best, resolution).job
    batch = (f"micro batch {best.config.micro_batch_size}",) * resolution.micro_batch_is_free
    options = (f"{k} {spelled(v)}" for k, v in changed(resolution, best).items())
    batch += tuple(f"{words} (as asked, nothing fits)" for words in options)
    chosen = (_chosen(resolution, searched),) * (resolution.num_gpus > 1)
    found = replace(
        resolution,
        model=best.model,
        config=best.config,
        assumptions=(*resolution.of_search, *batch, *chosen),
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
    certainty = advice.job.config.certainty
    if advice.fits or any(remedy.fit_probability >= certainty for remedy in advice.remedies):
        return advice
    layout, given = freed(resolution.layout, resolution.layout_fields)
    free = replace(resolution, layout=layout, layout_fields=given)
    searched = if_legal(search_near, advice.job, free, calibration, asked)
    if searched is None or not (searched.evaluations and searched.best.fits):
        return advice
    best = with_fewest_changes(searched.best, free)
    remedy = other_job(best, advice.candidates[0].evaluation)
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
