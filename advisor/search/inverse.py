"""`--solve`: which values of a quantity are asked for, and which of them is the hardest that fits.

From the easiest on: sequences and batches grow, GPUs and memory shrink.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from advisor.base.units import GIB, divisors, parse_gpus
from advisor.request.request import Quantity, Request
from advisor.search.advise import advise

_STRIDES: Final = {Quantity.GPUS: 4, Quantity.MICRO_BATCH_SIZE: 1, Quantity.MEMORY: 2**14}
_STEPS: Final = 16
"""Values from one to twice as much, of tokens and sequences: as many as a first, long stride takes;
of the others so many (judgements)."""
_FEWEST, _FIRST, _MOST_TOKENS = 64, 4096, 2**22
"""Tokens of a sequence."""
_MOST_MICROBATCHES, _MOST_GPUS, _SERVER = 2**12, 2**14, 8
TENTHS: Final = 10
"""Memory is looked for in tenths of a GiB."""
_FEW: Final = 4


def as_typed(request: Request) -> Request:
    """Without a search for what is faster than the job as typed."""
    return replace(request, quick=request.quick or request.search is None)


def same_job(request: Request, quantity: Quantity = Quantity.GPUS) -> Request:
    """With the global batch that a recipe lends for the request, and for numbers of GPUs its
    sequence, whatever the value that is asked for; a number of GPUs, where there is none."""
    if not request.gpus[:1].isdigit():
        request = replace(request, gpus=f"{_SERVER}x{request.gpus}")
    config = advise(as_typed(request)).job.config
    said = {pair.partition("=")[0] for pair in request.overrides}
    lent = ("global_batch_size", "seq_length")[: 1 + (quantity is Quantity.GPUS)]
    names = [name for name in lent if f"job.{name}" not in said]
    return replace(request, **{name: getattr(config, name) for name in names})


def with_value(request: Request, quantity: Quantity, value: int) -> Request:
    """The request that asks for the value directly."""
    if quantity is Quantity.GPUS:
        return replace(request, gpus=f"{value}x{parse_gpus(request.gpus)[1]}")
    name = "memory_budget" if quantity is Quantity.MEMORY else quantity.value
    given = f"{value / TENTHS}GiB" if quantity is Quantity.MEMORY else value
    left = tuple(pair for pair in request.overrides if not pair.startswith(f"job.{name}"))
    return replace(request, overrides=left, **{name: given})


def values_of(quantity: Quantity, request: Request) -> tuple[list[int], int]:
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
        return list(range(job.gpu.memory_bytes * TENTHS // GIB, 0, -1)), 0
    replicas, layout = job.layout.data_parallel_size, job.layout
    if quantity is Quantity.MICRO_BATCH_SIZE:
        return list(divisors(job.config.global_batch_size // replicas)), 0
    stages = layout.pipeline_model_parallel_size
    together = stages if layout.virtual_pipeline_model_parallel_size > 1 else 1
    batch = job.config.micro_batch_size * replicas * together
    return list(_doublings(batch, batch * _MOST_MICROBATCHES)), 0


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


def hardest(quantity: Quantity, count: int, start: int, fits: Callable[[int], bool]) -> int:
    """The last place, of the easiest first, that fits where the next one does not; -1 where none
    does. Long strides first, then halves; of the last few each, the hardest first, as what is legal
    may be so here and there."""
    low, high, stride = -1, count, _STRIDES.get(quantity, _STEPS)
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
