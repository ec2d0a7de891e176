"""`--solve`: which values of a quantity are asked for, and which of them is the hardest that fits.

From the easiest on: sequences and batches grow, GPUs and memory shrink.
"""

from collections.abc import Callable, Iterator, Sequence
from math import lcm, prod
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import divisors
from advisor.base.units import GIB, parse_gpus
from advisor.job.lengths import read_lengths
from advisor.request.given import read_given
from advisor.request.request import Quantity, Request
from advisor.search.advise import advise

Fits = Callable[[int], bool]
_STEPS: Final = 16
"""Values from one to twice as much, of tokens and sequences (a judgement)."""
_FEWEST, _FIRST, _MOST_TOKENS = 64, 4096, 2**22
"""Tokens of a sequence."""
_MOST_MICROBATCHES, _MOST_GPUS, _SERVER = 2**12, 2**14, 8
TENTHS: Final = 10
"""Memory is looked for in tenths of a GiB."""
_FEW: Final = 4
"""Values that are asked for one after the other (a judgement)."""


def as_typed(request: Request) -> Request:
    """Without a search for what is faster than the job as typed."""
    return replace(request, quick=request.quick or request.search is None)


def same_job(request: Request, quantity: Quantity = Quantity.GPUS) -> Request:
    """With the global batch that a recipe lends for the request, and for numbers of GPUs its
    sequence, whatever the value that is asked for; a number of GPUs, where there is none."""
    if not request.gpus[:1].isdigit():
        request = replace(request, gpus=f"{_SERVER}x{request.gpus}")
    first = request
    if quantity is Quantity.SEQ_LENGTH and request.seq_length is None and _FIRST % _unit(request):
        first = replace(request, seq_length=values_of(quantity, request)[0][1])
    config = advise(as_typed(first)).job.config
    said = {pair.partition("=")[0] for pair in request.overrides}
    lent = ("global_batch_size", "seq_length")[: 1 + (quantity is Quantity.GPUS)]
    names = [name for name in lent if f"job.{name}" not in said]
    return replace(request, **{name: getattr(config, name) for name in names})


def with_value(request: Request, quantity: Quantity, value: int) -> Request:
    """The request that asks for the value directly."""
    if quantity is Quantity.GPUS:
        return replace(request, gpus=f"{value}x{parse_gpus(request.gpus)[1]}")
    name, own = _NAMES.get(quantity, quantity), _KEYS.get(quantity, f"job.{quantity}")
    given = f"{value / TENTHS}GiB" if quantity is Quantity.MEMORY else value
    left = tuple(pair for pair in request.overrides if not pair.startswith(own))
    return replace(request, overrides=left, **{name: given})


_NAMES: Final = {Quantity.MEMORY: "memory_budget", Quantity.TOKENS: "max_tokens_per_gpu"}
_KEYS: Final = {Quantity.MEMORY: "job.memory_budget", Quantity.TOKENS: "samples.token_budget"}
"""Fields of a request that are not named as the quantity, and the beginnings of their keys."""


def values_of(quantity: Quantity, request: Request) -> tuple[list[int], int]:
    """Those that are looked at, the easiest first, and the place of the first."""
    if quantity is Quantity.GPUS:
        asked, _ = parse_gpus(request.gpus)
        counts = sorted({asked, *_counts()}, reverse=True)
        return counts, counts.index(asked)
    if quantity is Quantity.TOKENS:
        job = advise(as_typed(request)).job
        held = -(-job.config.global_batch_size // job.layout.data_parallel_size)
        step = held * job.config.seq_length // job.layout.context_parallel_size
        most = min(_MOST_TOKENS, max(2 * _FIRST, step))
        budgets = sorted({*_doublings(_FEWEST, most), most})
        return budgets, budgets.index(_FIRST)
    if quantity is Quantity.SEQ_LENGTH:
        lengths = list(_doublings(_unit(request), _MOST_TOKENS))
        if (samples := read_given(request).job_fields.get("samples")) and samples.lengths:
            longest = read_lengths(samples.lengths).longest  # longer rows hold the same samples
            lengths = [*(one for one in lengths if one < longest), longest]
            return lengths, len(lengths) - 1
        return lengths, next(place for place, one in enumerate(lengths) if one >= _FIRST)
    job = advise(replace(request, memory_budget=None)).job
    if quantity is Quantity.MEMORY:
        return list(range(job.gpu.memory_bytes * TENTHS // GIB, 0, -1)), 0
    replicas, layout = job.layout.data_parallel_size, job.layout
    if quantity is Quantity.MICRO_BATCH_SIZE:
        return list(divisors(job.config.global_batch_size // replicas)), 0
    stages = layout.pipeline_model_parallel_size
    together = stages if layout.virtual_pipeline_model_parallel_size > 1 else 1
    batch = job.config.micro_batch_size * replicas * together
    return list(_doublings(batch, batch * _MOST_MICROBATCHES)), 0


def _unit(request: Request) -> int:
    """The fewest tokens, a multiple of which the degrees that are given can cut."""
    degrees = request.context_parallel_size or 1, request.tensor_model_parallel_size or 1
    return lcm(_FEWEST, 2 * prod(degrees))


def next_round(quantity: Quantity, values: Sequence[int], place: int) -> int:
    """A value harder than that of a place: the next power of two, of tokens and sequences."""
    harder = values[place + 1 :]
    if quantity is Quantity.MICRO_BATCH_SIZE:
        return harder[0]
    return next((one for one in harder if (one // values[0]).bit_count() == 1), harder[0])


def _counts() -> Iterator[int]:
    """1, 2, 4, 8, and multiples of a server of 8."""
    yield from (1, 2, 4)
    yield from (count * _SERVER for count in _doublings(1, _MOST_GPUS // _SERVER, 4))


def _doublings(least: int, most: int, steps: int = _STEPS) -> Iterator[int]:
    """From least to most, so many in a doubling, whole multiples of least."""
    value = least
    while value <= most:
        yield value
        power = least
        while power * 2 <= value:
            power *= 2
        value += max(least, power // steps)


def hardest(quantity: Quantity, values: Sequence[int], start: int, fits: Fits) -> int:
    """The last place, of the easiest first, that fits where the next one does not; -1 where none
    does. First from value to twice or half of it, then halves of what is between; of the last few
    the hardest first, as what is legal may be so here and there."""
    harder = fits(start)
    low, high, place = (start if harder else -1), (len(values) if harder else start), start
    while low + 1 < high and (place := _leap(quantity, values, place, 1 if harder else -1)) >= 0:
        low, high = (place, high) if fits(place) else (low, place)
        if harder is not fits(place) or place in (0, len(values) - 1):
            break
    while high - low > _FEW:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return next((place for place in range(high - 1, low, -1) if fits(place)), low)


def _leap(quantity: Quantity, values: Sequence[int], place: int, step: int) -> int:
    """The next place with twice or half the value, or the last; of divisors the next one, of memory
    the last one. -1 where there is none."""
    ahead = range(place + step, len(values) if step > 0 else -1, step)
    if quantity is Quantity.MEMORY or not ahead:
        return ahead[-1] if ahead else -1
    least = 1 if quantity is Quantity.MICRO_BATCH_SIZE else 2
    pairs = ((one, sorted((values[one], values[place]))) for one in ahead)
    return next((one for one, (few, many) in pairs if many >= least * few), ahead[-1])
