"""Order of evaluations: what fits first, then time, then memory; which are dominated or alike."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, RankedEvaluation
from advisor.answer.evaluation import Evaluation
from advisor.base.pareto import dominators
from advisor.base.units import GIB
from advisor.plan.recompute_plan import Setting, recomputes, words_of

AT_THE_EDGE, UNFIT = 1, 2
"""Tiers of what is as likely as not to fit, and of what does not."""

Order = tuple[int, float, bool, int]
"""Place in the ranking, the smallest first."""


def tier(evaluation: Evaluation) -> int:
    """0: fits, 1: at the edge (as likely as not), 2: does not fit."""
    return _tier(evaluation, evaluation.fit_probability)


def _tier(evaluation: Evaluation, probability: float) -> int:
    return next(level for level, least in enumerate(_least(evaluation)) if probability >= least)


def _least(evaluation: Evaluation) -> tuple[float, ...]:
    """Probability that each tier begins with."""
    return evaluation.job.config.certainty, 0.5, 0.0


def order(evaluation: Evaluation) -> Order:
    """Sort key; of settings that do not fit the smallest comes first. Of two that take the same
    time `none` comes first, then the smaller."""
    peak, seconds = evaluation.peak_reserved_bytes, evaluation.step_time_seconds
    level, something = tier(evaluation), recomputes(evaluation.setting)
    if level == UNFIT:
        return level, float(peak), something, 0
    return level, seconds, something, peak


def rank(
    evaluations: Sequence[Evaluation],
    notes: Callable[[Evaluation], tuple[str, ...]] = lambda _: (),
    kept: Callable[[Evaluation], bool] = lambda _: False,
) -> tuple[RankedEvaluation, ...]:
    """Candidates best first; `notes` gives each its remarks.

    Folded is what an earlier row surely beats or runs like, and what is inside a ladder, except the
    first row, no recompute on its job, the first that fits without recompute, and what is to be
    `kept`.
    """
    ordered = in_order(evaluations)
    beaten_by = dominators([memory_and_time(evaluation) for evaluation in ordered])
    ranked = enumerate(zip(ordered, beaten_by, alike(ordered), strict=True), start=1)
    fitting = next((one for one in ordered if one.fits and not recomputes(one.setting)), None)
    shown: list[Evaluation] = []

    def stays(evaluation: Evaluation) -> bool:
        own = evaluation.job is ordered[0].job and not recomputes(evaluation.setting)
        return own or evaluation is fitting or evaluation is ordered[0] or kept(evaluation)

    def folded(evaluation: Evaluation, same: int | None) -> bool:
        if stays(evaluation):
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
    inside = {id(one) for one in inside_ladders(shown) if not stays(one)}
    return tuple(
        replace(row, folded=True) if id(row.evaluation) in inside else row for row in found
    )


def in_order(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Best first; of what takes the same time (SAME_TIME) the simplest first."""
    ordered, found = sorted(evaluations, key=order), list[Evaluation]()
    while ordered:
        level, most = tier(ordered[0]), ordered[0].step_time_seconds * (1 + SAME_TIME)
        same = (tier(one) == level and one.step_time_seconds <= most for one in ordered)
        ties = sum(takewhile(bool, same)) if level < UNFIT else 1
        found += sorted(ordered[:ties], key=_effort)
        ordered = ordered[ties:]
    return found


def _effort(evaluation: Evaluation) -> tuple[bool, int, int]:
    """What a row asks for: recompute at all, groups beyond NVLink, words."""
    layout, most = evaluation.job.layout, evaluation.job.gpu.nvlink_domain_size
    tp, ep = layout.tensor_model_parallel_size, layout.expert_model_parallel_size
    beyond = (tp * layout.context_parallel_size > most) + (ep > most)
    return recomputes(evaluation.setting), beyond, len(words_of(evaluation.setting))


def inside_ladders(ordered: Sequence[Evaluation]) -> list[Evaluation]:
    """Of settings of one job that differ in a last number alone (``full:block:N``) those that are
    neither an end nor the first that fits."""
    ladders: dict[tuple[int, str], list[tuple[int, Evaluation]]] = {}
    for one in ordered:
        kind, _, number = one.setting.spec.rpartition(":")
        if number.isdecimal():
            ladders.setdefault((id(one.job), kind), []).append((int(number), one))
    inside: list[Evaluation] = []
    for steps in ladders.values():
        ends = min(number for number, _ in steps), max(number for number, _ in steps)
        knee = next((one for _, one in steps if one.fits), None)
        inside += [one for number, one in steps if number not in ends and one is not knee]
    return inside


def _surely_beats(one: Evaluation, other: Evaluation) -> bool:
    """Whether it takes no more time and, by one measure, no more memory: a simulation and an
    estimate are two."""
    one_measure = (one.requests is None) == (other.requests is None)
    smaller = one_measure or one.usual_reserved_bytes <= other.usual_reserved_bytes
    no_slower = one.step_time_seconds <= other.step_time_seconds
    return no_slower and smaller and one.peak_reserved_bytes <= other.peak_reserved_bytes


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


_SHOWN = 10
_MOST_UNUSED, _MOST_UNUSED_EAGER = 0.4, 0.8
"""Shares of allocated bytes above which no allocator is taken to leave unused, a judgement: of
5,335 rows of 169 random jobs the simulated peak is at most 31 % above the one with the usual share,
66 % with torch's own layers."""


def first_simulated(
    evaluations: Sequence[Evaluation], compared: Sequence[Setting] = ()
) -> tuple[Evaluation, ...]:
    """`evaluations` with the allocator simulated for all that may come first, and for the rows that
    a page shows wherever a simulation may say something else of what fits; `compared` are shown.

    What may come first is simulated the fastest first, until one fits: no row is simulated in vain.
    """
    found = list(evaluations)
    while found and (waiting := _may_be_first(found) or _unclear(found, compared)):
        row = found.index(waiting[0])
        found[row] = found[row].simulated
    return falling_with_peaks(found)


def _may_be_first(found: Sequence[Evaluation]) -> list[Evaluation]:
    """What a simulation may put first, the fastest first."""
    ordered = in_order(found)
    firsts = [one for one in (min(found, key=order), *ordered[:1]) if one.requests is None]
    level, seconds = tier(ordered[0]), min(found, key=order).step_time_seconds

    def displaces(one: Evaluation) -> bool:
        faster = one.step_time_seconds < seconds
        if one.requests is not None or not (faster or level):
            return False
        return _tier(one, one.likely_with(0.0)) < min(level + faster, UNFIT)

    return firsts or sorted(filter(displaces, found), key=lambda one: one.step_time_seconds)


def _unclear(found: Sequence[Evaluation], compared: Sequence[Setting]) -> list[Evaluation]:
    """What a page shows and a simulation may say something else of."""
    listed = rank(found, kept=lambda one: one.setting in compared)
    rows = [row.evaluation for row in listed if not row.folded]
    shown = rows[:_SHOWN] + [one for one in rows[_SHOWN:] if one.setting in compared]
    return [one for one in shown if one.requests is None and _may_change(one)]


def _may_change(one: Evaluation) -> bool:
    most = _MOST_UNUSED_EAGER if one.job.model.transformer_impl.is_eager else _MOST_UNUSED
    return any(_tier(one, one.likely_with(share)) != tier(one) for share in (0.0, most))


def falling_with_peaks(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """`evaluations` of which, within one job, none is surer to fit than a smaller one: estimates
    move to what simulations say; these move within their tiers."""
    found, jobs = list(evaluations), dict[int, list[int]]()
    for row in sorted(range(len(found)), key=lambda row: found[row].peak_reserved_bytes):
        jobs.setdefault(id(found[row].job), []).append(row)
    for rows in jobs.values():
        most, least = 1.0, 0.0
        for row in rows:
            likely = min(found[row].fit_probability, most)
            if found[row].requests is not None:
                likely = most = max(likely, _least(found[row])[tier(found[row])])
            found[row] = replace(found[row], fit_probability=likely)
        for row in reversed(rows):
            likely = max(found[row].fit_probability, least)
            if found[row].requests is None:
                found[row] = replace(found[row], fit_probability=likely)
            else:
                least = likely
    return tuple(found)
