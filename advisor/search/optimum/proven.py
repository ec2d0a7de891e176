"""`--search optimum`: the usual answer with the optimum of its job in front, and the proof."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from math import inf

from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, Answer, Optimum, OptimumRow, RankedEvaluation
from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.part_types import Solved
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.plan.recompute_plan import words_of
from advisor.request.origin import GIVEN, SEARCHED, changed_fields
from advisor.search.evaluate import Evaluator, Timed, is_legal
from advisor.search.optimum.branches import Branch, FoundPoint, PointSearch, branches, space
from advisor.search.optimum.per_stage import per_stage
from advisor.search.rank_settings import find_remedies
from advisor.search.ranking import order, rank

SAME = 1e-9
"""Share by which times may differ that are the same: a step is a sum of thousands of rounded
seconds, each off by at most one part in 10^16."""


def with_optimum(usual: Answer, calibration: Calibration) -> Answer:
    """`usual` with what a search over all that the framework can say finds, and its own solver;
    and what is proven of the first row: that nothing in the stated space is faster and fits, by the
    model's times and bytes."""
    own = Evaluator(usual.job, calibration)
    solved = parts_of(own.job.config.framework).optimum.solved(own)
    menu = settled_first([candidate.evaluation for candidate in usual.candidates])
    added = [own.evaluate(setting) for setting in solved.settings] if solved else []
    settled = settled_first([*menu, *added])
    given = [path for path, origin in usual.origin.items() if origin == str(GIVEN)]
    searched, found = _searched(usual.job, calibration, given, _fastest(settled))
    if found.evaluation is not None:
        best = least_changed(found.evaluation, usual.job)
        if all((one.job, one.setting) != (best.job, best.setting) for one in settled):
            settled.append(best)
    candidates = _ranked(usual, settled)
    proof = _proof(candidates, menu, solved, searched, found)
    answer = replace(
        usual,
        candidates=candidates,
        evaluated=usual.evaluated + len(added) + found.evaluated,
        optimum=proof,
        stopped=found.stopped,
    )
    return _of_first_row(answer, usual, calibration)


def _of_first_row(answer: Answer, usual: Answer, calibration: Calibration) -> Answer:
    """With job, origins and remedies of the first row, where that is no longer the usual one."""
    if not answer.candidates:
        return answer
    first = answer.candidates[0].evaluation
    before = usual.candidates[0].evaluation
    if (first.job, first.setting) == (before.job, before.setting):
        return answer
    names = [f"layout.{name}" for name in changed_fields(usual.job.layout, first.job.layout)]
    names += [f"job.{name}" for name in changed_fields(usual.job.config, first.job.config)]
    return replace(
        answer,
        job=first.job,
        usual=usual.usual or usual.job,
        origin={**answer.origin, **dict.fromkeys(names, str(SEARCHED))},
        remedies=find_remedies(first, calibration),
    )


def _fastest(settled: Sequence[Evaluation]) -> float:
    """Seconds of the first that is known to fit, if any."""
    fitting = [e.step_time_seconds for e in settled if e.fits and e.requests is not None]
    return min(fitting, default=inf)


def _searched(
    job: Job, calibration: Calibration, given: Collection[str], seconds: float
) -> tuple[list[Branch], FoundPoint]:
    """The space, and what is faster in it than `seconds`."""
    try:
        space = branches(job, calibration, given)
    except KeyboardInterrupt:
        return [], FoundPoint(evaluation=None, evaluated=0, bound=0.0, stopped=True)
    return space, PointSearch(space, calibration, seconds * (1 - SAME)).run()


def settled_first(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """`evaluations` with the allocator simulated on each that may come first, in the order of their
    times, until one is known to fit: no other that fits is faster."""
    found = list(evaluations)
    by_time = sorted(range(len(found)), key=lambda k: (found[k].step_time_seconds, order(found[k])))
    for number in by_time:
        if found[number].fit_probability > 1 - CLEAR:
            found[number] = found[number].simulated
            if found[number].fits:
                break
    return found


def _ranked(usual: Answer, evaluations: list[Evaluation]) -> tuple[RankedEvaluation, ...]:
    """All rows best first; those of the usual answer keep what was said of them."""
    said = {(c.evaluation.job, c.evaluation.setting): c for c in usual.candidates}

    settings = parts_of(usual.job.config.framework).settings

    def known(one: Evaluation) -> RankedEvaluation | None:
        return said.get((one.job, one.setting))

    def notes(one: Evaluation) -> tuple[str, ...]:
        row = known(one)
        return row.notes if row else settings.notes(one.setting, one.job)

    def is_preset(one: Evaluation) -> bool:
        row = known(one)
        return row is not None and row.preset

    ranked = rank(evaluations, notes, is_preset)
    return tuple(replace(row, preset=is_preset(row.evaluation)) for row in ranked)


def _proof(
    candidates: tuple[RankedEvaluation, ...],
    menu: list[Evaluation],
    solved: Solved | None,
    searched: list[Branch],
    found: FoundPoint,
) -> Optimum:
    """Of the first row: every setting of the menu was evaluated, a solver has its own bound, and so
    has the search, whose space the menu is a part of."""
    num_menu, usual = len(menu), _fastest(menu)
    first = candidates[0] if candidates and candidates[0].evaluation.fits else None
    seconds = first.evaluation.step_time_seconds if first else inf
    bound = min(seconds, solved.bound_seconds if solved else inf)
    if searched or found.stopped:
        bound = min(bound, found.bound)
    if bound >= seconds * (1 - 2 * SAME):
        bound = seconds
    points = sum(branch.num_points for branch in searched) or num_menu
    evaluated = num_menu + found.evaluated
    excluded = points - evaluated if searched and not found.stopped else 0
    if solved is not None:
        excluded, evaluated = excluded + solved.excluded, evaluated + solved.evaluated
        points += solved.num_points or 0
    of_stages = () if found.stopped else _beyond(searched, first)
    of_menu = f"the {num_menu} settings of the ranking without --search optimum"
    return Optimum(
        best=OptimumRow(rank=1, spec=first.evaluation.setting.spec) if first else None,
        bound_seconds=bound if 0 < bound < inf else None,
        gap=(seconds / bound - 1 if bound else None) if first else 0.0,
        gain=1 - seconds / usual if usual < inf else None,
        space=(*(space(searched) or (of_menu,)), *(solved.space if solved else ())),
        num_points=points if solved is None or solved.num_points is not None else None,
        evaluated=evaluated,
        excluded_by_bound=max(0, excluded),
        beyond=(*of_stages, *(solved.beyond if solved else ())),
    )


def _beyond(searched: list[Branch], first: RankedEvaluation | None) -> tuple[str, ...]:
    """What is proven stands without it."""
    try:
        return per_stage(searched, first.evaluation if first else None)
    except KeyboardInterrupt:
        return ("recompute chosen for each pipeline stage: stopped before the gain was known",)


def least_changed(found: Evaluation, usual: Job) -> Evaluation:
    """`found`, or a setting of the menu or its own, on its job or on the split of the `usual` one,
    that fits and takes the same time: of the fewest words, then on the usual split."""
    seconds = found.step_time_seconds * (1 + SAME_TIME)
    evaluators = [Evaluator(job, found.calibration) for job in _jobs(found.job, usual)]
    tied = [
        (len(words_of(timed.setting)), place, timed.time.total, timed)
        for place, evaluator in enumerate(evaluators)
        for timed in _timed(evaluator, found)
        if timed.time.total <= seconds
    ]
    own = len(words_of(found.setting)), len(evaluators) - 1, found.step_time_seconds
    for words, place, total, timed in sorted(tied, key=lambda one: one[:3]):
        if (words, place, total) >= own:
            break
        other = evaluators[place].evaluate_timed(timed)
        if other.fit_probability > 1 - CLEAR and other.simulated.fits:
            return other.simulated
    return found


def _jobs(job: Job, usual: Job) -> Iterator[Job]:
    """The job on the usual split, where that is another and legal, then the job."""
    if job.layout != usual.layout:
        with suppress(UserError):
            yield replace(job, layout=usual.layout)
    yield job


def _timed(evaluator: Evaluator, found: Evaluation) -> Iterator[Timed]:
    own = parts_of(found.job.config.framework).settings
    settings = dict.fromkeys((own.none, *own.candidates(evaluator.job), found.setting))
    return (evaluator.timed(one) for one in settings if is_legal(one, evaluator.job))
