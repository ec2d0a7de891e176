"""The page of `--solve` and of several GPUs: the answer in a sentence, and a row for each value."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from advisor.answer.solution import Solution, Trial
from advisor.base.key_value import join_key_values
from advisor.base.plain_json import to_plain
from advisor.base.units import DASH, amount, parse_bytes, percent
from advisor.job.job import LIKELY, Job
from advisor.job.layout import SHORT_NAMES, ParallelLayout
from advisor.report.blocks import Block, Column, Indented, Table, Text, group, table
from advisor.report.breaking import spec_cell
from advisor.report.header import header
from advisor.report.job_changes import change_words, options_apart
from advisor.report.plain_advice import plain_advice
from advisor.report.setting_flags import framework_block
from advisor.report.wording import gib, seconds
from advisor.request.request import Quantity, Request
from advisor.search.inverse import Solved, Tried

SEVERAL: Final = "several_gpus"
_BEST: Final = {
    Quantity.GPUS: "Fewest GPUs that fit",
    Quantity.SEQ_LENGTH: "Longest sequence that fits",
    Quantity.MICRO_BATCH_SIZE: "Largest micro batch that fits",
    Quantity.GLOBAL_BATCH_SIZE: "Largest global batch that fits",
    Quantity.MEMORY: "Least memory of each GPU that fits",
}
_UNITS: Final = {Quantity.SEQ_LENGTH: " tokens", Quantity.MEMORY: " GiB"}
TITLES: Final[dict[str, str]] = {
    SEVERAL: "GPUs",
    **{Quantity.GPUS: "GPUs", Quantity.SEQ_LENGTH: "tokens", Quantity.MEMORY: "memory GiB"},
    **{Quantity.MICRO_BATCH_SIZE: "micro batch", Quantity.GLOBAL_BATCH_SIZE: "global batch"},
}


Prices = Sequence[float]
"""Of a GPU-hour: none, one, or one for each of several GPUs."""


def plain_solution(solved: Solved, request: Request, prices: Prices = ()) -> Solution:
    """`solved` as plain data."""
    named = (solved.best, solved.next_harder, solved.beyond)
    every = {id(one): one for one in (*solved.tried, *filter(None, named))}
    of_each = dict(zip(map(id, solved.tried), prices, strict=False)) if len(prices) > 1 else {}
    price = prices[0] if len(prices) == 1 else None
    typed = next((one.answer.job for one in every.values() if one.answer), None)
    trials = {
        key: _trial(one, solved.quantity, request, of_each.get(key, price), typed)
        for key, one in every.items()
    }
    best, harder, beyond = (trials[id(one)] if one else None for one in named)
    tried = tuple(trials[id(one)] for one in solved.tried)
    found = Solution(
        quantity=solved.quantity or SEVERAL,
        certainty=typed.config.certainty if typed else LIKELY,
        verdict="",
        trials=tried,
        best=best,
        next_harder=harder,
        beyond=beyond,
        advice=(
            plain_advice(solved.best.answer, price_per_gpu_hour=of_each.get(id(solved.best), price))
            if solved.best and solved.best.answer
            else None
        ),
    )
    return replace(found, verdict=verdict(found, solved))


def _trial(
    tried: Tried,
    quantity: Quantity | None,
    request: Request,
    price: float | None,
    typed: Job | None,
) -> Trial:
    """What came of one value; typed: the job that options are compared with."""
    asked = tried.request
    value = parse_bytes(asked.memory_budget or "", "") if quantity is _MEMORY else tried.value
    common: dict[str, Any] = {"value": value, "gpus": asked.gpus, "asks": _asks(asked, request)}
    row = tried.answer.leading if tried.answer else None
    if row is None or typed is None:
        return Trial(**common, refused=tried.refused or "every setting is refused")
    one = row.evaluation
    hours = one.gpu_hours_per_trillion_tokens
    return Trial(
        **common,
        **{name: getattr(one, name) for name in _FIGURES},
        recompute=one.setting.spec,
        layout=_layout(one.job.layout),
        micro_batch_size=one.job.config.micro_batch_size,
        changes=to_plain(options_apart(one.job, typed)),
        price_per_trillion_tokens=None if price is None else hours * price,
    )


def _layout(layout: ParallelLayout) -> str:
    """``TP 2, DP 4``: degrees above 1."""
    degrees = {short: getattr(layout, name) for short, name in SHORT_NAMES.items()}
    above = [f"{short} {degree}" for short, degree in degrees.items() if (degree or 1) > 1]
    return ", ".join(above) or "1 GPU"


_MEMORY: Final = Quantity.MEMORY
_FIGURES: Final = (
    *("fits", "fit_probability", "peak_reserved_bytes", "budget_bytes", "step_time_seconds"),
    *("tokens_per_second", "tokens_per_second_per_gpu", "gpu_hours_per_trillion_tokens"),
)
_ASKED: Final = (
    *("gpus", "seq_length", "micro_batch_size", "global_batch_size", "memory_budget"),
    "quick",
)


def _asks(asked: Request, request: Request) -> str:
    """Flags by which one request differs from another."""
    flags = []
    for name in _ASKED:
        value = getattr(asked, name)
        if value != getattr(request, name):
            flag = f"--{name.replace('_', '-')}"
            flags.append(flag if value is True else f"{flag} {value}")
    return " ".join(flags)


def verdict(solution: Solution, solved: Solved) -> str:
    """The answer in a sentence or three."""
    if solved.quantity is None:
        return _compared(solution)
    quantity, best = solved.quantity, solution.best
    name = _BEST[quantity]
    if best is None:
        least = _value(solution.trials[0], quantity)
        said = [f"Nothing fits: not even {least} ({_likely(solution.trials[0])})."]
    elif solution.next_harder is None:
        end = "the fewest there are" if quantity is Quantity.GPUS else "the most that is looked at"
        said = [f"{name}: {_value(best, quantity)} ({_likely(best)}), {end}."]
    else:
        harder = solution.next_harder
        no = f"refused: {harder.refused}" if harder.refused else _likely(harder)
        said = [f"{name}: {_value(best, quantity)} ({_likely(best)}), {_row(best)}."]
        said.append(f"Next: {_value(harder, quantity)} ({no}).")
    beyond, tried = solution.beyond, solved.beyond
    if beyond is not None and tried is not None and tried.answer is not None:
        value = _value(beyond, quantity)
        found = tried.answer.fastest_found
        if found is not None:
            words = change_words(
                found.candidate.evaluation.job, tried.answer.job, tried.answer.origin
            )
            said.append(f"At {value} change {words} ({_likely(beyond)}), {_row(beyond)}.")
        elif not beyond.fits and tried.answer.remedies:
            remedy = tried.answer.remedies[0]
            likely = percent(remedy.fit_probability)
            said.append(f"At {value} use {remedy.change} ({likely} likely).")
    return " ".join(said)


def value_words(trial: Trial, quantity: str) -> str:
    """``38,912``, ``57.1`` of GiB, ``16xB200`` where several GPUs are compared."""
    if quantity == SEVERAL:
        return trial.gpus
    return gib(trial.value) if quantity == _MEMORY else f"{trial.value:,}"


def _value(trial: Trial, quantity: Quantity) -> str:
    if quantity is Quantity.GPUS:
        return trial.gpus
    return f"{value_words(trial, quantity)}{_UNITS.get(quantity, '')}"


def _likely(trial: Trial) -> str:
    likely = trial.fit_probability
    return "refused" if likely is None else f"{percent(likely)} likely"


def _row(trial: Trial) -> str:
    assert trial.step_time_seconds is not None
    time = seconds(trial.step_time_seconds, trial.step_time_seconds)
    return f"{trial.recompute}, {time} s a step"


def _compared(solution: Solution) -> str:
    """Which of several GPUs is the fastest, and which the cheapest where there are prices."""
    if solution.best is None:
        return "Nothing fits on any of these GPUs."
    said = [f"Fastest: {solution.best.gpus}, {_row(solution.best)}."]
    priced = [one for one in solution.trials if one.fits and one.price_per_trillion_tokens]
    if priced:
        cheapest = min(priced, key=lambda one: one.price_per_trillion_tokens or 0.0)
        cost = amount(cheapest.price_per_trillion_tokens or 0.0)
        said.append(f"Cheapest: {cheapest.gpus}, {cost} for 10^12 tokens.")
    return " ".join(said)


def solution_page(solution: Solution, solved: Solved) -> Block:
    """Head, answer, table, and the flags of the value that fits."""
    answers = [one.answer for one in (solved.best, *solved.tried) if one and one.answer]
    blocks: list[Block] = []
    if answers:
        blocks += [header(answers[0], has_bars=lambda width: False), ""]
    blocks += [_table(solution), "", solution.verdict]
    row = answers[0].leading if solution.best else None
    if row is not None and solution.best is not None:
        asks = f"To see every setting of it, ask with {solution.best.asks}."
        blocks += ["", framework_block(answers[0], row.evaluation, with_layout=True)]
        blocks += ["", Text(asks, "dim")] if solution.best.asks else []
    return group(*blocks)


def _table(solution: Solution) -> Table:
    """A row for each value; below it the options that it changes, or why it is refused."""
    prices = any(one.price_per_trillion_tokens is not None for one in solution.trials)
    columns = [
        Column(title=TITLES[solution.quantity], left=solution.quantity == SEVERAL),
        Column(title="layout", left=True, wrap=True, spare=3),
        Column(title="mbs", spare=1),
        Column(title="recompute", left=True, wrap=True),
        *(Column(title=title) for title in ("GiB", "fits", "step s")),
        Column(title="tokens/s", spare=2),
        Column(title="GPU-hours", spare=4),
        *([Column(title="cost")] if prices else []),
    ]
    found = table(columns)
    least = min(
        (one.step_time_seconds for one in solution.trials if one.step_time_seconds), default=1
    )
    for trial in solution.trials:
        below = join_key_values(trial.changes)
        under = f"refused: {trial.refused}" if trial.refused else below and f"with {below}"
        found.add_row(
            *_cells(trial, solution.quantity, least, prices),
            style="bold" if trial is solution.best else "" if trial.fits else "dim",
            below=Indented(Text(under, "dim"), 5) if under else None,
        )
    return found


def _cells(trial: Trial, quantity: str, least: float, prices: bool) -> Iterable[Block]:
    yield value_words(trial, quantity)
    if trial.refused or trial.step_time_seconds is None:
        yield from [""] * 2
        yield DASH
        yield from [DASH] * (5 + prices)
        return
    yield trial.layout
    yield str(trial.micro_batch_size)
    yield spec_cell(trial.recompute)
    yield gib(trial.peak_reserved_bytes or 0)
    yield percent(trial.fit_probability or 0.0)
    yield seconds(trial.step_time_seconds, least)
    yield amount(trial.tokens_per_second or 0.0)
    yield amount(trial.gpu_hours_per_trillion_tokens or 0.0)
    if prices:
        cost = trial.price_per_trillion_tokens
        yield DASH if cost is None else amount(cost)
