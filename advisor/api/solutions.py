"""`advisor.solve` and `advisor.compare`: many requests answered, and what comes of them in one
table; `--solve` and `--gpus` with several GPUs do the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

from msgspec.structs import replace

from advisor.answer import solution
from advisor.answer.answer import Answer
from advisor.answer.notebook import preformatted
from advisor.answer.solution import Trial
from advisor.api.answering import check_prices, checked_price
from advisor.api.calls import python_errors
from advisor.api.keywords import JobKeywords, given_by, job_of
from advisor.base.errors import UserError
from advisor.base.fields import convert
from advisor.base.json_schema import json_schema
from advisor.base.units import parse_bytes, parse_gpus
from advisor.frameworks.registry import label_of
from advisor.hardware.catalogue import load_gpu
from advisor.report.plain_advice import plain_advice
from advisor.report.solution_page import SEVERAL, beyond_words, solution_page, verdict
from advisor.report.text import plain_lines
from advisor.request.request import Quantity, Request
from advisor.request.resolve import resolve
from advisor.search import inverse
from advisor.search.advise import advise


class SolveKeywords(JobKeywords, total=False):
    """JobKeywords, where the job is from (source), and what is searched."""

    source: str | Path | None
    recompute: str | Sequence[str]
    search: str | None
    quick: bool | None


class Solution(solution.Solution, frozen=True, kw_only=True):
    """One that prints as the page of `advise --solve`."""

    def __str__(self) -> str:
        return "\n".join(plain_lines(solution_page(self, label_of(self.framework))))

    def _repr_html_(self) -> str:
        """How a notebook shows it: the same page."""
        return preformatted(str(self))


Tell = Callable[[Trial], None]
_COUNTS: Final = 4
"""Numbers of GPUs that are shown: the fewest, and each twice the one before."""
_BEYOND: Final = frozenset(Quantity) - {Quantity.GPUS, Quantity.MEMORY}
"""Of these a harder value is asked for of another job."""


@python_errors
def solve(
    quantity: str,
    request: Request | None = None,
    *,
    price_per_gpu_hour: float | None = None,
    **keywords: Unpack[SolveKeywords],
) -> Solution:
    """The hardest value with which a job fits: ``solve("seq_length", model=…, gpus=…)``.

    Args:
        quantity: ``seq_length`` (the longest, tokens), ``tokens`` (the largest token budget of a
            GPU's microbatch, max_tokens_per_gpu), ``micro_batch_size`` or
            ``global_batch_size`` (the largest, sequences), ``gpus`` (the fewest), ``memory`` (the
            least of each GPU, bytes).
        request, price_per_gpu_hour, keywords: as for `advise`; of the fewest GPUs the type alone is
            enough. ``certainty=0.95``: how likely it has to fit.

    Raises UserError where the request is wrong. `Solution.best` is None where nothing fits.
    """
    wanted: Quantity = convert(quantity, Quantity, "", "quantity")
    job, _ = job_of(given_by(keywords, SolveKeywords), request)
    return solved(job, wanted, _prices(price_per_gpu_hour))


@python_errors
def compare(
    gpus: Sequence[str],
    /,
    request: Request | None = None,
    *,
    price_per_gpu_hour: float | Sequence[float] | None = None,
    **keywords: Unpack[SolveKeywords],
) -> Solution:
    """One job on several GPUs: ``compare(["32xH100", "16xB200"], model=…)``. `Solution.best` is the
    fastest that fits. price_per_gpu_hour: one price, or one for each; the rest as for `advise`."""
    if isinstance(gpus, str) or not gpus:
        raise UserError("gpus", gpus, "is not a list", 'write e.g. gpus=["32xH100", "16xB200"]')
    if keywords.get("gpus"):
        raise UserError("gpus", keywords["gpus"], "is given twice", "name the GPUs in the list")
    job, _ = job_of(given_by({**keywords, "gpus": gpus[0]}, SolveKeywords), request)
    return compared(job, gpus, _prices(price_per_gpu_hour))


def _prices(given: Any) -> tuple[float, ...]:
    name = "price_per_gpu_hour"
    several = () if given is None else given if isinstance(given, list | tuple) else (given,)
    return tuple(checked_price(convert(one, float, "", name), name) for one in several)


def solution_schema() -> dict[str, Any]:
    """The JSON Schema of `Solution.to_json`; the same text is shipped as
    advisor/api/solution.schema.json."""
    return json_schema(solution.Solution, title="advise --solve --format json, schema_version 1")


def solved(
    request: Request, quantity: Quantity, prices: Sequence[float] = (), tell: Tell = lambda _: None
) -> Solution:
    """Ask for one value after the other, of the job as typed, and of all that may change for
    numbers of GPUs. tell: hears of each. UserError where the request is wrong whatever the value.
    """
    check_prices(prices, 1)
    keys = {pair.partition("=")[0] for pair in request.overrides}
    budget = request.memory_budget is not None or "job.memory_budget_bytes" in keys
    if budget and quantity is Quantity.MEMORY:
        relation = "cannot be combined with --memory-budget, which is what is looked for"
        raise UserError("--solve", quantity, relation, "leave one out")
    gpus = quantity is Quantity.GPUS
    typed = request if gpus else inverse.as_typed(request)
    if gpus or quantity in (Quantity.SEQ_LENGTH, Quantity.TOKENS):
        typed = inverse.same_job(typed, quantity)
    values, start = inverse.values_of(quantity, typed)
    found: dict[int, Trial] = {}

    def ask(one: Request, value: int) -> tuple[Trial, Answer | None]:
        asked = inverse.with_value(one, quantity, value)
        size = parse_bytes(asked.memory_budget or "", "") if quantity is Quantity.MEMORY else value
        trial, answer = _trial(size, asked, request, prices[0] if prices else None)
        tell(trial)
        return trial, answer

    def fits(place: int) -> bool:
        value = values[place]
        if value not in found:
            found[value], _ = ask(typed, value)
        return found[value].fits

    place = inverse.hardest(quantity, values, start, fits)
    if all(one.refused for one in found.values()):
        advise(typed)  # raises what is wrong with it
    best = found[values[place]] if place >= 0 else None
    harder, beyond, words = found[values[place + 1]] if place + 1 < len(values) else None, None, ""
    if harder is not None and not request.quick and quantity in _BEYOND:
        value = inverse.next_round(quantity, values, place) if best else values[start]
        beyond, answer = ask(replace(typed, quick=request.quick), value)
        words = beyond_words(beyond, quantity, answer)
    if gpus and best is not None:
        more = [best.value * 2**power for power in range(_COUNTS)]
        found |= {count: ask(typed, count)[0] for count in more if count not in found}
    trials = tuple(found[value] for value in sorted(found, reverse=values[0] > values[-1]))
    return _with_verdict(
        typed, quantity, trials, words, best=best, next_harder=harder, beyond=beyond
    )


def compared(
    request: Request, gpus: Sequence[str], prices: Sequence[float] = (), tell: Tell = lambda _: None
) -> Solution:
    """The job that the request makes on the first of several GPUs, ``COUNTxTYPE``, on each."""
    check_prices(prices, len(gpus))
    for one in gpus:
        load_gpu(parse_gpus(one)[1], request.config_dir)
    each = prices if len(prices) > 1 else [*prices, None][:1] * len(gpus)
    job, trials = inverse.same_job(replace(request, gpus=gpus[0])), list[Trial]()
    for one, price in zip(gpus, each, strict=True):
        trials.append(_trial(parse_gpus(one)[0], replace(job, gpus=one), request, price)[0])
        tell(trials[-1])
    fitting = [(one.best.step_time_seconds, one) for one in trials if one.best and one.fits]
    _, fastest = min(fitting, key=lambda pair: pair[0], default=(0.0, None))
    return _with_verdict(job, SEVERAL, tuple(trials), best=fastest)


def _with_verdict(
    request: Request, quantity: str, trials: tuple[Trial, ...], words: str = "", **found: Any
) -> Solution:
    job = resolve(request)
    if quantity == Quantity.TOKENS and found.get("best") is None:
        longest = f"The longest sample, of {job.config.seq_length:,} tokens, is a pack by itself."
        words = f"{longest} {words}".strip()
    one = Solution(
        quantity=quantity,
        model=job.model.name,
        framework=job.config.framework,
        certainty=job.config.certainty,
        verdict="",
        trials=trials,
        **found,
    )
    return replace(one, verdict=f"{verdict(one)} {words}".strip())


def _trial(
    value: int, asked: Request, request: Request, price: float | None
) -> tuple[Trial, Answer | None]:
    """What comes of one value, and its answer."""
    said: dict[str, Any] = {"value": value, "gpus": asked.gpus, "asks": _asks(asked, request)}
    try:
        answer = advise(asked)
    except UserError as error:
        return Trial(**said, refused=str(error)), None
    plain = plain_advice(answer, price_per_gpu_hour=price)
    best = plain.best
    if best is not None and not best.fits:
        best = max(plain.candidates, key=lambda one: one.fit_probability)
    if best is not None and not best.job_flags:
        best = replace(best, job_flags=plain.job_flags)
    return Trial(**said, best=best, refused="" if best else "every setting is refused"), answer


_ASKED: Final = (
    *("gpus", "seq_length", "micro_batch_size", "global_batch_size", "memory_budget"),
    *("max_tokens_per_gpu", "quick"),
)


def _asks(asked: Request, request: Request) -> str:
    """Flags by which one request differs from another."""
    changed = {name: getattr(asked, name) for name in _ASKED}
    said = {pair.partition("=")[0] for pair in request.overrides}
    words = []
    for name, value in changed.items():
        if value != getattr(request, name):
            flag = f"--{name.replace('_', '-')}"
            own = f"job.{name}={value}" if f"job.{name}" in said else f"{flag} {value}"
            words.append(flag if value is True else own)
    return " ".join(words)
