"""All settings of one job in a ranking, and the changes outside recompute that would help it."""

from collections.abc import Iterable

from msgspec.structs import replace

from advisor.answer.answer import Answer, Rejection, Remedy
from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.base.fields import join_key_values
from advisor.base.units import GIB
from advisor.frameworks.part_types import Effect
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.layout import ParallelLayout
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.layout_fields import degree_words
from advisor.request.resolve import Resolution
from advisor.search.answer_parts import answer_of, notes_on
from advisor.search.changed_options import changed, changes
from advisor.search.evaluate import Evaluator
from advisor.search.near_changes import Neighbour, neighbours
from advisor.search.ranking import Order, first_simulated, order, rank, tier

_SHOWN = 4
_SIMULATIONS = 2
"""Settings of a changed job whose allocator is simulated at most."""
_LEAST_BYTES = GIB // 20
"""What no page would show (-0.0 GiB)."""


def find_remedies(
    best: Evaluation, calibration: Calibration, asked: tuple[Setting, ...] = ()
) -> tuple[Remedy, ...]:
    """Remedies against `best`, the first of the ranking, most useful first; none where it fits.

    asked: the settings that a remedy may go with; empty means any legal one. A remedy must need
    less memory; those that make it fit come first. All of them with the allocator simulated, as
    `best` is. Where none makes it fit, the first that does and trains another thing comes last.
    """
    if best.fits:
        return ()
    best = best.simulated
    trains = frozenset((Effect.TRAINS,))
    found = _helping(neighbours(best.job, frozenset(Effect) - trains), best, calibration, asked)
    shown = [remedy for _, remedy in sorted(found, key=lambda pair: pair[0])[:_SHOWN]]
    if not any(remedy.fit_probability >= best.job.config.certainty for remedy in shown):
        others = (Neighbour(c.words, c.why, c.make()) for c in changes(best.job, trains))
        likely = (one for _, one in _helping(others, best, calibration, asked))
        enough = (one for one in likely if one.fit_probability >= best.job.config.certainty)
        shown += list(enough)[:1]
    return tuple(shown)


def _helping(
    others: Iterable[Neighbour],
    best: Evaluation,
    calibration: Calibration,
    asked: tuple[Setting, ...],
) -> list[tuple[Order, Remedy]]:
    """Those of `others` that a framework takes and that help, in their order."""
    found: list[tuple[Order, Remedy]] = []
    settings = parts_of(best.job.config.framework).settings
    for change in others:
        if not settings.check_job(change.job):
            other = _first_that_helps(Evaluator(change.job, calibration), best, asked)
            found += [] if other is None else [(order(other), _remedy(change, other, best))]
    return found


def other_job(found: Evaluation, best: Evaluation) -> Remedy:
    """The best that was found on other layouts and with other options, against `best`."""
    layout, batch = found.job.layout, found.job.config.micro_batch_size
    words = [degree_words(layout), f"DP {layout.data_parallel_size}"]
    if batch != best.job.config.micro_batch_size:
        words.append(f"micro batch {batch}")
    idle = {f"layout.{name}" for name in layout.idle_overlaps}
    options = changed(best.job, found.job)
    words.append(join_key_values({k: value for k, value in options.items() if k not in idle}))
    change = ", ".join(filter(None, words))
    why = "no single change is enough; the best combination found"
    return _remedy(Neighbour(change, why, found.job), found, best)


def _first_that_helps(
    evaluator: Evaluator, best: Evaluation, asked: tuple[Setting, ...]
) -> Evaluation | None:
    """The first of the job's ranking, its allocator simulated; None where it does not help."""
    settings = parts_of(evaluator.job.config.framework).settings
    legal = [one for one in asked if not settings.check(one, evaluator.job)]
    tried = legal if asked else settings.candidates(evaluator.job)
    ranked = sorted((evaluator.evaluate(one) for one in tried), key=order)
    likely = [other for other in ranked if _helps(other, best)]
    if best.phases:  # the one that is too high may not be the update
        likely.sort(key=lambda other: other.setting != best.setting)
    simulated = (other.simulated for other in likely[:_SIMULATIONS])
    return next((other for other in simulated if _helps(other, best)), None)


def _helps(other: Evaluation, best: Evaluation) -> bool:
    if tier(other) != tier(best):
        return tier(other) < tier(best)
    smaller = other.peak_reserved_bytes < best.peak_reserved_bytes - _LEAST_BYTES
    return smaller and not best.exceeds_host


def _remedy(change: Neighbour, other: Evaluation, best: Evaluation) -> Remedy:
    setting = f"with {other.setting.spec}" if recomputes(other.setting) else "without recompute"
    return Remedy(
        change=change.words if other.setting == best.setting else f"{change.words} {setting}",
        effect_bytes=other.peak_reserved_bytes - best.peak_reserved_bytes,
        effect_seconds=other.step_time_seconds - best.step_time_seconds,
        why=change.why,
        fit_probability=other.fit_probability,
    )


def refusal(found: Rejection) -> UserError:
    """A setting that was asked for is refused."""
    spec, reason, fix = found.setting.spec, found.reason.rstrip("."), found.fix.rstrip(".")
    return UserError("--recompute", spec, reason, fix)


def rank_settings(
    resolution: Resolution,
    layout: ParallelLayout,
    calibration: Calibration,
    asked: tuple[Setting, ...],
    *,
    remedies: bool = True,
) -> Answer:
    """Settings of one job: those asked for, or all legal ones with the preset's own. remedies:
    whether they are looked for."""
    job, shipped = resolution.job(layout), resolution.shipped
    own = parts_of(job.config.framework).settings
    if asked:
        refused = {setting: own.check(setting, job) for setting in asked}
        settings = tuple(setting for setting in asked if not refused[setting])
        rejected = tuple(rejection for found in refused.values() for rejection in found)
        if not settings:
            raise refusal(rejected[0])
    else:
        settings = own.candidates(job)
        rejected = own.rejected(job)
        if shipped and not _among(shipped, settings):
            refused_preset = own.check(shipped, job)
            settings += () if refused_preset else (shipped,)
            rejected = (*refused_preset, *(r for r in rejected if r.setting != shipped))
    if not settings and (found := own.check_job(job)):
        raise UserError("--framework", job.config.framework, found[0].reason, found[0].fix)
    compared = tuple(s for s in settings if s == own.none or (shipped and _among(shipped, (s,))))
    evaluator = Evaluator(job, calibration)
    evaluations = first_simulated([evaluator.evaluate(one) for one in settings], compared)

    def is_preset(evaluation: Evaluation) -> bool:
        return shipped is not None and _among(shipped, (evaluation.setting,))

    ranked = rank(evaluations, notes_on(evaluations), lambda one: bool(asked) or is_preset(one))
    candidates = tuple(replace(one, preset=is_preset(one.evaluation)) for one in ranked)
    best = candidates[0].evaluation if candidates and remedies else None
    helps = find_remedies(best, calibration, asked) if best else ()
    return answer_of(resolution, job, calibration, candidates, rejected, len(evaluations), helps)


def _among(setting: Setting, others: tuple[Setting, ...]) -> bool:
    """Whether `setting` runs like one of `others`: unset and empty lists are what they mean."""
    return any(setting.promoted == other.promoted for other in others)
