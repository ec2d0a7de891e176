"""`--search optimum`: the usual answer with the optimum of its job in front, and the proof."""

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.answer.answer import Answer, Optimum, OptimumRow, RankedEvaluation
from advisor.answer.evaluation import CLEAR, Evaluation
from advisor.frameworks.protocols import FrameworkAdapter, Solved
from advisor.hardware.calibration import Calibration
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import order, rank


def with_optimum(usual: Answer, stack: FrameworkAdapter, calibration: Calibration) -> Answer:
    """`usual` with the rows that the framework's own solver adds, and with what is proven of the
    first: that nothing in the stated space is faster and fits, by the model's times and bytes."""
    solved = stack.solved(Evaluator(usual.job, calibration))
    menu = [candidate.evaluation for candidate in usual.candidates]
    own = Evaluator(usual.job, calibration)
    added = [own.evaluate(setting) for setting in solved.settings] if solved else []
    settled = settled_first([*menu, *added])
    candidates = _ranked(usual, settled, stack)
    return replace(
        usual,
        candidates=candidates,
        evaluated=usual.evaluated + len(added),
        optimum=_proof(candidates, len(menu), solved),
    )


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
    candidates: tuple[RankedEvaluation, ...], num_menu: int, solved: Solved | None
) -> Optimum:
    """Of the first row: every setting of the menu was evaluated, and a solver has its own bound."""
    first = candidates[0] if candidates and candidates[0].evaluation.fits else None
    seconds = first.evaluation.step_time_seconds if first else None
    bound = seconds if not (solved and seconds) else min(seconds, solved.bound_seconds)
    points: int | None = num_menu
    if solved is not None:
        points = None if solved.num_points is None else num_menu + solved.num_points
    return Optimum(
        best=OptimumRow(rank=1, spec=first.evaluation.setting.spec) if first else None,
        bound_seconds=bound,
        gap=seconds / bound - 1 if seconds and bound else 0.0,
        space=(f"the {num_menu} legal settings of the menu", *(solved.space if solved else ())),
        num_points=points,
        evaluated=num_menu + (solved.evaluated if solved else 0),
        excluded_by_bound=solved.excluded if solved else 0,
        beyond=solved.beyond if solved else (),
    )
