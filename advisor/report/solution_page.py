"""The page of `--solve` and of several GPUs: a row for each value, and the answer in a sentence."""

from collections.abc import Iterable
from typing import Final

from advisor.answer.advice import Candidate
from advisor.answer.answer import Answer
from advisor.answer.solution import Solution, Trial
from advisor.base.fields import join_key_values
from advisor.base.units import DASH, amount, percent
from advisor.job.layout import SHORT_NAMES
from advisor.report.blocks import Block, Column, Indented, Table, Text, group, spec_cell, table
from advisor.report.job_changes import change_words
from advisor.report.setting_flags import command_block
from advisor.report.wording import gib, seconds
from advisor.request.request import Quantity

SEVERAL: Final = "several_gpus"
_MEMORY: Final = Quantity.MEMORY
_BEST: Final[dict[str, str]] = {
    Quantity.GPUS: "Fewest GPUs that fit",
    Quantity.SEQ_LENGTH: "Longest sequence that fits",
    Quantity.TOKENS: "Largest token budget that fits",
    Quantity.MICRO_BATCH_SIZE: "Largest micro batch that fits",
    Quantity.GLOBAL_BATCH_SIZE: "Largest global batch that fits",
    Quantity.MEMORY: "Least memory of each GPU that fits",
}
_ENDS: Final[dict[str, str]] = {
    Quantity.GPUS: "the fewest there are",
    Quantity.TOKENS: "a GPU has no more tokens in a step",
}
_UNITS: Final[dict[str, str]] = {
    Quantity.SEQ_LENGTH: " tokens",
    Quantity.TOKENS: " tokens per GPU",
    Quantity.MEMORY: " GiB",
}
TITLES: Final[dict[str, str]] = {
    **dict.fromkeys((SEVERAL, Quantity.GPUS), "GPUs"),
    **{Quantity.SEQ_LENGTH: "tokens", Quantity.TOKENS: "tokens per GPU"},
    Quantity.MEMORY: "memory GiB",
    **{Quantity.MICRO_BATCH_SIZE: "micro batch", Quantity.GLOBAL_BATCH_SIZE: "global batch"},
}
_HIDDEN: Final = (
    *("seq_length", "global_batch_size", "micro_batch_size", "sequence_parallel"),
    *SHORT_NAMES.values(),
)
"""Changes that a column says."""


def verdict(solution: Solution) -> str:
    """The answer: the value, how likely it fits and what it runs like; the next one."""
    quantity, best, harder = solution.quantity, solution.best, solution.next_harder
    if quantity == SEVERAL:
        return _compared(solution)
    if best is None or best.best is None:
        within = "in" if quantity == _MEMORY else "with"
        legal = next((one for one in solution.trials if one.best), None)
        if legal is None:
            return f"Every value is refused: {solution.trials[0].refused}."
        return f"Nothing fits, not even {within} {_likely(legal, quantity)}."
    changes = f", with {words}" if quantity == Quantity.GPUS and (words := _changes(best)) else ""
    said = f"{_BEST[quantity]}: {_likely(best, quantity)}, {_row(best.best)}{changes}"
    if harder is None:
        return f"{said}; {_ENDS.get(quantity, 'the most that is looked at')}."
    refused = f": {harder.refused}" * bool(harder.refused)
    return f"{said}. Next: {_likely(harder, quantity)}{refused}."


def beyond_words(beyond: Trial, quantity: Quantity, answer: Answer | None) -> str:
    """What to change for a harder value, if anything makes it fit."""
    if answer is None or beyond.best is None:
        return ""
    value = f"{value_words(beyond, quantity)}{_UNITS.get(quantity, '')}"
    if answer.fastest_found is not None:
        found = answer.fastest_found.candidate.evaluation.job
        words = change_words(found, answer.job, answer.origin)
        likely = percent(beyond.best.fit_probability)
        return f"At {value} change {words} ({likely} likely), {_row(beyond.best)}."
    same = (TITLES[quantity], f"--max-{quantity}")
    others = (one for one in answer.remedies if not one.change.startswith(same))
    if beyond.fits or (remedy := next(others, None)) is None:
        return ""
    if remedy.fit_probability < answer.job.config.certainty:
        return f"No single change makes {value} fit."
    return f"At {value} use {remedy.change} ({percent(remedy.fit_probability)} likely)."


def value_words(trial: Trial, quantity: str) -> str:
    """``38,912``, ``57.1`` of GiB, ``16xB200`` of GPUs."""
    if quantity in (SEVERAL, Quantity.GPUS):
        return trial.gpus
    return gib(trial.value) if quantity == _MEMORY else f"{trial.value:,}"


def _likely(trial: Trial, quantity: str) -> str:
    likely = "refused" if trial.best is None else f"{percent(trial.best.fit_probability)} likely"
    return f"{value_words(trial, quantity)}{_UNITS.get(quantity, '')} ({likely})"


def _row(best: Candidate) -> str:
    return f"{best.recompute.spec}, {seconds(best.step_time_seconds, 1)} s a step"


def _changes(trial: Trial) -> str:
    """Options of the row that no column says, and that the job as typed has not."""
    changes = trial.best.changes if trial.best else {}
    return join_key_values({k: v for k, v in changes.items() if k.split(".")[1] not in _HIDDEN})


def _compared(solution: Solution) -> str:
    """Which of several GPUs is the fastest, and which the cheapest where there are prices."""
    if solution.best is None or solution.best.best is None:
        return "Nothing fits on any of these GPUs."
    said = f"Fastest: {solution.best.gpus}, {_row(solution.best.best)}."
    priced = [
        (one.best.price_per_trillion_tokens, one.gpus)
        for one in solution.trials
        if one.best and one.fits and one.best.price_per_trillion_tokens is not None
    ]
    if not priced:
        return said
    price, gpus = min(priced)
    return f"{said} Cheapest: {gpus}, {amount(price)} for 10^12 tokens."


def solution_page(solution: Solution, label: str) -> Block:
    """Table, answer, and the flags of what fits, of the framework with this label."""
    framework = solution.framework
    likely = f"fits: at least {solution.certainty * 100:g} % likely"
    head = " · ".join((solution.model, label, likely))
    blocks: list[Block] = [Text(head, "bold"), "", _table(solution), "", solution.verdict]
    if (trial := solution.best) and (best := trial.best):
        words = f"{best.job_flags.get(framework, '')} {best.flags[framework]}".strip()
        blocks += ["", command_block(label, words)]
        blocks += (
            [Text(f"To see every setting of it, ask with {trial.asks}.", "dim")]
            if trial.asks
            else []
        )
    return group(*blocks)


def _table(solution: Solution) -> Table:
    """A row for each value; below it the options that it changes, or why it is refused."""
    rows = [trial.best for trial in solution.trials if trial.best]
    priced = any(row.price_per_trillion_tokens is not None for row in rows)
    found = table(
        (
            Column(title=TITLES[solution.quantity]),
            Column(title="layout", left=True, wrap=True, spare=3),
            Column(title="mbs", spare=1),
            Column(title="recompute", left=True, wrap=True),
            *(Column(title=title) for title in ("GiB", "fits", "step s")),
            Column(title="tokens/s", spare=2),
            Column(title="GPU-hours", spare=4),
            *([Column(title="cost")] if priced else []),
        )
    )
    least = min((row.step_time_seconds for row in rows), default=1.0)
    for trial in solution.trials:
        words = _changes(trial) if trial.fits else ""
        under = trial.refused or (f"with {words}" if words else "")
        cells = list(_cells(trial.best, least)) if trial.best else [DASH] * len(found.columns)
        found.add_row(
            value_words(trial, solution.quantity),
            *cells[: len(found.columns) - 1],
            style="bold" if trial is solution.best else "" if trial.fits else "dim",
            below=Indented(Text(under, "dim"), 5) if under else None,
        )
    return found


def _cells(best: Candidate, least: float) -> Iterable[Block]:
    degrees = {short: getattr(best.layout, name) for short, name in SHORT_NAMES.items()}
    yield ", ".join(f"{short} {one}" for short, one in degrees.items() if (one or 1) > 1) or DASH
    yield str(best.micro_batch_size)
    yield spec_cell(best.recompute.spec)
    yield gib(best.peak_reserved_bytes)
    yield percent(best.fit_probability)
    yield seconds(best.step_time_seconds, least)
    yield amount(best.tokens_per_second)
    yield amount(best.gpu_hours_per_trillion_tokens)
    yield DASH if (cost := best.price_per_trillion_tokens) is None else amount(cost)
