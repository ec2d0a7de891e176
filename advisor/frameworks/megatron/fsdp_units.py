"""What Megatron-FSDP gathers and reduces while each layer runs.

A layer is a unit: gathered before either pass and freed after it. The ends of the model are none;
they stay gathered. Source: megatron-core 0.16.1 and 0.19.2 distributed/fsdp/src/megatron_fsdp/
megatron_fsdp.py and param_and_grad_buffer.py (run on fake tensors in tests/oracles).
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import cycle, islice
from math import inf
from typing import Final

from advisor.frameworks.megatron.buffers import Chunks
from advisor.job.job import Job
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.layers.weights import embedding_weights, output_weights
from advisor.memory.static import num_elements, with_one_token
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import LayerKind

_ON_THE_WAY: Final = 1_000_000_000
"""suggested_communication_unit_size, at least: elements of gradients that wait for the end of their
reduction; half as many parameters are gathered ahead."""
_BUCKET, _BUCKET_OF_A_RANK = 40_000_000, 1_000_000


@lru_cache(maxsize=1024)
def layer_weights(shape: RankShape, kind: LayerKind) -> tuple[Weight, ...]:
    """Those of a layer."""
    operators = transformer_layer(with_one_token(shape), kind)
    return tuple(weight for operator in operators for weight in operator.weights)


def ends(shape: RankShape) -> tuple[int, int]:
    """Elements of the embedding, and of final norm and output layer."""
    first, last = embedding_weights(shape), output_weights(shape, holds_embedding=True)
    return num_elements(first), num_elements(last)


def unit_parameters(
    job: Job, shape: RankShape, chunks: Chunks, own: int, columns: int
) -> WorkingSet:
    """Where parameters are sharded. Largest layer: `own` bytes as it is gathered, and its `columns`
    in 8 bits, for the backward.

    The next layers are gathered ahead in either pass. The output layer comes before the first layer
    in the order of the groups, and so gathers layers ahead that nobody needs. Gradients are in the
    queue until too many are on their way; those of ends that are one group, to the end. Double
    buffers are no part of it.
    """
    layout, grads = job.layout, job.config.main_grads_dtype.itemsize
    units = [_groups(layer_weights(shape, k)) for chunk in chunks for k in chunk.layers]
    largest, (embedding, head) = max(units, key=sum), ends(shape)
    unit, waits = sum(largest), 0
    ahead, first = (_ahead(units, others) * own // unit for others in (0, head))
    if layout.fsdp_double_buffer:
        units, own, ahead, first, unit = [], 0, 0, 0, 0
    if not layout.overlap_grad_reduce:  # no bucket size
        head, embedding = head + embedding, 0
        waits = head
    last, *layers, end = _in_flight([head, *(n for one in reversed(units) for n in one), embedding])
    top = max(waits, *layers, head) * grads
    layer = ShardingOverhead(
        entry=own + ahead,
        forward=own + ahead,
        backward=own + ahead + columns + top,
        exit=own + ahead + top + -(-unit // layout.sharding_ranks) * grads,
    )
    return WorkingSet(
        embedding=ShardingOverhead(forward=first, backward=max(end, waits) * grads),
        first_layer=layer,
        layer=layer,
        last_layer=layer,
        head=ShardingOverhead(entry=ahead, forward=ahead, backward=ahead + last * grads),
        loss=ShardingOverhead(forward=ahead, backward=ahead),
    )


def bucketed_gradients(job: Job, shape: RankShape, chunks: Chunks) -> WorkingSet:
    """Where gradients alone are sharded, in buckets of all parameters."""
    first, last = embedding_weights(shape), output_weights(shape, holds_embedding=True)
    layers = [w for chunk in chunks for kind in chunk.layers for w in layer_weights(shape, kind)]
    ranks = job.layout.data_parallel_size * job.layout.context_parallel_size
    size = max(_BUCKET, _BUCKET_OF_A_RANK * ranks) if job.layout.overlap_grad_reduce else inf
    found = _in_flight(reversed([*_buckets((*first, *layers, *last), size)]))
    grads = job.config.main_grads_dtype.itemsize
    begin, layer, end = (
        ShardingOverhead(backward=n * grads) for n in (found[0], max(found), found[-1])
    )
    return WorkingSet(embedding=end, first_layer=layer, layer=layer, last_layer=layer, head=begin)


def _groups(weights: Iterable[Weight]) -> tuple[int, ...]:
    """Elements of what is gathered and reduced at once, in the order of the backward: routed
    experts, and the others."""
    sizes = {True: 0, False: 0}
    for weight in weights:
        sizes[weight.expert] += weight.num_elements
    return tuple(filter(None, sizes.values()))


def _ahead(units: list[tuple[int, ...]], others: int) -> int:
    """Elements of layers like the largest that are gathered ahead, one group after another until
    they are enough together with `others`."""
    enough = max(_ON_THE_WAY, 2 * sum(map(sum, units)) // len(units)) // 2
    largest, found = max(units, key=sum), others
    for size in islice(cycle(reversed(largest)), len(largest) * (len(units) - 1)):
        found += size if found < enough else 0
    return found - others


def _buckets(weights: Iterable[Weight], size: float) -> Iterator[int]:
    """Elements of the buckets: consecutive parameters, routed experts' apart, until they are
    `size`."""
    filled = {False: 0, True: 0}
    for weight in weights:
        filled[weight.expert] += weight.num_elements
        if filled[weight.expert] >= size:
            yield filled[weight.expert]
            filled[weight.expert] = 0
    yield from filter(None, filled.values())


def _in_flight(sizes: Iterable[int]) -> list[int]:
    """Elements of gradients while each group goes back: its own, and those of groups before it that
    the processor has not let go of (wait_for_previous_grad_reduce)."""
    waiting, found = list[int](), list[int]()
    for size in sizes:
        found.append(sum(waiting) + size)
        while sum(waiting) > _ON_THE_WAY:
            waiting.pop(0)
        waiting.append(size)
    return found
