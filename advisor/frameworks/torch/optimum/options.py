"""What a block may do, and what each way costs in bytes and time."""

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime
from advisor.frameworks.torch.decisions import decisions
from advisor.frameworks.torch.plan import Semantics, block_segment
from advisor.layers.operators import LAYER_INPUT, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.cheapest import Option
from advisor.memory.chunk_blocks import segment_block
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import RecomputePlan, computed_until_stop, made
from advisor.time.machine import Machine
from advisor.time.network.fabric import Network
from advisor.time.passes import chunk_times, copy_seconds, forward_operator_seconds, layer_times

_MOST_DECISIONS: Final = 8
"""Operators of a block that are decided on, those that take longest: 3^8 ways each."""
FEMTOSECONDS: Final = 1e15
"""Of a second: in whole ones costs are added without rounding."""


class Rates(Struct, frozen=True):
    """How fast the rank computes, copies to its host, and communicates."""

    machine: Machine
    network: Network


class Ways(Struct, frozen=True):
    """Ways of a block, each with what it costs. decided: names of the operators whose outputs they
    keep or not."""

    regimes: tuple[BlockRegime, ...]
    options: tuple[Option, ...]
    decided: tuple[str, ...]


def ways_of(
    shape: RankShape, kind: LayerKind, how: Semantics, rates: Rates, *, on_host: bool
) -> Ways:
    """No checkpoint, or one that keeps any of the outputs of `decided` on the device, or `on_host`,
    its input with them, which eager blocks alone can."""
    decided = decided_on(shape, kind, rates)
    found: list[tuple[BlockRegime, Option]] = []
    plain = BlockRegime()
    found.append((plain, _option(plain, shape, kind, how, rates)))
    for number in range(len(decided) + 1):
        for kept in combinations(decided, number):
            regime = BlockRegime(checkpointed=True, kept=kept)
            option = _option(regime, shape, kind, how, rates)
            found.append((regime, option))
            if on_host:
                found += _on_host(regime, option, shape, kind, rates)
    return Ways(tuple(r for r, _ in found), tuple(o for _, o in found), decided)


def decided_on(shape: RankShape, kind: LayerKind, rates: Rates) -> tuple[str, ...]:
    """Matrix products and attention that a replay comes to, by name in the order of the block; of
    many those whose forward takes longest. Experts' products, which no list of torch's names, are
    computed again."""
    operators = computed_until_stop(transformer_layer(shape, kind))
    known = [*decisions(operators)]
    seconds = forward_operator_seconds(shape, rates.machine, rates.network, kind)
    longest = sorted(known, key=lambda name: -seconds[name])[:_MOST_DECISIONS]
    return tuple(name for name in known if name in longest)


def _option(
    regime: BlockRegime, shape: RankShape, kind: LayerKind, how: Semantics, rates: Rates
) -> Option:
    segment = block_segment(regime, shape, kind, how)
    block = segment_block(shape, segment)
    times = chunk_times(shape, rates.machine, rates.network, RecomputePlan((segment,)))
    return Option(
        cost=round(times.total * FEMTOSECONDS),
        kept=block.kept,
        forward=block.forward.num_bytes,
        backward=block.backward.num_bytes,
    )


def _on_host(
    regime: BlockRegime, option: Option, shape: RankShape, kind: LayerKind, rates: Rates
) -> Iterator[tuple[BlockRegime, Option]]:
    """`regime` with any of what it keeps on the host (chunk_blocks.segment_block); what no kernel
    hides of the copies takes time."""
    operators = {operator.name: operator for operator in transformer_layer(shape, kind)}
    sizes = {name: _made_bytes(operators[name]) for name in regime.kept}
    sizes[INPUT] = shape.hidden(LAYER_INPUT).num_bytes
    beside = layer_times(shape, rates.machine, rates.network, kind)
    for number in range(1, len(sizes) + 1):
        for away in combinations(sizes, number):
            num_bytes = sum(sizes[name] for name in away)
            copies = copy_seconds(num_bytes, rates.machine, beside)
            kept = tuple(name for name in regime.kept if name not in away)
            yield (
                replace(regime, kept=kept, on_host=away),
                Option(
                    cost=option.cost + round(copies * FEMTOSECONDS),
                    kept=option.kept - num_bytes,
                    forward=option.forward,
                    backward=option.backward,
                    away=num_bytes,
                ),
            )


def _made_bytes(operator: Operator) -> int:
    storages = {tensor.storage.name: tensor.storage for tensor in made(operator)}
    return sum(storage.num_bytes for storage in storages.values())
