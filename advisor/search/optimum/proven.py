"""`--search optimum`: the usual answer with the optimum of its job in front, and the proof."""

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from advisor.answer.answer import Answer, Optimum, OptimumRow, RankedEvaluation
from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.frameworks.protocols import FrameworkAdapter, Solved
from advisor.hardware.calibration import Calibration
from advisor.search.evaluate import Evaluator
from advisor.search.optimum.best_first import BestFirst, Branch, Found
from advisor.search.optimum.branches import branches, space
from advisor.search.optimum.per_stage import per_stage
from advisor.search.ranking import order, rank

_GIVEN = "given"
SAME = 1e-9
"""Share by which times may differ that are the same: a step is a sum of thousands of rounded
seconds, each off by at most one part in 10^16."""


def with_optimum(usual: Answer, stack: FrameworkAdapter, calibration: Calibration) -> Answer:
    """`usual` with what a search over all that the framework can be told finds, and its own solver;
    and what is proven of the first row: that nothing in the stated space is faster and fits, by the
    model's times and bytes."""
    own = Evaluator(usual.job, calibration)
    solved = stack.solved(own)
    menu = [candidate.evaluation for candidate in usual.candidates]
    added = [own.evaluate(setting) for setting in solved.settings] if solved else []
    settled = settled_first([*menu, *added])
    given = [path for path, origin in usual.origin.items() if origin == _GIVEN]
    searched = branches(usual.job, stack, calibration, given)
    found = _search(searched, stack, calibration, settled)
    if found.evaluation is not None:
        settled.append(found.evaluation)
    candidates = _ranked(usual, settled, stack)
    return replace(
        usual,
        job=candidates[0].evaluation.job if candidates else usual.job,
        candidates=candidates,
        evaluated=usual.evaluated + len(added) + found.evaluated,
        optimum=_proof(candidates, len(menu), solved, searched, found),
    )


def _search(
    searched: list[Branch],
    stack: FrameworkAdapter,
    calibration: Calibration,
    settled: list[Evaluation],
) -> Found:
    """What is faster than all that is known to fit."""
    fitting = [e.step_time_seconds for e in settled if e.fits and e.requests is not None]
    below = min(fitting, default=inf) * (1 - SAME)
    return BestFirst(
        searched, calibration, lambda setting, job: not stack.check(setting, job), below
    ).run()


def settled_first(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """`evaluations` with the allocator replayed on each that may come first, in the order of their
    times, until one is known to fit: no other that fits is faster."""
    found = list(evaluations)
    by_time = sorted(range(len(found)), key=lambda k: (found[k].step_time_seconds, order(found[k])))
    for number in by_time:
        if found[number].fit_probability > 1 - CLEAR:
            found[number] = found[number].replayed
            if found[number].fits:
                break
    return found


def _ranked(
    usual: Answer, evaluations: list[Evaluation], stack: FrameworkAdapter
) -> tuple[RankedEvaluation, ...]:
    """All rows best first; those of the usual answer keep what was said of them."""
    said = {(c.evaluation.job, c.evaluation.setting): c for c in usual.candidates}

    def notes(evaluation: Evaluation) -> tuple[str, ...]:
        known = said.get((evaluation.job, evaluation.setting))
        return known.notes if known else stack.notes(evaluation.setting, evaluation.job)

    shipped = {key for key, candidate in said.items() if candidate.preset}

    def is_preset(evaluation: Evaluation) -> bool:
        return (evaluation.job, evaluation.setting) in shipped

    return tuple(
        replace(c, preset=is_preset(c.evaluation)) for c in rank(evaluations, notes, is_preset)
    )


def _proof(
    candidates: tuple[RankedEvaluation, ...],
    num_menu: int,
    solved: Solved | None,
    searched: list[Branch],
    found: Found,
) -> Optimum:
    """Of the first row: every setting of the menu was evaluated, a solver has its own bound, and so
    has the search, whose space the menu is a part of."""
    first = candidates[0] if candidates and candidates[0].evaluation.fits else None
    seconds = first.evaluation.step_time_seconds if first else inf
    bound = min(seconds, solved.bound_seconds if solved else inf)
    if searched:
        bound = min(bound, found.bound)
    if bound >= seconds * (1 - 2 * SAME):
        bound = seconds
    points = sum(branch.num_points for branch in searched) or num_menu
    evaluated = num_menu + found.evaluated
    excluded = points - evaluated if searched else 0
    if solved is not None:
        excluded, evaluated = excluded + solved.excluded, evaluated + solved.evaluated
        points += solved.num_points or 0
    return Optimum(
        best=OptimumRow(rank=1, spec=first.evaluation.setting.spec) if first else None,
        bound_seconds=bound if bound < inf else None,
        gap=seconds / bound - 1 if first else 0.0,
        space=(*(space(searched) or _menu(num_menu)), *(solved.space if solved else ())),
        num_points=points if solved is None or solved.num_points is not None else None,
        evaluated=evaluated,
        excluded_by_bound=max(0, excluded),
        beyond=(
            *per_stage(searched, first.evaluation if first else None),
            *(solved.beyond if solved else ()),
        ),
    )


def _menu(number: int) -> tuple[str, ...]:
    return (f"the {number} settings of the menu",)
