"""Order of evaluations: what fits first, then time, then memory; which are dominated or alike."""

from collections.abc import Callable, Sequence

from advisor.answer.answer import SAME_TIME, RankedEvaluation
from advisor.answer.evaluation import CLEAR, LIKELY, Evaluation
from advisor.base.pareto import dominators
from advisor.base.units import GIB
from advisor.plan.recompute_plan import Setting, recomputes

AT_THE_EDGE, UNFIT = 1, 2
"""Tiers of what is as likely as not to fit, and of what does not."""
_EVEN = 0.5

Order = tuple[int, float, bool, int]
"""Place in the ranking, the smallest first."""


def tier(evaluation: Evaluation) -> int:
    """0: fits, 1: at the edge (as likely as not), 2: does not fit."""
    probability = evaluation.fit_probability
    return 0 if probability >= LIKELY else AT_THE_EDGE if probability >= _EVEN else UNFIT


def order(evaluation: Evaluation) -> Order:
    """Sort key; of settings that do not fit the smallest comes first. Of two that take the same
    time `none` comes first, then the smaller."""
    peak, seconds = evaluation.peak_reserved_bytes, evaluation.step_time_seconds
    level = tier(evaluation)
    something = recomputes(evaluation.setting)
    if level == UNFIT:
        return level, float(peak), something, 0
    return level, seconds, something, peak


def rank(
    evaluations: Sequence[Evaluation],
    notes: Callable[[Evaluation], tuple[str, ...]] = lambda _: (),
    kept: Callable[[Evaluation], bool] = lambda _: False,
) -> tuple[RankedEvaluation, ...]:
    """Candidates best first; `notes` gives each its remarks.

    Folded is what an earlier row surely beats or runs like, except the first row, no recompute on
    its job, the first that fits without recompute, and what is to be `kept`.
    """
    ordered = sorted(evaluations, key=order)
    beaten_by = dominators([memory_and_time(evaluation) for evaluation in ordered])
    ranked = enumerate(zip(ordered, beaten_by, alike(ordered), strict=True), start=1)
    fitting = next((one for one in ordered if one.fits and not recomputes(one.setting)), None)
    shown: list[Evaluation] = []

    def folded(evaluation: Evaluation, same: int | None) -> bool:
        own = evaluation.job is ordered[0].job and not recomputes(evaluation.setting)
        if own or evaluation is fitting or kept(evaluation):
            return False
        return same is not None or any(_surely_beats(one, evaluation) for one in shown)

    found = []
    for number, (evaluation, by, same) in ranked:
        is_folded = folded(evaluation, same)
        shown += [] if is_folded else [evaluation]
        found.append(
            RankedEvaluation(
                rank=number,
                evaluation=evaluation,
                dominated_by=None if by is None else by + 1,
                same_as=same,
                folded=is_folded,
                notes=notes(evaluation),
            )
        )
    return tuple(found)


def _surely_beats(one: Evaluation, other: Evaluation) -> bool:
    """Whether it takes no more time and no more memory."""
    no_slower = one.step_time_seconds <= other.step_time_seconds
    no_larger = one.peak_reserved_bytes <= other.peak_reserved_bytes
    return no_slower and no_larger and _surely_no_larger(one, other)


def _surely_no_larger(one: Evaluation, other: Evaluation) -> bool:
    """Whether a peak that is no larger is so by one measure: a simulation and an estimate are
    two."""
    one_measure = (one.requests is None) == (other.requests is None)
    return one_measure or one.usual_reserved_bytes <= other.usual_reserved_bytes


def memory_and_time(evaluation: Evaluation) -> tuple[int, float, bool]:
    """Costs of the Pareto front: bytes, seconds, and whether anything is recomputed."""
    peak, seconds = evaluation.peak_reserved_bytes, evaluation.step_time_seconds
    return peak, seconds, recomputes(evaluation.setting)


def alike(ordered: Sequence[Evaluation]) -> list[int | None]:
    """For each row of a ranking the rank of the first that runs like it: with the same peak in
    tenths of a GiB and the same step time, and as likely to fit; None where there is none."""
    firsts: dict[tuple[int, int], list[tuple[int, float]]] = {}
    found: list[int | None] = []
    for number, evaluation in enumerate(ordered, start=1):
        seconds = evaluation.step_time_seconds
        tenths = round(evaluation.peak_reserved_bytes * 10 / GIB)
        near = firsts.setdefault((tier(evaluation), tenths), [])
        same = (rank for rank, first in near if abs(seconds - first) < SAME_TIME * first)
        found.append(next(same, None))
        if found[-1] is None:
            near.append((number, seconds))
    return found


_REQUESTS = 8_000
_REQUESTS_WHERE_FAR = 40_000
_REQUESTS_WHERE_NOTHING_FITS = 400_000
"""After so many no further row is simulated: about 15, 70 and 700 ms. What allocators usually leave
unused is within 2 % of a simulation where segments expand, except for torch's own layers; elsewhere
it is up to 15 % off, for torch's own layers more. That nothing fits is not said before it is
simulated."""
_HEAD = 32
_SHOWN = 10


def first_simulated(
    evaluations: Sequence[Evaluation], compared: Sequence[Setting] = ()
) -> tuple[Evaluation, ...]:
    """`evaluations` with the allocator simulated for the one that comes first then, and while that
    takes little for those that it is `compared` with, for those of which it is not clear whether
    they fit, and for the other rows that a page shows."""
    head = dict(enumerate(_head(evaluations, compared)))
    replaced: dict[int, Evaluation] = {}
    spent = 0
    while head:
        rows = sorted(head, key=lambda row: order(head[row]))
        first, *others = rows
        if head[first].requests is None:
            row = first
        else:
            waiting = [row for row in others if head[row].requests is None]
            unclear = [row for row in waiting if _is_unclear(head[row])]
            wanted = [
                *(row for row in waiting if head[row].setting in compared),
                *unclear,
                *(row for row in rows[:_SHOWN] if row in waiting),
            ]
            if spent > _requests(head[first]):
                wanted = unclear if tier(head[first]) else []
            if not wanted or spent > _REQUESTS_WHERE_NOTHING_FITS:
                break
            row = wanted[0]
        before = head[row]
        head[row] = replaced[id(before)] = before.simulated
        spent += before.simulated.requests or 0
    return tuple(replaced.get(id(evaluation), evaluation) for evaluation in evaluations)


def _head(evaluations: Sequence[Evaluation], compared: Sequence[Setting]) -> list[Evaluation]:
    """The first rows, what they are compared with, and what may come before them."""
    ordered = sorted(evaluations, key=order)
    least = ordered[0].step_time_seconds if ordered else 0.0
    further = [
        evaluation
        for evaluation in ordered[_HEAD:]
        if evaluation.setting in compared
        or (_is_unclear(evaluation) and evaluation.step_time_seconds < least)
    ]
    return [*ordered[:_HEAD], *further[:_HEAD]]


def _requests(evaluation: Evaluation) -> int:
    job = evaluation.job
    near = job.config.expandable_segments and not job.model.transformer_impl.is_eager
    return _REQUESTS if near else _REQUESTS_WHERE_FAR


def _is_unclear(evaluation: Evaluation) -> bool:
    """Whether a simulation may say something else of what fits."""
    return 1 - CLEAR < evaluation.fit_probability < CLEAR
