"""From a TorchSetting to what one chunk keeps and replays.

Source: torch 2.13 utils/checkpoint.py; torchtitan 0.2.2 distributed/activation_checkpoint.py;
transformers 5.23.0 modeling_layers.py; run in tests/oracles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from advisor.frameworks.torch.setting import Granularity, OpPolicy, TorchSetting
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.recompute import Checkpoint, RecomputePlan, ReplayRun, Segment, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """Where stacks differ: the kind of checkpoint by use_reentrant; whether `selective:n` begins
    with the first block (n-th otherwise); whether matmuls with a bias count as matmuls."""

    hooked: Checkpoint = Checkpoint.EARLY_STOP
    use_reentrant: bool = False
    starts_with_first: bool = False
    counts_addmm: bool = True

    def checkpoint(self, setting: TorchSetting) -> Checkpoint:
        """How the checkpoints of `setting` replay."""
        reentrant = self.use_reentrant if setting.use_reentrant is None else setting.use_reentrant
        return Checkpoint.REENTRANT if reentrant else self.hooked


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: TorchSetting, shape: RankShape, layers: tuple[LayerKind, ...], how: Semantics
) -> RecomputePlan:
    """The segments of a chunk of `layers`."""
    return RecomputePlan(merged(_segments(setting, shape, layers, how)))


def _segments(
    setting: TorchSetting, shape: RankShape, layers: tuple[LayerKind, ...], how: Semantics
) -> Iterator[Segment]:
    checkpoint = how.checkpoint(setting)
    size, whole = _checkpoints(setting, len(layers))
    if setting.granularity in (Granularity.OP, Granularity.BUDGET):
        for kind in layers:
            yield Segment((kind,), runs=(_policy_run(setting, shape, kind, how),))
        return
    first = 0 if how.starts_with_first else (setting.num_layers or 1) - 1
    index = 0
    while index < len(layers):
        every = setting.num_layers if setting.granularity is Granularity.SELECTIVE else None
        inside = index < whole if every is None else index % every == first
        step = size if inside else 1
        held = layers[index : index + step]
        if inside:
            yield Segment(held, whole=True, checkpoint=checkpoint)
        else:
            yield Segment(held)
        index += step


def _checkpoints(setting: TorchSetting, num_layers: int) -> tuple[int, int]:
    """Blocks of one checkpoint, and how many blocks, from the first, lie in checkpoints."""
    match setting.granularity:
        case Granularity.NONE:
            return 1, 0
        case Granularity.UNIFORM:
            return setting.num_layers or 1, num_layers
        case Granularity.SEQUENTIAL:
            # The last segment takes the remainder and is not checkpointed.
            segments = setting.segments or 1
            size = num_layers // segments
            return size, size * (segments - 1)
    return 1, num_layers


def _policy_run(
    setting: TorchSetting, shape: RankShape, kind: LayerKind, how: Semantics
) -> ReplayRun:
    operators = transformer_layer(shape, kind)
    if setting.granularity is Granularity.BUDGET:
        kept = kept_by_budget(operators, setting.budget or 0.0)
        checkpoint = Checkpoint.EARLY_STOP
    else:
        assert setting.policy is not None
        kept = kept_by_policy(operators, setting.policy, counts_addmm=how.counts_addmm)
        checkpoint = how.hooked
    modules = frozenset(operator.module for operator in operators)
    return ReplayRun(modules, keeps=kept, checkpoint=checkpoint)


def kept_by_policy(
    operators: tuple[Operator, ...], policy: OpPolicy, *, counts_addmm: bool = True
) -> frozenset[str]:
    """Names of the operators whose outputs a selective checkpoint keeps.

    counts_addmm: a linear layer with a bias is aten.addmm, which torchtitan's list has from 0.3 on.
    """
    linear = [o.name for o in operators if o.gemm and (counts_addmm or len(o.weights) == 1)]
    attention = [operator.name for operator in operators if operator.attention_flops]
    match policy:
        case OpPolicy.SAVE_ATTENTION:
            return frozenset(attention)
        case OpPolicy.SAVE_MATMUL:
            return frozenset(linear)
    return frozenset([*attention, *linear[::2]])


def kept_by_budget(operators: tuple[Operator, ...], budget: float) -> frozenset[str]:
    """Names of the matmuls and attention kernels whose outputs fit in `budget` of what all of them
    keep, those with most FLOPs a byte first.

    Stands for the partitioner's 0-1 knapsack over expensive operators; its min-cut before that, the
    dynamic programme's rounding and what Inductor fuses are left out. The last matmul's output is
    needed by nobody's backward.
    """
    expensive = [o for o in operators if o.forward_flops][:-1]
    sizes = {o.name: sum(t.num_bytes for t in o.outputs) for o in expensive}
    room = budget * sum(sizes.values())
    kept = set()
    for operator in sorted(expensive, key=lambda o: -o.forward_flops / sizes[o.name]):
        if sizes[operator.name] <= room:
            kept.add(operator.name)
            room -= sizes[operator.name]
    return frozenset(kept)
