"""What Megatron-FSDP gathers and reduces while each layer runs.

Where parameters are sharded, a layer is a unit: gathered for either pass, with the next ones, and
then freed. The ends of the model are none; they stay gathered. Source: megatron-core 0.16.1 and
0.19.2 distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py and param_and_grad_buffer.py (run on fake
tensors in tests/oracles).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from math import inf
from typing import Final

from advisor.frameworks.megatron.buffers import Chunks
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape, embedding_weights, output_weights
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import num_elements, with_one_token
from advisor.memory.working_set import ShardingOverhead, WorkingSet

_UNIT_SIZE: Final = 1_000_000_000
"""Least suggested_communication_unit_size, which is two layers where parameters are sharded:
elements of gradients that wait for the end of their reduction; half as many are gathered ahead."""
_BUCKET, _BUCKET_OF_A_RANK = 40_000_000, 1_000_000

Parts = list[tuple[Weight, ...]]
"""Parameters of embedding, each layer, and final norm with output layer."""
_Group = tuple[int, int, int]
"""Elements that are reduced together, and the first and the last part that they are of."""


def parts_of_model(shape: RankShape, chunks: Chunks) -> Parts:
    """Those of a rank."""
    one, kinds = with_one_token(shape), [kind for chunk in chunks for kind in chunk.layers]
    layers = {
        kind: tuple(chain(*(operator.weights for operator in transformer_layer(one, kind))))
        for kind in dict.fromkeys(kinds)
    }
    last = output_weights(shape, holds_embedding=True)
    return [embedding_weights(shape), *(layers[kind] for kind in kinds), last]


def next_to_layers(job: Job, parts: Parts, itemsize: float, columns: int) -> WorkingSet:
    """Next to each part. Where parameters are sharded, `itemsize` bytes of an element are gathered,
    and for the backward `columns` bytes of a layer more; where gradients alone are, nothing.

    Double buffers are no part of it. The output layer comes before the first layer in the order of
    the groups, and so gathers layers ahead that nobody needs.
    """
    layout, units = job.layout, parts[1:-1]
    sizes, groups = [num_elements(unit) for unit in units], [*_buckets(layout, parts)]
    gathers = layout.data_parallel_sharding is DataParallelSharding.FULL
    pooled = gathers and layout.double_buffers
    if gathers:
        groups = [*_buckets(layout, [parts[0], *((),) * len(units), parts[-1]])]
        for at, unit in enumerate(units, 1):
            groups += [(0 if pooled else size, at, at) for size in _by_kind(unit) if size]
    if pooled or not gathers:
        itemsize = columns = 0
    grads, unit_size = job.config.main_grads_dtype.itemsize, _UNIT_SIZE
    if gathers:
        unit_size = max(_UNIT_SIZE, sum(sizes) // len(units) * 2)
    limit = 0 if pooled else unit_size
    begin, *each, end = (size * grads for size in _in_flight(groups, len(parts), limit))
    ahead, layers = _ahead(units, 0, unit_size // 2), list[ShardingOverhead]()
    for index, (size, reduced) in enumerate(zip(sizes, each, strict=True)):
        there, back = (
            int(itemsize * (size + min(ahead, sum(others))))
            for others in (sizes[index + 1 :], sizes[:index])
        )
        back += columns + reduced
        layers.append(ShardingOverhead(entry=there, forward=there, backward=back, exit=back))
    first, needless = (
        int(itemsize * n) for n in (_ahead(units, num_elements(parts[-1]), unit_size // 2), ahead)
    )
    return WorkingSet(
        embedding=ShardingOverhead(forward=first, backward=begin),
        layers=tuple(layers),
        head=ShardingOverhead(entry=needless, forward=needless, backward=needless + end),
        loss=ShardingOverhead(forward=needless, backward=needless),
    )


def _by_kind(weights: tuple[Weight, ...]) -> tuple[int, int]:
    """Elements of routed experts, which go back first, and of the others."""
    experts = num_elements(tuple(weight for weight in weights if weight.expert))
    return experts, num_elements(weights) - experts


def _ahead(units: Parts, others: int, enough: int) -> int:
    """Elements of layers like the largest that are gathered ahead, one group after another until
    they are `enough` together with `others`."""
    largest, found = _by_kind(max(units, key=num_elements)), others
    for size in islice(cycle(reversed(largest)), 2 * (len(units) - 1)):
        found += size if found < enough else 0
    return found - others


def _buckets(layout: ParallelLayout, parts: Sequence[tuple[Weight, ...]]) -> Iterator[_Group]:
    """Consecutive parameters, routed experts' apart, until they are enough; all, where reductions
    do not overlap (training.py)."""
    ranks = layout.data_parallel_size * layout.context_parallel_size
    enough = max(_BUCKET, _BUCKET_OF_A_RANK * ranks) if layout.overlap_grad_reduce else inf
    filled = {True: (0, 0, 0), False: (0, 0, 0)}
    for place, weights in enumerate(parts):
        for weight in weights:
            size, first, _ = filled[weight.expert]
            bucket = size + weight.num_elements, first if size else place, place
            filled[weight.expert] = bucket if bucket[0] < enough else (0, 0, 0)
            if bucket[0] >= enough:
                yield bucket
    yield from (bucket for bucket in filled.values() if bucket[0])


def _in_flight(groups: Sequence[_Group], number: int, limit: int) -> list[int]:
    """The most elements of gradients while each of so many parts goes back: groups that it is of,
    and whole ones that the processor has not let go of (wait_for_previous_grad_reduce), which does
    so beyond `limit`."""
    waiting, found = list[int](), list[int]()
    for place in reversed(range(number)):
        begun = sum(size for size, first, last in groups if first < place <= last)
        most = sum(waiting) + begun
        for size, first, _ in groups:
            if first == place:
                most = max(most, sum(waiting) + begun + size)
                while sum(waiting) > limit:
                    waiting.pop(0)
                waiting.append(size)
        found.append(most)
    return found[::-1]
