"""Order of evaluations: what fits first, then time, then memory; which are dominated."""

from collections.abc import Callable, Sequence

from advisor.answer.answer import RankedEvaluation
from advisor.answer.evaluation import LIKELY, Evaluation
from advisor.plan.recompute_plan import recomputes

_EVEN = 0.5

Order = tuple[int, float, bool, int]
"""Place in the ranking, the smallest first."""


def tier(evaluation: Evaluation) -> int:
    """0: fits, 1: at the edge (as likely as not), 2: does not fit."""
    probability = evaluation.fit_probability
    return 0 if probability >= LIKELY else 1 if probability >= _EVEN else 2


def order(evaluation: Evaluation) -> Order:
    """Sort key; of settings that do not fit the smallest comes first. Of two that take the same
    time `none` comes first, then the smaller."""
    peak, seconds = evaluation.peak_reserved_bytes, evaluation.step_time_seconds
    level = tier(evaluation)
    something = recomputes(evaluation.setting)
    if level == 2:
        return level, float(peak), something, 0
    return level, seconds, something, peak


def rank(
    evaluations: Sequence[Evaluation],
    notes: Callable[[Evaluation], tuple[str, ...]] = lambda _: (),
) -> tuple[RankedEvaluation, ...]:
    """Candidates best first; `notes` gives each its remarks."""
    ordered = sorted(evaluations, key=order)
    front = pareto_front(ordered)
    return tuple(
        RankedEvaluation(
            rank=number,
            evaluation=evaluation,
            pareto=id(evaluation) in front,
            notes=notes(evaluation),
        )
        for number, evaluation in enumerate(ordered, start=1)
    )


_REPLAYED_REQUESTS = 8_000
"""After so many no further row is replayed: about 15 ms."""
_HEAD = 32
_CLEAR = 0.95


def first_replayed(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """`evaluations` with the allocator replayed for the one that comes first then, and while that
    takes little for those of which it is not clear whether they fit, and for other first rows."""
    head = dict(enumerate(sorted(evaluations, key=order)[:_HEAD]))
    replaced: dict[int, Evaluation] = {}
    spent = 0
    while True:
        rows = sorted(head, key=lambda row: order(head[row]))
        waiting = [row for row in rows if head[row].requests is None]
        if not waiting or (waiting[0] != rows[0] and spent > _REPLAYED_REQUESTS):
            break
        unclear = [row for row in waiting if 1 - _CLEAR < head[row].fit_probability < _CLEAR]
        first = [rows[0]] if rows[0] == waiting[0] else []
        row = (*first, *unclear, *waiting)[0]
        before = head[row]
        head[row] = replaced[id(before)] = before.replayed
        spent += before.replayed.requests or 0
    return tuple(replaced.get(id(evaluation), evaluation) for evaluation in evaluations)


def pareto_front(evaluations: Sequence[Evaluation]) -> set[int]:
    """Identities of evaluations that no other beats in both peak memory and step time."""
    by_memory = sorted(
        evaluations,
        key=lambda e: (e.peak_reserved_bytes, e.step_time_seconds, recomputes(e.setting)),
    )
    front: set[int] = set()
    fastest = float("inf")
    for evaluation in by_memory:
        if evaluation.step_time_seconds < fastest:
            front.add(id(evaluation))
            fastest = evaluation.step_time_seconds
    return front
