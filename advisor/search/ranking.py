"""Order of evaluations: what fits first, then time, then memory; which are dominated or alike."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from advisor.answer.answer import SAME_TIME, RankedEvaluation
from advisor.answer.evaluation import LIKELY, Evaluation
from advisor.base.pareto import dominators
from advisor.base.units import GIB
from advisor.plan.recompute_plan import Setting, recomputes, words_of

AT_THE_EDGE, UNFIT = 1, 2
"""Tiers of what is as likely as not to fit, and of what does not."""
_LEAST = (LIKELY, 0.5, 0.0)
"""Probability that each tier begins with."""

Order = tuple[int, float, bool, int]
"""Place in the ranking, the smallest first."""


def tier(evaluation: Evaluation) -> int:
    """0: fits, 1: at the edge (as likely as not), 2: does not fit."""
    return _tier(evaluation.fit_probability)


def _tier(probability: float) -> int:
    return next(level for level, least in enumerate(_LEAST) if probability >= least)


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
    while len(found) < len(ordered):
        first, *others = ordered[len(found) :]
        level, most = tier(first), first.step_time_seconds * (1 + SAME_TIME)
        ties = [first]
        for one in others if level < UNFIT else ():
            if tier(one) != level or one.step_time_seconds > most:
                break
            ties.append(one)
        found += sorted(ties, key=_effort)
    return found


def _effort(evaluation: Evaluation) -> tuple[bool, int, int]:
    """What a row asks for: recompute at all, groups beyond NVLink, words."""
    layout, setting = evaluation.job.layout, evaluation.setting
    tp, ep = layout.tensor_model_parallel_size, layout.expert_model_parallel_size
    degrees = tp, tp * layout.context_parallel_size, ep
    beyond = sum(degree > evaluation.job.gpu.nvlink_domain_size for degree in degrees)
    return recomputes(setting), beyond, len(words_of(setting))


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


_SHOWN = 10
_MOST_UNUSED, _MOST_UNUSED_EAGER = 0.4, 0.8
"""Shares of allocated bytes that no allocator leaves unused: 0.35, and 0.79 of torch's own layers,
is the most of 2,900 simulations of settings of 110 random jobs in seven frameworks."""


def first_simulated(
    evaluations: Sequence[Evaluation], compared: Sequence[Setting] = ()
) -> tuple[Evaluation, ...]:
    """`evaluations` with the allocator simulated for all that may come first, and for the rows that
    a page shows wherever a simulation may say something else of what fits; `compared` are shown.

    What may come first is simulated the fastest first, until one fits: no row is simulated in vain.
    """
    found = list(evaluations)
    while waiting := _may_be_first(found) or _unclear(found, compared):
        found[waiting[0]] = found[waiting[0]].simulated
    return falling_with_peaks(found)


def _may_be_first(found: Sequence[Evaluation]) -> list[int]:
    """Where in `found` the rows are that a simulation may put first, the fastest first."""
    if not found:
        return []
    first, simplest = min(found, key=order), in_order(found)[0]
    if first.requests is None or simplest.requests is None:
        return [found.index(first if first.requests is None else simplest)]
    level, seconds = tier(first), first.step_time_seconds

    def displaces(one: Evaluation) -> bool:
        slower = one.step_time_seconds >= seconds
        if one.requests is not None or (slower and not level):
            return False
        at_best = _tier(one.likely_with(0.0))
        return at_best < level or (at_best == level < UNFIT and not slower)

    rows = [row for row, one in enumerate(found) if displaces(one)]
    return sorted(rows, key=lambda row: found[row].step_time_seconds)


def _unclear(found: Sequence[Evaluation], compared: Sequence[Setting]) -> list[int]:
    """Where the rows are that a page shows and of which a simulation may say something else."""
    ranked = rank(found, kept=lambda one: one.setting in compared)
    listed = [row.evaluation for row in ranked if not row.folded]
    shown = {id(one) for n, one in enumerate(listed) if n < _SHOWN or one.setting in compared}
    return [row for row, one in enumerate(found) if id(one) in shown and _is_unclear(one)]


def _is_unclear(one: Evaluation) -> bool:
    """Whether a simulation may say something else of whether it fits."""
    if one.requests is not None:
        return False
    eager = one.job.model.transformer_impl.is_eager
    most = _MOST_UNUSED_EAGER if eager else _MOST_UNUSED
    said = tier(one)
    return any(_tier(one.likely_with(share)) != said for share in (0.0, most))


def falling_with_peaks(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """`evaluations` of which, within one job, none is surer to fit than a smaller one: estimates
    move to what simulations say; these move within their tiers."""
    likely = [one.fit_probability for one in evaluations]
    jobs: dict[int, list[int]] = {}
    for row in sorted(range(len(likely)), key=lambda row: evaluations[row].peak_reserved_bytes):
        jobs.setdefault(id(evaluations[row].job), []).append(row)
    for rows in jobs.values():
        said = [row for row in rows if evaluations[row].requests is not None]
        for smaller, row in pairwise(said):
            least = _LEAST[_tier(likely[row])]
            likely[row] = max(min(likely[row], likely[smaller]), least)
        estimated, least, most = set(rows) - set(said), 0.0, 1.0
        for row in reversed(rows):
            likely[row] = max(likely[row], least) if row in estimated else likely[row]
            least = least if row in estimated else max(least, likely[row])
        for row in rows:
            likely[row] = min(likely[row], most) if row in estimated else likely[row]
            most = min(most, likely[row])
    moved = zip(evaluations, likely, strict=True)
    return tuple(
        one if probability == one.fit_probability else replace(one, fit_probability=probability)
        for one, probability in moved
    )
