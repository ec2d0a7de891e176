"""Numbers and choices in the words that every report shares."""

from advisor.answer import Advice, Candidate, Evaluation, Remedy
from advisor.frameworks.megatron.setting import NONE
from advisor.units import GIB, signed_percent


def gib(num_bytes: float) -> str:
    """``12.3`` for 12.3 GiB: a tenth is finer than any prediction."""
    return f"{num_bytes / GIB:.1f}"


def percent(probability: float) -> str:
    """``97 %``; only certainty prints as 0 or 100."""
    if 0 < probability < 0.005:
        return "<1 %"
    if 0.995 <= probability < 1:
        return ">99 %"
    return f"{probability * 100:.0f} %"


def seconds(value: float, smallest: float) -> str:
    """Seconds with three digits where the `smallest` of a column is below one, else two."""
    return f"{value:.{2 if smallest >= 1 else 3}f}"


def chosen(advice: Advice) -> Candidate | None:
    """The best candidate that fits, else the best one; None where nothing could be evaluated."""
    fitting = (c for c in advice.candidates if c.evaluation.fits)
    return next(fitting, advice.candidates[0] if advice.candidates else None)


def missing_bytes(evaluation: Evaluation) -> int:
    """Bytes by which the worst rank exceeds the budget; negative where it fits."""
    return evaluation.peak.peak_reserved_bytes - evaluation.budget_bytes


def verdict(advice: Advice) -> str:
    """One sentence: which row is the choice, with the number that decides."""
    best = chosen(advice)
    if best is None:
        return "No setting could be evaluated: the framework refuses every one that was asked for."
    if not best.evaluation.fits:
        return _nothing_fits(advice)
    if best.evaluation.setting == NONE:
        return _none_needed(best)
    return _recompute_needed(advice, best)


def _nothing_fits(advice: Advice) -> str:
    nearest = min(advice.candidates, key=lambda c: missing_bytes(c.evaluation))
    evaluation = nearest.evaluation
    if missing_bytes(evaluation) <= 0:
        return (
            f"Nothing fits for sure. The nearest, row {nearest.rank} ({evaluation.setting.spec}), "
            f"peaks at {gib(evaluation.peak.peak_reserved_bytes)} of "
            f"{gib(evaluation.budget_bytes)} GiB and fits with a probability of only "
            f"{percent(evaluation.fit_probability)}. Other layouts: --search layout."
        )
    return (
        f"Nothing fits. The nearest, row {nearest.rank} ({evaluation.setting.spec}), needs "
        f"{gib(evaluation.peak.peak_reserved_bytes)} GiB on stage {evaluation.peak.stage}: "
        f"{gib(missing_bytes(evaluation))} GiB more than the budget of "
        f"{gib(evaluation.budget_bytes)} GiB. Other layouts: --search layout."
    )


def _none_needed(best: Candidate) -> str:
    evaluation = best.evaluation
    return (
        f"No recompute needed: row {best.rank} (none) peaks at "
        f"{gib(evaluation.peak.peak_reserved_bytes)} GiB, {gib(-missing_bytes(evaluation))} GiB "
        f"below the budget, and fits with a probability of {percent(evaluation.fit_probability)}."
    )


def _recompute_needed(advice: Advice, best: Candidate) -> str:
    evaluation = best.evaluation
    return (
        f"Row {best.rank} is the choice: {evaluation.setting.spec} is the fastest setting that "
        "fits "
        f"({gib(evaluation.peak.peak_reserved_bytes)} of {gib(evaluation.budget_bytes)} GiB, "
        f"{percent(evaluation.fit_probability)}).{_without_recompute(advice, evaluation)}"
    )


def _without_recompute(advice: Advice, best: Evaluation) -> str:
    """What `none` on the same layout would need, and what it would win."""
    none = next(
        (
            c.evaluation
            for c in advice.candidates
            if c.evaluation.setting == NONE and c.evaluation.job == best.job
        ),
        None,
    )
    if none is None:
        return ""
    if missing_bytes(none) > 0:
        return (
            f" Without recompute: {gib(none.peak.peak_reserved_bytes)} GiB, "
            f"{gib(missing_bytes(none))} GiB too much."
        )
    faster = 1 - none.step_time_seconds / best.step_time_seconds
    return (
        f" Without recompute the step takes {faster * 100:.1f} % less time but fits with a "
        f"probability of only {percent(none.fit_probability)}."
    )


def remedy_line(remedy: Remedy, reference: Evaluation) -> str:
    """One remedy against `reference`: GiB a GPU, step time in percent, and why."""
    slower = remedy.effect_seconds / reference.step_time_seconds
    time = "the same step time" if abs(slower) < 0.0005 else f"{signed_percent(slower)} step time"
    why = f" ({remedy.why.rstrip('.')})" if remedy.why else ""
    sign = "-" if remedy.effect_bytes <= 0 else "+"
    return f"{remedy.change}: {sign}{gib(abs(remedy.effect_bytes))} GiB, {time}{why}."
