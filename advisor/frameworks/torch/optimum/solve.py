"""The fastest choice of a regime for every block of a job within its memory budget."""

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.units import human_bytes
from advisor.frameworks.part_types import FixedMemory, JobEvaluator, Solved
from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime, decisions
from advisor.frameworks.torch.plan import Semantics, block_segment
from advisor.frameworks.torch.setting import FULL, TorchSetting, by_block
from advisor.layers.operators import LAYER_INPUT, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.cheapest import Chosen, Way, cheapest
from advisor.memory.chunk_units import unit_of
from advisor.memory.room import Room, room_of
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import RecomputePlan, computed_until_stop, made
from advisor.time.passes import chunk_times, copy_seconds, forward_operator_seconds, layer_times
from advisor.time.stage_times import Rates

_MOST_DECISIONS: Final = 8
"""Operators of a block that are decided on, those that take longest: 3^8 ways each."""
FEMTOSECONDS: Final = 1e15
"""Of a second: in whole ones costs are added without rounding."""


class Ways(Struct, frozen=True):
    """Ways of a block, each with what it costs. decided: names of the operators whose outputs they
    keep or not."""

    regimes: tuple[BlockRegime, ...]
    options: tuple[Way, ...]
    decided: tuple[str, ...]


def ways_of(
    shape: RankShape, kind: LayerKind, how: Semantics, rates: Rates, *, on_host: bool
) -> Ways:
    """No checkpoint, or one that keeps any of the outputs of `decided` on the device, or `on_host`,
    its input with them, which eager blocks alone can."""
    decided = decided_on(shape, kind, rates)
    found: list[tuple[BlockRegime, Way]] = []
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
    known = [*decisions(computed_until_stop(transformer_layer(shape, kind)))]
    seconds = forward_operator_seconds(shape, rates.machine, rates.network, kind)
    longest = sorted(known, key=lambda name: -seconds[name])[:_MOST_DECISIONS]
    return tuple(name for name in known if name in longest)


def _option(
    regime: BlockRegime, shape: RankShape, kind: LayerKind, how: Semantics, rates: Rates
) -> Way:
    segment = block_segment(regime, shape, kind, how)
    unit = unit_of(shape, segment)
    times = chunk_times(shape, rates.machine, rates.network, RecomputePlan((segment,)))
    return Way(
        cost=round(times.total * FEMTOSECONDS),
        kept=unit.kept,
        forward=unit.highest_forward,
        backward=unit.highest_backward,
    )


def _on_host(
    regime: BlockRegime, option: Way, shape: RankShape, kind: LayerKind, rates: Rates
) -> Iterator[tuple[BlockRegime, Way]]:
    """`regime` with any of what it keeps on the host (memory.chunk_units); what no kernel
    hides of the copies takes time."""
    operators = {operator.name: operator for operator in transformer_layer(shape, kind)}
    sizes = {name: _made_bytes(operators[name]) for name in regime.kept}
    sizes[INPUT] = shape.hidden(LAYER_INPUT).num_bytes
    times = layer_times(shape, rates.machine, rates.network, kind)
    for number in range(1, len(sizes) + 1):
        for away in combinations(sizes, number):
            num_bytes = sum(sizes[name] for name in away)
            copies = copy_seconds(num_bytes, rates.machine, times)
            kept = tuple(name for name in regime.kept if name not in away)
            yield (
                replace(regime, kept=kept, on_host=away),
                Way(
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


_ROUNDS: Final = 6
"""Plans whose allocator is simulated."""
_AS_GOOD: Final = 0.002
"""Share of allocated bytes between what fits and what does not that is not worth another round."""


class Found(Struct, frozen=True):
    """The fastest setting within so many bytes `allocated`, and the proof. bound: none that fits is
    faster than this one, which is the setting itself unless it was found to be near the edge."""

    setting: TorchSetting
    allocated: int
    chosen: Chosen
    bound: TorchSetting


class Blocks:
    """The blocks of a model on one rank, and what each may do; on_host: whether it may have some of
    it wait on the host."""

    def __init__(
        self,
        shape: RankShape,
        how: Semantics,
        rates: Rates,
        working_set: WorkingSet | None,
        *,
        on_host: bool,
    ) -> None:
        kinds = shape.model.layer_kinds
        of_kinds = tuple(dict.fromkeys(kinds))
        inside = shape if working_set is None else working_set.with_gradients(shape)
        self.ways = {k: ways_of(inside, k, how, rates, on_host=on_host) for k in of_kinds}
        self._kinds = tuple(of_kinds.index(kind) for kind in kinds)
        plain = tuple(block_segment(BlockRegime(), shape, kind, how) for kind in kinds)
        self.room: Room = room_of(shape, RecomputePlan(plain), working_set)

    def within(self, fixed: int, allocated: int) -> Found | None:
        """The fastest setting whose peak and `fixed` bytes are at most `allocated`; None where none
        is."""
        every = [*self.ways.values()]
        options = [ways.options for ways in every]
        chosen = cheapest(options, self._kinds, self.room, allocated - fixed)
        if chosen is None:
            return None
        taken = zip(self._kinds, chosen.numbers, strict=True)
        setting = by_block(tuple(every[kind].regimes[n] for kind, n in taken))
        return Found(setting, allocated, chosen, bound=setting)


def fastest(blocks: Blocks, fixed: int, evaluator: JobEvaluator) -> Found | None:
    """The fastest setting that likely fits with what the allocator leaves unused under it.

    How much that is depends on the setting: it is looked for within the bytes that the last one's
    leaves, then between the most bytes within which it fits and the least within which it does not,
    until these are as good as equal.
    """
    fits: Found | None = None
    fails: Found | None = None
    allocated = evaluator.most_allocated(FULL)
    for _ in range(_ROUNDS):
        found = blocks.within(fixed, allocated)
        if found is None:
            break
        own = evaluator.most_allocated(found.setting)
        if evaluator.evaluate(found.setting).simulated.fits:
            fits = found
            if fails is None and own <= allocated:
                break
        else:
            fails = found
        allocated = _next(own, fits, fails)
        if fits and fails and fails.allocated - fits.allocated < fits.allocated * _AS_GOOD:
            break
    if fits is None:
        return None
    return fits if fails is None else replace(fits, bound=fails.setting)


def _next(own: int, fits: Found | None, fails: Found | None) -> int:
    """The bytes to try next: those that the last setting's allocator leaves, if they are between
    what is known."""
    if fits is None or fails is None:
        return own
    between = fits.allocated < own < fails.allocated
    return own if between else (fits.allocated + fails.allocated) // 2


def solved(evaluator: JobEvaluator, how: Semantics, fixed: FixedMemory) -> Solved | None:
    """The fastest setting, and where copies to the host may be made the fastest without them; None
    where nothing fits."""
    rates, found = evaluator.rates, []
    copies = not how.compiled and evaluator.job.layout.tensor_model_parallel_size == 1
    for on_host in (False, True) if copies else (False,):  # as block_rules allow
        blocks = Blocks(evaluator.shape, how, rates, fixed.working_set, on_host=on_host)
        one = fastest(blocks, fixed.total, evaluator)
        if one is not None:
            found.append(one)
    if not found:
        return None
    return Solved(
        settings=tuple(dict.fromkeys(one.setting for one in found)),
        bound_seconds=min(_bound_seconds(evaluator, one) for one in found),
        space=tuple(_words(blocks, evaluator, found[-1])),
        num_points=None,
        evaluated=sum(one.chosen.states for one in found),
        excluded=0,
    )


def _bound_seconds(evaluator: JobEvaluator, found: Found) -> float:
    """Step time that nothing undercuts: that of the bound, less what the choice leaves open."""
    seconds = evaluator.evaluate(found.bound).step_time_seconds
    open_ = (found.chosen.cost - found.chosen.bound) / FEMTOSECONDS
    return seconds - open_ * evaluator.job.num_microbatches


def _words(blocks: Blocks, evaluator: JobEvaluator, found: Found) -> Iterator[str]:
    """The space, a line each."""
    kinds = evaluator.job.model.layer_kinds
    for kind, ways in blocks.ways.items():
        outputs = ", ".join(ways.decided)
        hosted = any(one.on_host for one in ways.regimes)
        does = "kept, offloaded or replayed" if hosted else "kept or replayed"
        its = "the block's input is kept or offloaded; " if hosted else ""
        yield (
            f"each of {kinds.count(kind)} blocks separately ({len(ways.regimes):,} ways per block)"
            f": no checkpoint, or a checkpoint in which each of the outputs {outputs} is {does}; "
            f"{its}the rest is replayed"
        )
    yield (
        f"at most {human_bytes(found.allocated)} allocated: the budget minus what the allocator "
        "keeps unused under this plan"
    )
