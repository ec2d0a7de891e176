"""Numbers and choices in the words that every report shares."""

from typing import Final

from advisor.answer.answer import (
    SAME_TIME,
    Answer,
    Basis,
    FastestFound,
    RankedEvaluation,
    Remedy,
    SearchNote,
)
from advisor.answer.evaluation import Evaluation
from advisor.answer.phases import NO_ROOM
from advisor.base.units import GIB, percent, signed_percent
from advisor.plan.recompute_plan import recomputes

_NEAREST = 3


def gib(num_bytes: float) -> str:
    """``12.3`` for 12.3 GiB: a tenth is finer than any prediction."""
    return f"{num_bytes / GIB:.1f}"


def reserved_gib(evaluation: Evaluation) -> str:
    """``72.4``, or ``~72.4`` where the allocator was not simulated."""
    return "~" * (evaluation.requests is None) + gib(evaluation.peak_reserved_bytes)


def _about(*evaluations: Evaluation) -> str:
    """``about `` before a difference to what was not simulated."""
    return "about " if any(one.requests is None for one in evaluations) else ""


PHASES: Final = {
    "recompute": "replay (recompute)",
    "host": "waiting for the host",
    "stragglers": "waiting for stragglers",
}
"""Words for the parts of a step whose name is another one."""


def seconds(value: float, smallest: float) -> str:
    """Seconds with three digits where the `smallest` of a column is below one, else two."""
    return f"{value:.{2 if smallest >= 1 else 3}f}"


def row_of(advice: Answer, rank: int | None) -> RankedEvaluation:
    """The row of a rank, or where there is none the one that the first sentence names, of an answer
    with some."""
    best = advice.leading
    assert best is not None
    return next((one for one in advice.candidates if one.rank == rank), best)


def missing_bytes(evaluation: Evaluation) -> int:
    """Bytes by which the worst rank exceeds the budget; negative where it fits."""
    return evaluation.peak_reserved_bytes - evaluation.budget_bytes


def verdict(advice: Answer) -> str:
    """Which row is the choice, with the number that decides, and what the alternative costs; first
    of all the fastest that was found, where that is of another job."""
    best = advice.chosen
    if best is None:
        return "No setting could be evaluated: the framework refuses every setting asked for."
    if advice.fastest_found is not None:
        return f"{_as_typed(best.evaluation)} {_fastest_found(advice, advice.fastest_found)}"
    nothing = " Nothing more than 1 % faster was found near the job."
    near = advice.fits and advice.search is not None and advice.usual is None
    return _of_the_job(advice, best) + nothing * near


def _as_typed(best: Evaluation) -> str:
    """What comes of the job without any change."""
    if not best.fits:
        return f"Nothing fits as the job stands ({best.setting.spec} {_miss(best)})."
    return f"Fastest as the job stands: {_figures(best)}."


def _fastest_found(advice: Answer, found: FastestFound) -> str:
    """Setting, memory, time, and every change with where the changed value came from."""
    from advisor.report.job_changes import change_words

    one = found.candidate.evaluation
    less = "" if found.gain is None else f" (-{found.gain * 100:.0f} %)"
    words = change_words(one.job, advice.job, advice.origin)
    return f"Fastest found: {_figures(one)}{less}{words and f', which changes {words}'}."


def _figures(evaluation: Evaluation) -> str:
    time = seconds(evaluation.step_time_seconds, evaluation.step_time_seconds)
    return f"{evaluation.setting.spec} ({_room(evaluation)}), {time} s"


def found_notes(advice: Answer) -> list[str]:
    """What the gain of the fastest found rests on, and the best without that; how the flags of the
    job as typed are had; how much a bound leaves open."""
    found, said = advice.fastest_found, []
    if found is not None and found.rests_on:
        line = f"Few published runs show what these win: {', '.join(found.rests_on)}."
        if found.without is not None:
            line += f" Fastest without it: {_figures(found.without.evaluation)}."
        said.append(line)
    if found is not None:
        said.append("Flags of the job as typed: --format flags --as-typed.")
    if advice.search is not None and (best := advice.leading) is not None:
        said += _left_open(advice.search, best.evaluation.step_time_seconds)
    return said


def _left_open(search: SearchNote, best_seconds: float) -> list[str]:
    least = search.least_possible_seconds
    if least is None or search.whole or least >= best_seconds * _NEAR_THE_BOUND:
        return []
    words, best = (seconds(one, best_seconds) for one in (least, best_seconds))
    return [f"No layout can be faster than {words} s; this is {best} s: --search layout."]


_NEAR_THE_BOUND: Final = 0.8
"""Share of the best step time from which a bound leaves little to search for (a judgement)."""


def _of_the_job(advice: Answer, best: RankedEvaluation) -> str:
    if not best.evaluation.fits:
        return _nothing_fits(advice)
    room = _room(best.evaluation)
    spec = best.evaluation.setting.spec
    none = not recomputes(best.evaluation.setting)
    without = "" if none else _without_recompute(advice, best.evaluation)
    if advice.stopped:
        found = f"row {best.rank} ({spec}) is the fastest found so far that fits ({room})"
        return f"The search was stopped: {found}.{without}"
    if none:
        return f"No recompute needed: row {best.rank} (none) fits ({room})."
    what = "is the fastest that fits" if len(advice.candidates) > 1 else "fits"
    return (
        f"Row {best.rank} is the choice: {spec} {what} ({room})."
        f"{without}{_bought(advice, best.evaluation)}"
    )


def _room(evaluation: Evaluation) -> str:
    """``66.0 of 77.0 GiB, 97 % likely``; of a cycle ``66.0 of 77.0 GiB in the update, …``."""
    size, where, phase = reserved_gib(evaluation), "", evaluation.phase
    if phase is not None:
        where, peak = f" in the {phase.name}", phase.peak_reserved_bytes
        size = size if peak == evaluation.peak_reserved_bytes else gib(peak)
    likely = percent(evaluation.fit_probability)
    return f"{size} of {gib(evaluation.budget_bytes)} GiB{where}, {likely} likely"


def host_words(evaluation: Evaluation) -> str:
    """``81.5 GiB per GPU, 652.0 GiB per server of 8 GPUs``, against what a server has."""
    job, each = evaluation.job, evaluation.host_bytes
    gpus, has = job.gpus_of_a_server, job.config.host_memory_bytes
    server = f"{gib(gpus * each)} GiB per server of {gpus} GPUs"
    words = f"{gib(each)} GiB per GPU{f', {server}' * (gpus > 1)}"
    if has is None:
        return f"{words}; job.host_memory_bytes=1TiB has it checked"
    return f"{words}, {'more than' if evaluation.exceeds_host else 'within'} its {gib(has)} GiB"


def _nothing_fits(advice: Answer) -> str:
    """The nearest settings, by how much they miss, and whether any setting could help."""
    evaluations = [candidate.evaluation for candidate in advice.candidates]
    budget = evaluations[0].budget_bytes
    shown = (one for one in advice.candidates if one.same_as is None and not one.folded)
    nearest = sorted(shown, key=lambda c: missing_bytes(c.evaluation))[:_NEAREST]
    misses = ((c, _miss(c.evaluation, says_why=c is nearest[0])) for c in nearest)
    near = "; ".join(f"row {c.rank} ({c.evaluation.setting.spec}) {miss}" for c, miss in misses)
    fixed = min(evaluation.peak.memory_bytes.fixed for evaluation in evaluations)
    hopeless = f" Weights, gradients and optimizer take {gib(fixed)} GiB: recompute cannot help."
    over = missing_bytes(nearest[0].evaluation) > 0
    fits = "fits" if over else f"is at least {advice.job.config.certainty * 100:g} % likely to fit"
    nothing = "The search was stopped, and nothing found so far" if advice.stopped else "Nothing"
    return f"{nothing} {fits} in {gib(budget)} GiB. Nearest: {near}.{hopeless * (fixed > budget)}"


def _miss(evaluation: Evaluation, *, says_why: bool = True) -> str:
    missing, phase, where = missing_bytes(evaluation), evaluation.phase, ""
    if phase is not None:
        missing, where = (
            phase.peak_reserved_bytes - evaluation.budget_bytes,
            f" in the {phase.name}",
        )
    if missing > 0:
        starved = (f"; {one.note}" for one in evaluation.phases if one.note.startswith(NO_ROOM))
        why = next(starved, "") * says_why
        return f"is {_about(evaluation)}{gib(missing)} GiB over the budget{where}{why}"
    why = f" ({phase.note})" if phase is not None and phase.note else ""
    if evaluation.exceeds_host:
        why = f"; host memory: {host_words(evaluation)}"
    return f"takes {_room(evaluation)}{why * says_why}"


def way_out(advice: Answer) -> str:
    """Where nothing fits and no remedy is enough: what is left to try. Else empty."""
    if advice.fits or not advice.candidates:
        return ""
    missing = missing_bytes(advice.candidates[0].evaluation)
    helpful = (one for one in advice.remedies if one.fit_probability >= advice.job.config.certainty)
    if any(missing + remedy.effect_bytes <= 0 for remedy in helpful):
        return ""
    none = advice.searched or advice.job.num_gpus == 1
    layouts = "" if none else "another layout (--search layout), "
    short = "These changes are not enough: try" if advice.remedies else "Try"
    return f"{short} {layouts}more GPUs, or GPUs with more memory."


_LEAST_SHOWN = GIB // 20
"""Less is 0.0 GiB on a page."""


def _without_recompute(advice: Answer, best: Evaluation) -> str:
    """What `none` on the same layout would need, and what it would win."""
    rows = (c.evaluation for c in advice.candidates if c.evaluation.job == best.job)
    none = next((row for row in rows if not recomputes(row.setting)), None)
    if none is None:
        return ""
    several = best.job.num_gpus > 1 and len({c.evaluation.job for c in advice.candidates}) > 1
    if missing_bytes(none) >= _LEAST_SHOWN:
        what = "this layout" if several else "the job"
        over = f"{_about(none)}{gib(missing_bytes(none))} GiB"
        return f" Without recompute {what} exceeds the budget by {over}."
    here = " on this layout" if several else ""
    faster = (1 - none.step_time_seconds / best.step_time_seconds) * 100
    time = f"takes {faster:.1f} % less time" if faster >= 0.05 else "takes the same time"
    if none.fits:
        return f" Without recompute the job{here} fits too, and a step {time}."
    likely = percent(none.fit_probability)
    return f" Without recompute a step{here} {time}, but the job is only {likely} likely to fit."


def _bought(advice: Answer, best: Evaluation) -> str:
    """What recompute affords: a layout or micro batch on which nothing fits without it, and which
    is faster than whatever fits without it; empty where that is not so."""
    without = [c for c in advice.candidates if not recomputes(c.evaluation.setting)]
    own = next((c.evaluation for c in without if c.evaluation.job == best.job), None)
    other = next((c for c in without if c.evaluation.fits), None)
    if own is None or own.fits or other is None:
        return ""
    first = advice.chosen
    # times compare where both rest on runs, or both on none
    if first is None or (first.basis is Basis.SHIPPED) != (other.basis is Basis.SHIPPED):
        return ""
    faster = best.tokens_per_second / other.evaluation.tokens_per_second - 1
    if faster < SAME_TIME:
        return ""
    from advisor.report.job_changes import all_of, apart, degrees_apart

    there = other.evaluation.job
    ours, theirs = (
        degrees_apart(*jobs) or [apart(*jobs)] for jobs in ((best.job, there), (there, best.job))
    )
    return (
        f" {best.setting.spec} makes room for {all_of(ours)}. The choice is {faster * 100:.1f} % "
        f"faster than row {other.rank} ({all_of(theirs)}), the fastest row that fits without "
        "recompute."
    )


def against_preset(advice: Answer) -> str:
    """What the choice changes against the setting that the preset ships with; "" without one."""
    best = advice.chosen
    shipped = next((c for c in advice.candidates if c.preset), None)
    if best is None or shipped is None or best is shipped:
        return ""
    ours, theirs = best.evaluation, shipped.evaluation
    more = ours.peak_reserved_bytes - theirs.peak_reserved_bytes
    slower = ours.step_time_seconds / theirs.step_time_seconds - 1
    fits = "" if theirs.fits else f", {percent(theirs.fit_probability)} likely to fit"
    return (
        f"Row {best.rank} compared with the preset's setting {theirs.setting.spec} (row "
        f"{shipped.rank}{fits}): {_about(ours, theirs)}{_signed_gib(more)}, {_step_time(slower)}."
    )


def remedy_lines(advice: Answer) -> list[str]:
    """All remedies; next to what was found those that are enough."""
    least = advice.job.config.certainty * bool(advice.fastest_found)
    shown = (remedy for remedy in advice.remedies if remedy.fit_probability >= least)
    return [remedy_line(remedy, advice.candidates[0].evaluation) for remedy in shown]


def remedy_line(remedy: Remedy, reference: Evaluation) -> str:
    """One remedy against `reference`: GiB a GPU, step time in percent, what it comes to, why."""
    time = _step_time(remedy.effect_seconds / reference.step_time_seconds)
    peak = _signed_gib(remedy.effect_bytes) if gib(abs(remedy.effect_bytes)) != "0.0" else ""
    why = f" ({remedy.why.rstrip('.')})" if remedy.why else ""
    left = missing_bytes(reference) + remedy.effect_bytes
    over = f", still {gib(left)} GiB over the budget" if left > 0 else ""
    if not over and remedy.fit_probability < reference.job.config.certainty:
        over = f", {percent(remedy.fit_probability)} likely to fit"
    return f"{remedy.change}: {peak or 'the same peak'}{over}, {time}{why}."


def _signed_gib(num_bytes: int) -> str:
    return f"{'-' if num_bytes < 0 else '+'}{gib(abs(num_bytes))} GiB"


def _step_time(slower: float) -> str:
    """By which share of it a step takes longer."""
    return (
        "the same step time" if abs(slower) < SAME_TIME else f"{signed_percent(slower)} step time"
    )
