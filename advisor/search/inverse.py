"""`--solve`: the hardest value of a quantity with which a job fits, found by asking for values."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.base.units import GIB, divisors, parse_gpus
from advisor.request.request import Quantity, Request
from advisor.search.advise import advise

Tell = Callable[["Tried"], None]


class Tried(Struct, frozen=True, kw_only=True):
    """One value, and the answer to the request with it; None where it is `refused`, and why."""

    value: int
    request: Request
    answer: Answer | None = None
    refused: str = ""

    @property
    def fits(self) -> bool:
        """Whether the job fits with it."""
        answer = self.answer
        return answer is not None and (answer.fits or answer.fastest_found is not None)

    @property
    def step_seconds(self) -> float:
        """Of the row that the answer names; infinite where there is none."""
        row = self.answer.leading if self.answer else None
        return row.evaluation.step_time_seconds if row else inf


class Solved(Struct, frozen=True, kw_only=True):
    """The hardest value that fits: the longest sequence, the largest batch, the fewest GPUs, the
    least memory. Without a quantity: several GPUs, of which the fastest is the best.

    tried: what was asked for, the easiest first. best: None where nothing fits. next_harder: the
    value that does not; None where `best` is the hardest there is. beyond: a harder one of a job
    of which more may change than was typed.
    """

    quantity: Quantity | None
    tried: tuple[Tried, ...]
    best: Tried | None
    next_harder: Tried | None
    beyond: Tried | None = None


_STEPS: Final = {Quantity.GPUS: 4, Quantity.MICRO_BATCH_SIZE: 1, Quantity.MEMORY: 2**14}
_STEPS_IN_A_DOUBLING: Final = 16
"""Values from one to twice as much, of tokens and sequences: those of a first, long stride; of the
others so many (judgements)."""
_BEYOND: Final = (
    *(Quantity.SEQ_LENGTH, Quantity.MICRO_BATCH_SIZE),
    Quantity.GLOBAL_BATCH_SIZE,
)
"""Of which a harder value is asked for of another job."""
_FEWEST, _FIRST, _MOST_TOKENS = 64, 4096, 2**22
"""Tokens of a sequence."""
_MOST_MICROBATCHES, _MOST_GPUS, _SERVER = 2**12, 2**14, 8
_TENTHS: Final = 10
"""Memory is looked for in tenths of a GiB."""
_COUNTS: Final = 4
"""Numbers of GPUs that are shown: the fewest, and each twice the one before."""


def solve(request: Request, quantity: Quantity, tell: Tell = lambda _: None) -> Solved:
    """Ask for one value after the other, of the job as typed, and of all that may change for
    numbers of GPUs. tell: hears of each.

    UserError where the request is wrong whatever the value.
    """
    typed = _same_job(request) if quantity is Quantity.GPUS else _as_typed(request)
    values, start = _values(quantity, typed)
    found: dict[int, Tried] = {}

    def ask(asked: Request, value: int) -> Tried:
        one = _ask(with_value(asked, quantity, value), value)
        tell(one)
        return one

    def fits(place: int) -> bool:
        value = values[place]
        if value not in found:
            found[value] = ask(typed, value)
        return found[value].fits

    place = _hardest(len(values), start, _STEPS.get(quantity, _STEPS_IN_A_DOUBLING), fits)
    if all(one.answer is None for one in found.values()):
        advise(typed)  # raises what is wrong with it
    best = found[values[place]] if place >= 0 else None
    harder, beyond = found[values[place + 1]] if place + 1 < len(values) else None, None
    if harder is not None and not request.quick and quantity in _BEYOND:
        beyond = ask(request, _beyond(quantity, values, place if best else start))
    if quantity is Quantity.GPUS and best is not None:
        more = [best.value * 2**power for power in range(_COUNTS)]
        found |= {count: ask(typed, count) for count in more if count not in found}
    tried = tuple(found[value] for value in sorted(found, reverse=values[0] > values[-1]))
    return Solved(quantity=quantity, tried=tried, best=best, next_harder=harder, beyond=beyond)


def compare(request: Request, gpus: Sequence[str], tell: Tell = lambda _: None) -> Solved:
    """The job that the request makes on the first of several GPUs, ``COUNTxTYPE``, on each."""
    job, found = _same_job(replace(request, gpus=gpus[0])), []
    for one in gpus:
        found.append(_ask(replace(job, gpus=one), parse_gpus(one)[0]))
        tell(found[-1])
    best = min((one for one in found if one.fits), key=lambda one: one.step_seconds, default=None)
    return Solved(quantity=None, tried=tuple(found), best=best, next_harder=None)


def _as_typed(request: Request) -> Request:
    """Without a search for what is faster than the job as typed."""
    return replace(request, quick=request.quick or request.search is None)


def _same_job(request: Request) -> Request:
    """With the sequence and the global batch that a recipe lends for these GPUs, for all GPUs; a
    number of GPUs, where there is none."""
    if not request.gpus[:1].isdigit():
        request = replace(request, gpus=f"{_SERVER}x{request.gpus}")
    config = advise(_as_typed(request)).job.config
    said = {pair.partition("=")[0] for pair in request.overrides}
    names = [name for name in ("seq_length", "global_batch_size") if f"job.{name}" not in said]
    return replace(request, **{name: getattr(config, name) for name in names})


def _ask(request: Request, value: int) -> Tried:
    try:
        return Tried(value=value, request=request, answer=advise(request))
    except UserError as error:
        return Tried(value=value, request=request, refused=str(error))


def with_value(request: Request, quantity: Quantity, value: int) -> Request:
    """The request that asks for the value directly."""
    if quantity is Quantity.GPUS:
        return replace(request, gpus=f"{value}x{parse_gpus(request.gpus)[1]}")
    name = "memory_budget" if quantity is Quantity.MEMORY else quantity.value
    given = f"{value / _TENTHS}GiB" if quantity is Quantity.MEMORY else value
    left = tuple(pair for pair in request.overrides if not pair.startswith(f"job.{name}"))
    return replace(request, overrides=left, **{name: given})


def _values(quantity: Quantity, request: Request) -> tuple[list[int], int]:
    """Those that are looked at, the easiest first, and the place of the first."""
    if quantity is Quantity.GPUS:
        asked, _ = parse_gpus(request.gpus)
        counts = sorted({asked, *_counts()}, reverse=True)
        return counts, counts.index(asked)
    if quantity is Quantity.SEQ_LENGTH:
        lengths = list(_doublings(_FEWEST, _MOST_TOKENS))
        return lengths, lengths.index(_FIRST)
    job = advise(replace(request, memory_budget=None)).job
    if quantity is Quantity.MEMORY:
        return list(range(job.gpu.memory_bytes * _TENTHS // GIB, 0, -1)), 0
    replicas, layout = job.layout.data_parallel_size, job.layout
    if quantity is Quantity.MICRO_BATCH_SIZE:
        return list(divisors(job.config.global_batch_size // replicas)), 0
    stages = layout.pipeline_model_parallel_size
    together = stages if layout.virtual_pipeline_model_parallel_size > 1 else 1
    batch = job.config.micro_batch_size * replicas * together
    return list(_doublings(batch, batch * _MOST_MICROBATCHES)), 0


def _beyond(quantity: Quantity, values: Sequence[int], place: int) -> int:
    """A value harder than that of a place: the next power of two, of tokens and sequences."""
    harder = values[place + 1 :]
    if quantity is Quantity.MICRO_BATCH_SIZE:
        return harder[0]
    return next((one for one in harder if (one // values[0]).bit_count() == 1), harder[0])


def _counts() -> Iterator[int]:
    """1, 2, 4, 8, and multiples of a server of 8."""
    yield from (1, 2, 4)
    yield from (count * _SERVER for count in _doublings(1, _MOST_GPUS // _SERVER, 4))


def _doublings(least: int, most: int, steps: int = _STEPS_IN_A_DOUBLING) -> Iterator[int]:
    """From least to most, so many in a doubling, whole multiples of least."""
    value = least
    while value <= most:
        yield value
        power = least
        while power * 2 <= value:
            power *= 2
        value += max(least, power // steps)


def _hardest(count: int, start: int, stride: int, fits: Callable[[int], bool]) -> int:
    """The last place, of the easiest first, that fits where the next one does not; -1 where none
    does. Long strides first, then halves; of the last few each, the hardest first, as what is legal
    may be so here and there."""
    low, high = -1, count
    if fits(start):
        low = start
        while low + 1 < count:
            place = min(low + stride, count - 1)
            if not fits(place):
                high = place
                break
            low = place
    else:
        high = start
        while high > 0:
            place = max(high - stride, 0)
            if fits(place):
                low = place
                break
            high = place
    while high - low > _FEW:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return next((place for place in range(high - 1, low, -1) if fits(place)), low)


_FEW: Final = 4
