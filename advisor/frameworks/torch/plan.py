"""From a TorchSetting to what one chunk keeps and replays.

Source: torch 2.13 utils/checkpoint.py; torchtitan 0.2.2 distributed/activation_checkpoint.py;
transformers 5.23.0 modeling_layers.py; run in tests/oracles.
"""

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime
from advisor.frameworks.torch.budget import budget_run, is_known, policy_run
from advisor.frameworks.torch.partitioner.layer_graph import AttentionKernel
from advisor.frameworks.torch.partitioner.partition import FASTEST
from advisor.frameworks.torch.setting import (
    ALL_TO_HOST,
    Granularity,
    Modifier,
    OpPolicy,
    TorchSetting,
)
from advisor.layers.operators import LAYER_INPUT, CollectiveKind, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import trains_tower, transformer_layer, with_constant
from advisor.models.layer_kind import FeedForward, LayerKind, Role
from advisor.plan.recompute_plan import (
    EVERYTHING,
    ON_DEVICE,
    ON_HOST,
    Checkpoint,
    InputStorage,
    RecomputePlan,
    ReplayRun,
    Segment,
    merged,
)


class Semantics(Struct, frozen=True, kw_only=True):
    """Where stacks differ: the kind of checkpoint by use_reentrant; whether `selective:n` begins
    with the first block (n-th otherwise); whether matmuls with a bias count as matmuls; how inputs
    of checkpoints go to the host, and how many of the newest do not; the attention kernel; which
    communication torchtitan has in its list of operators; whether each block is compiled."""

    hooked: Checkpoint = Checkpoint.EARLY_STOP
    use_reentrant: bool = False
    starts_with_first: bool = False
    counts_addmm: bool = True
    offload: InputStorage = ON_HOST
    newest_stay: int = 0
    attention: AttentionKernel = AttentionKernel.FLASH
    saved_collectives: frozenset[CollectiveKind] = frozenset()
    compiled: bool = False

    def checkpoint(self, setting: TorchSetting) -> Checkpoint:
        """How the checkpoints of `setting` replay."""
        reentrant = self.use_reentrant if setting.use_reentrant is None else setting.use_reentrant
        return Checkpoint.REENTRANT if reentrant else self.hooked

    def input(self, setting: TorchSetting) -> InputStorage:
        """Where the inputs of the checkpoints of `setting` wait. DeepSpeed clones the part of this
        rank before the forward, and moves parts to the host one by one while all waits."""
        if Modifier.PARTITION_ACTIVATIONS in setting.options:
            away = setting.offloads
            return InputStorage(offloaded=away, more=0 if away else 1)
        return self.offload if setting.offloads else ON_DEVICE


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: TorchSetting, shape: RankShape, layers: tuple[LayerKind, ...], how: Semantics
) -> RecomputePlan:
    """The segments of a chunk of `layers`; blocks of a tower that sees no image are left out. One
    that is frozen runs without gradients, except under checkpoints where it has input embeddings:
    activation_checkpointing_enable has those of every sub-model require a gradient."""
    tower = shape.model.vision
    if not shape.image_tokens:
        layers = tuple(kind for kind in layers if kind.role is not Role.VISION)
    elif tower is not None and not (
        trains_tower(shape)
        or (tower.has_input_embeddings and setting.granularity is not Granularity.NONE)
    ):
        layers = tuple(kind._replace(constant=kind.role is Role.VISION) for kind in layers)
    marked = with_constant(shape, layers)
    still = [kind for kind in marked if kind.constant and kind.role is Role.LAYER]
    trained = layers if not still else tuple(kind for kind in marked if kind not in still)
    segments = [Segment((kind,)) for kind in still]
    segments += _segments(setting, shape, trained, how)
    if how.input(setting).overlapped:
        checkpoints = [index for index, segment in enumerate(segments) if segment.whole]
        for index in checkpoints[-how.newest_stay :]:
            segments[index] = replace(segments[index], input=ON_DEVICE)
    return RecomputePlan(merged(segments))


def _segments(
    setting: TorchSetting, shape: RankShape, layers: tuple[LayerKind, ...], how: Semantics
) -> Iterator[Segment]:
    if setting == ALL_TO_HOST:
        yield from (Segment((kind,), offloaded=EVERYTHING) for kind in layers)
        return
    checkpoint = how.checkpoint(setting)
    size, whole = _checkpoints(setting, len(layers))
    if setting.granularity is Granularity.BLOCKS:
        blocks = zip(setting.blocks, layers, strict=False)
        yield from (block_segment(regime, shape, kind, how) for regime, kind in blocks)
        return
    if setting.granularity in (Granularity.OP, Granularity.BUDGET):
        for kind in layers:
            runs = () if kind.constant else (_policy_run(setting, shape, kind, how),)
            yield Segment((kind,), runs=runs)
        return
    first = 0 if how.starts_with_first else (setting.num_layers or 1) - 1
    index = 0
    while index < len(layers):
        every = setting.num_layers if setting.granularity is Granularity.SELECTIVE else None
        inside = index < whole if every is None else index % every == first
        step = size if inside else 1
        held = layers[index : index + step]
        if inside and not held[0].constant:  # a checkpoint of a constant keeps nothing
            yield Segment(
                held,
                whole=True,
                checkpoint=checkpoint,
                input=how.input(setting),
                shards_input=Modifier.PARTITION_ACTIVATIONS in setting.options,
            )
        else:
            yield Segment(held, runs=_plain_runs(shape, held[0], how))
        index += step


def block_segment(
    regime: BlockRegime, shape: RankShape, kind: LayerKind, how: Semantics
) -> Segment:
    """One block. Its checkpoint stops its replay early except with experts, whose variables would
    live on in the frames that the early stop leaves (run in tests/oracles)."""
    if not regime.checkpointed:
        return Segment((kind,), runs=_plain_runs(shape, kind, how))
    names = frozenset((*regime.kept, *regime.on_host)) - {INPUT}
    checkpoint = Checkpoint.EARLY_STOP if stops_early(kind) else Checkpoint.NON_REENTRANT
    if how.compiled and is_known(shape, kind):
        return Segment((kind,), runs=(policy_run(shape, kind, names, how.attention),))
    if not (names or regime.on_host):
        return Segment((kind,), whole=True, checkpoint=checkpoint)
    modules = frozenset(operator.module for operator in transformer_layer(shape, kind))
    away = (LAYER_INPUT if name == INPUT else name for name in regime.on_host)
    run = ReplayRun(modules, keeps=names, offloads=frozenset(away), checkpoint=checkpoint)
    return Segment((kind,), runs=(run,))


def stops_early(kind: LayerKind) -> bool:
    """Whether the checkpoint of a block in a plan of blocks ends its replay with the last tensor
    that is needed."""
    return kind.feed_forward is not FeedForward.MOE


def _plain_runs(shape: RankShape, kind: LayerKind, how: Semantics) -> tuple[ReplayRun, ...]:
    """Of a block without checkpoint: none, or what torch.compile makes of it by itself. A block
    whose graph is not known keeps what it does eagerly, which is more."""
    if kind.role is Role.VISION or not (how.compiled and is_known(shape, kind)):
        return ()
    return (budget_run(shape, kind, FASTEST, how.attention),)


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
    if setting.budget is not None:
        return budget_run(shape, kind, setting.budget, how.attention)
    assert setting.policy is not None
    operators = transformer_layer(shape, kind)
    kept = kept_by_policy(operators, setting.policy, how)
    if how.compiled and kind.role is Role.LAYER and is_known(shape, kind):
        return policy_run(shape, kind, kept, how.attention)
    return ReplayRun(
        frozenset(operator.module for operator in operators), keeps=kept, checkpoint=how.hooked
    )


def kept_by_policy(
    operators: tuple[Operator, ...], policy: OpPolicy, how: Semantics
) -> frozenset[str]:
    """Names of the operators whose outputs a selective checkpoint keeps.

    A linear layer with a bias is aten.addmm, which torchtitan's list has from 0.3 on.
    A grouped GEMM over experts is in no list; torchtitan's router has to be replayed, and is not
    counted (per_op_sac_force_recompute_mm_shapes_by_fqns).
    """
    linear = [
        o.name
        for o in operators
        if o.gemm
        and not o.weights[0].expert
        and (how.counts_addmm or len(o.weights) == 1)
        and not (policy is OpPolicy.TORCHTITAN and o.module is Module.ROUTER)
    ]
    attention = [operator.name for operator in operators if operator.attention_flops]
    match policy:
        case OpPolicy.SAVE_ATTENTION:
            return frozenset(attention)
        case OpPolicy.SAVE_MATMUL:
            return frozenset(linear)
    sent = [
        operator.name
        for operator in operators
        if any(one.kind in how.saved_collectives for one in operator.forward_collectives)
    ]
    return frozenset([*attention, *linear[::2], *sent])
