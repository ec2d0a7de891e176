"""Time of one microbatch through the layers and the ends of a model chunk.

Seconds of one rank. What runs next to what is read in the frameworks' sources, which each function
names.
"""

from collections.abc import Iterable
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import astuple

from advisor.layers import transformer
from advisor.layers.operators import MOE_MODULES, SHARED_MODULES, CollectiveKind, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.models.layer_kind import DENSE, LayerKind
from advisor.plan import recompute_plan
from advisor.plan.recompute_plan import LayerReplay, RecomputePlan, Segment, replayed_operators
from advisor.time.communication import collective_seconds
from advisor.time.launches import EXCHANGES, Host, Work, idle_seconds, launched, work
from advisor.time.machine import Machine
from advisor.time.rank_links import Network
from advisor.time.roofline import Seconds, backward_seconds, forward_seconds, weight_cast_seconds


class PassTimes(Struct, frozen=True):
    """Seconds of one microbatch through some operators: kernels forward, backward and replayed
    (replayed communication included), and communication and host transfers that nothing hides.

    exchange: of the tokens of experts, part of no other field; host: the GPU waits for launches."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    exposed: float = 0.0
    offload: float = 0.0
    exchange: float = 0.0
    host: float = 0.0

    def __add__(self, other: "PassTimes") -> "PassTimes":
        return PassTimes(  # spelled out: a search adds 200,000 times
            self.forward + other.forward,
            self.backward + other.backward,
            self.recompute + other.recompute,
            self.exposed + other.exposed,
            self.offload + other.offload,
            self.exchange + other.exchange,
            self.host + other.host,
        )

    def times(self, factor: float) -> "PassTimes":
        """The same work `factor` times."""
        return PassTimes(*[seconds * factor for seconds in astuple(self)])

    @property
    def kernels(self) -> float:
        """Seconds that the GPU computes."""
        return self.forward + self.backward + self.recompute

    @property
    def total(self) -> float:
        """Sum of all."""
        return self.kernels + self.exposed + self.offload + self.exchange + self.host


_MLP = (Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2)
_SHARED = (Module.SHARED_FC1, Module.SHARED_ACTIVATION, Module.SHARED_FC2)
Passes = tuple[Seconds, Seconds]
"""Of one operator, forward and backward."""


def _passes(operator: Operator, machine: Machine, network: Network) -> Passes:
    there = forward_seconds(operator, machine, network)
    return there, backward_seconds(operator, machine, network)


@lru_cache(maxsize=4096)
def layer_passes(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind
) -> dict[str, Passes]:
    """Of the operators of one layer, by name. The result is shared: do not change it."""
    operators = transformer_layer(shape, kind)
    return {operator.name: _passes(operator, machine, network) for operator in operators}


def forward_operator_seconds(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind
) -> dict[str, float]:
    """Seconds of one forward of each operator of a layer, by name, communication included."""
    passes = layer_passes(shape, machine, network, kind)
    return {name: there.compute + there.exposed for name, (there, _) in passes.items()}


def _sum_of(operators: tuple[Operator, ...], passes: Iterable[Passes]) -> PassTimes:
    forward = backward = exposed = exchange = 0.0
    for operator, (there, back) in zip(operators, passes, strict=True):
        forward += there.compute
        backward += back.compute
        if operator.module in EXCHANGES:
            exchange += there.exposed + back.exposed
        else:
            exposed += there.exposed + back.exposed
    return PassTimes(forward, backward, 0.0, exposed, 0.0, exchange)


def tiled_operators(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a layer that DeepSpeed's tiled MLP runs again, tile by tile, in its backward
    (runtime/sequence_parallel/ulysses_sp.py TiledMLP)."""
    if not shape.tiled_mlp:
        return ()
    return tuple(operator for operator in operators if operator.module in _MLP)


@lru_cache(maxsize=4096)
def layer_times(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind = DENSE
) -> PassTimes:
    """Seconds of one microbatch through one transformer layer on one rank, nothing replayed: the
    sum over its operators, which run one after another on the computing stream; but the shared
    experts of a microbatch may hide a part of its exchange."""
    operators = transformer_layer(shape, kind)
    passes = layer_passes(shape, machine, network, kind)

    def among(chosen: tuple[Operator, ...]) -> PassTimes:
        return _sum_of(chosen, (passes[operator.name] for operator in chosen))

    times, hidden = among(operators), 0.0
    if shape.model.moe_shared_expert_overlap:
        shared = among(tuple(operator for operator in operators if operator.module in _SHARED))
        hidden = machine.hidden_fraction * min(times.exchange, shared.kernels)
    again = among(tiled_operators(shape, operators)).forward
    return times + PassTimes(exchange=-hidden, recompute=again)


EXPERTS = MOE_MODULES - SHARED_MODULES - {Module.ROUTER}
"""Submodules whose work is that of EP and ETP; all other is that of TP and CP."""


def part_times(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, *, in_experts: bool
) -> PassTimes:
    """As layer_times, of what is in the experts or of all else, nothing hidden."""
    layer = transformer_layer(shape, kind)
    operators = tuple(one for one in layer if (one.module in EXPERTS) is in_experts)
    return _sum_of(operators, (_passes(operator, machine, network) for operator in operators))


@lru_cache(maxsize=4096)
def layer_cast_seconds(shape: RankShape, machine: Machine, kind: LayerKind = DENSE) -> float:
    """Seconds of bringing the weights of one layer into the job's 8 or 4 bits, once."""
    operators = transformer_layer(shape, kind)
    return sum(weight_cast_seconds(o.gemm, machine) for o in operators if o.gemm is not None)


@lru_cache(maxsize=4096)
def end_times(
    shape: RankShape, machine: Machine, network: Network, first: bool, last: bool
) -> PassTimes:
    """Seconds of one microbatch through embedding and head (final norm, output layer, loss), where
    a chunk holds them."""
    operators = end_operators(shape, first, last)
    return _sum_of(operators, (_passes(operator, machine, network) for operator in operators))


def end_operators(shape: RankShape, first: bool, last: bool) -> tuple[Operator, ...]:
    """Those of the embedding, of both ends of a vision tower and of the head, where a chunk holds
    them."""
    embedding = transformer.embedding_operators(shape) if first else ()
    if first and shape.image_tokens:
        ends = transformer.vision_ends(constant=not transformer.trains_tower(shape))
        embedding += tuple(one for end in ends for one in transformer.vision_operators(shape, end))
    return (*embedding, *(transformer.head_operators(shape) if last else ()))


@lru_cache(maxsize=4096)
def replay_seconds(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, replay: LayerReplay
) -> float:
    """Seconds that the backward of one layer and one microbatch spends on running forwards again,
    communication included: nothing of it runs next to the backward's own. Source: arXiv 2205.05198
    (Korthikanti et al. 2022), whose overheads tests/published holds it against."""
    replayed = replayed_operators(transformer_layer(shape, kind), replay)
    passes = layer_passes(shape, machine, network, kind)
    times = [passes[operator.name][0] for operator in replayed]
    return sum(time.compute + time.exposed for time in times)


@lru_cache(maxsize=4096)
def waiting_seconds(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, replay: LayerReplay
) -> float:
    """Seconds of one layer and one microbatch, forward, replay and backward, in which the GPU waits
    for its processor (advisor.time.launches)."""
    host = machine.host
    if host is None:
        return 0.0
    layer = layer_work(shape, machine, network, kind, host)
    replayed = replayed_operators(transformer_layer(shape, kind), replay)
    again = tuple(launched((layer.forward[one.name] for one in replayed), host))
    if host.hidden_share:
        times = layer_times(shape, machine, network, kind)
        hidden = host.hidden_share * min(times.exchange, times.kernels)
        return idle_seconds((*layer.there, *again, *layer.back), host, hidden=hidden)
    if not layer.asks:
        return idle_seconds((*layer.there, *again, *layer.back), host)
    if any(one.asks for one in again):
        return layer.waits_there + (idle_seconds(again, host) + layer.waits_back)
    return layer.waits_there + idle_seconds((*again, *layer.back), host)


class LayerWork(Struct, frozen=True, dict=True):
    """What the processor does for a layer, nothing replayed: of each operator's forward, by name,
    and of both passes in order."""

    forward: dict[str, Work]
    there: tuple[Work, ...]
    back: tuple[Work, ...]
    host: Host

    @cached_property
    def asks(self) -> bool:
        """Whether the processor waits for the GPU."""
        return any(one.asks for one in self.there)

    @cached_property
    def waits_there(self) -> float:
        """Seconds that the GPU waits in the forward."""
        return idle_seconds(self.there, self.host)

    @cached_property
    def waits_back(self) -> float:
        """The same of the backward."""
        return idle_seconds(self.back, self.host)


@lru_cache(maxsize=4096)
def layer_work(
    shape: RankShape, machine: Machine, network: Network, kind: LayerKind, host: Host
) -> LayerWork:
    """As layer_passes, with what the processor does for them."""
    forward, backward = {}, []
    passes = layer_passes(shape, machine, network, kind)
    for operator in transformer_layer(shape, kind):
        there, back = (time.compute + time.exposed for time in passes[operator.name])
        forward[operator.name] = work(operator, there, shape, host, backward=False)
        backward.append(work(operator, back, shape, host, backward=True))
    return LayerWork(
        forward=forward,
        there=tuple(launched(forward.values(), host)),
        back=tuple(launched(reversed(backward), host)),
        host=host,
    )


def gather_seconds(shape: RankShape, network: Network) -> float:
    """All-gather of a checkpoint's input that TP ranks hold in parts
    (distribute_saved_activations)."""
    num_bytes = shape.hidden(LAYER_INPUT).num_bytes
    kind = CollectiveKind.ALL_GATHER
    return collective_seconds(kind, num_bytes, network.tensor_ranks, network.tensor)


def moved_bytes(shape: RankShape, kind: LayerKind, segment: Segment) -> int:
    """Bytes of one layer that wait on the host. Copies run on streams of their own next to the next
    layer's forward, and the previous one's backward."""
    if not segment.moves_to_host:
        return 0
    return recompute_plan.copied_bytes(
        transformer_layer(shape, kind), segment.runs, segment.offloaded
    )


def input_bytes(shape: RankShape, segment: Segment) -> int:
    """Bytes of one checkpoint's input that wait on the host."""
    if not segment.input.offloaded:
        return 0
    return -(-shape.hidden(LAYER_INPUT).num_bytes // (shape.tp if segment.shards_input else 1))


def copy_seconds(num_bytes: int, machine: Machine, kernels: PassTimes) -> float:
    """Seconds of copying `num_bytes` to the host and back that the kernels of a layer, which run
    `kernels` either copy, do not hide."""
    copy = num_bytes / machine.host_bytes_per_second
    return max(0.0, copy - kernels.forward) + max(0.0, copy - kernels.backward)


@lru_cache(maxsize=4096)
def chunk_times(
    shape: RankShape, machine: Machine, network: Network, plan: RecomputePlan
) -> PassTimes:
    """Seconds of one microbatch through the layers of one model chunk under `plan`: passes,
    replays, all-gathers of inputs that TP ranks hold in parts, and copies to the host that no
    kernel hides. Source: megatron-core 0.16.1 transformer_block.py, fine_grained_activation_offload
    and TE pytorch/cpu_offload.py for the order of copies. Host link contention is left out."""
    total, replay, beside = PassTimes(), 0.0, plan.layers_to_a_copy
    for segment in recompute_plan.tallied(plan):
        passes = PassTimes()
        for kind, count in segment.kinds():
            layer = layer_times(shape, machine, network, kind)
            next_to = layer if beside == 1 else layer.times(beside)
            away = copy_seconds(moved_bytes(shape, kind, segment), machine, next_to)
            waits = waiting_seconds(shape, machine, network, kind, segment.replay)
            passes += (layer + PassTimes(offload=away, host=waits)).times(count)
            replay += count * replay_seconds(shape, machine, network, kind, segment.replay)
        hidden = passes.times(1 / segment.copies) if segment.input.overlapped else PassTimes()
        inputs = copy_seconds(input_bytes(shape, segment), machine, hidden)
        total += passes + PassTimes(offload=segment.copies * inputs)
        if segment.shards_input:
            replay += segment.copies * gather_seconds(shape, network)
    return total + PassTimes(recompute=replay)
