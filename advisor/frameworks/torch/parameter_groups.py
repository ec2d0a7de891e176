"""What FSDP2 gathers and reduces during each block of a model, and what it holds of the parameters.

It gathers one group of parameters at a time and reduces its gradients when the group has gone back.
Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py (run
on fake tensors and a fake process group in tests/oracles).
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import FULL, StoredAs, Tuning
from advisor.layers.family import family_of
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape, embedding_weights, output_weights
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import TOWER_ENDS, StaticMemory, stage_weights, tower_weights
from advisor.memory.working_set import ShardingOverhead, WorkingSet
from advisor.models.layer_kind import LayerKind

_ADAM_MOMENTS = 2


class Sharding(Struct, frozen=True, kw_only=True):
    """How FSDP2 is applied.

    ranks: over which parameters are cut, and expert_ranks those of routed experts under expert
    parallelism, which are groups of their own inside a layer's. reshards: whether a group is freed
    after its forward and gathered again for its backward. root_holds_ends: embedding, final norm
    and output layer are the root's group, which is never freed between the passes; else two groups
    of their own.
    reduce_dtype: type of the reduce-scatter. accumulates: gradients of earlier microbatches are
    there already, as shards, or whole (`accumulates_whole`: set_requires_gradient_sync off).
    weights_dtype: type of the shards that are trained and of their gradients, which go at once
    where `steps_in_backward`; frozen_dtype: of the others (None: the same). flat: FSDP1, whose
    groups are one flat parameter each, the ends the root's. in_8_bits: whether layers' linear
    weights are cast before they are gathered (torchao 0.18.0 float8/fsdp_utils.py
    fsdp_pre_all_gather); what is not freed is counted in 16. on_host: whether shards, gradients and
    moments are in host memory (CPUOffloadPolicy), and each is copied before it is gathered.
    divides: by a factor that is said (set_gradient_divide_factor), for which one rank, that reduces
    nothing, needs a third tensor. computing: of one rank, the computing stream's bytes alone, which
    has all but what a reduction makes.
    """

    ranks: int
    expert_ranks: int = 0
    reshards: bool = True
    root_holds_ends: bool = False
    reduce_dtype: DType = DType.FP32
    accumulates: bool = False
    accumulates_whole: bool = False
    weights_dtype: DType = DType.FP32
    frozen_dtype: DType | None = None
    steps_in_backward: bool = False
    flat: bool = False
    in_8_bits: bool = False
    on_host: bool = False
    divides: bool = False
    computing: bool = False

    def sent(self, elements: int) -> int:
        """Bytes of an all-gather's output. One rank has none: it casts each parameter by itself
        (wait_for_unshard)."""
        return 0 if self.ranks == 1 else self.gathered(elements)

    def gathered(self, elements: int) -> int:
        """Bytes of a group's parameters in 16 bit, as the all-gather writes them."""
        return elements * DType.BF16.itemsize

    def reduced(self, elements: int) -> int:
        """Bytes of the input of a group's reduce-scatter, in `reduce_dtype`."""
        return elements * self.reduce_dtype.itemsize

    def shard(self, elements: int, experts: int = 0) -> int:
        """Bytes of a group's parameters, or of their gradients, on one rank; `experts` of
        `elements` are routed experts'."""
        return self.elements(elements, experts) * self.weights_dtype.itemsize

    def elements(self, elements: int, experts: int = 0) -> int:
        """Elements of a group that one rank holds."""
        own = experts if self.expert_ranks else 0
        return -(-(elements - own) // self.ranks) + (-(-own // self.expert_ranks) if own else 0)


class Part(Struct, frozen=True):
    """Elements of some parameters, and of these the trained ones."""

    all: int = 0
    trained: int = 0

    @staticmethod
    def of(weights: Iterable[tuple[Weight, int]], tuning: Tuning = FULL) -> "Part":
        """Those of weights, each with the number of its like; bitsandbytes' are in no group
        (Accelerate 1.15 utils/fsdp_utils.py ignores Params4bit of integers), or four of NF4 are an
        element of 16 bits."""
        sizes = {StoredAs.AS_LOADED: 1} | ({StoredAs.NF4: 4} if tuning.packs_weights else {})
        counted = [
            (weight.num_elements * number // sizes[weight.stored_as], weight.frozen)
            for weight, number in weights
            if weight.stored_as in sizes
        ]
        trained = sum(elements for elements, frozen in counted if not frozen)
        return Part(sum(elements for elements, _ in counted), trained)

    def __add__(self, other: "Part") -> "Part":
        return Part(self.all + other.all, self.trained + other.trained)

    def over(self, number: int) -> "Part":
        """The mean of `number` parts."""
        return Part(self.all // number, self.trained // number)


NONE: Final = Part()
"""No parameters."""


def fsdp_static(
    part: Part, sharding: Sharding, experts: Part = NONE, moments: int | None = None
) -> StaticMemory:
    """Shards of the parameters and of Adam's `moments` (None: in their type); gathered 16-bit
    parameters that stay. Gradients are counted where they outlive a microbatch; else they come with
    the backward."""
    shard = sharding.shard(part.trained, experts.trained)
    gradients = shard if sharding.accumulates else 0
    if sharding.accumulates_whole:
        gradients = sharding.reduced(part.trained)
    still, others = (one.all - one.trained for one in (part, experts))
    dtype = sharding.frozen_dtype or sharding.weights_dtype
    frozen = sharding.elements(still, others) * dtype.itemsize
    if sharding.on_host:
        gradients = gradients if sharding.accumulates_whole else 0
        stays = _staying(sharding, part.all)
        return StaticMemory(weights=stays, gradients=gradients, optimizer=0)
    return StaticMemory(
        weights=shard + frozen + _staying(sharding, part.all),
        gradients=gradients,
        optimizer=_ADAM_MOMENTS * shard if moments is None else moments,
        frozen=frozen,
    )


def stream_pools(shape: RankShape, sharding: Sharding, *, pools_reductions: bool = True) -> int:
    """Bytes that the allocator keeps for FSDP2's own streams while the computing one has its peak.

    All-gathers and reduce-scatters allocate on streams of their own (FSDPCommContext), and torch's
    caching allocator gives a block back to the stream that it came from alone: the largest group's
    buffers, and the gradient shards, which the reduce-scatter stream writes. pools_reductions: with
    what is gathered, which a simulation has as well, and a reduction's input, which torch 2.13
    allocates on the computing stream (foreach_reduce), as an allowance: torchtitan's published
    peaks are 0 to 9 % higher even so. Else with the reduction's output alone. One rank's shards are
    those outputs."""
    embedding, head = _ends(shape)
    layers, whole = _Layers.of(shape, sharding), embedding + head
    groups = (
        (layers.largest, whole) if sharding.root_holds_ends else (layers.largest, embedding, head)
    )
    everything = layers.all.trained + whole.trained
    shards = 0 if sharding.accumulates else sharding.shard(everything, layers.experts.trained)
    shards = 0 if sharding.on_host else shards
    gathered = sharding.gathered(max(group.all for group in groups))
    gathered += -(-gathered // sharding.ranks) if sharding.on_host else 0
    reduced = sharding.reduced(max(group.trained for group in groups))
    if sharding.ranks == 1:
        third = sharding.divides or sharding.reduce_dtype is not sharding.weights_dtype
        return shards + reduced * (sharding.accumulates + third)
    return shards + (gathered + reduced if pools_reductions else -(-reduced // sharding.ranks))


def _ends(shape: RankShape) -> tuple[Part, Part]:
    """Of the embedding, and of the final norm with the output layer."""
    tied = shape.model.share_embeddings_and_output_weights
    both = embedding_weights(shape), output_weights(shape, holds_embedding=tied)
    embedding, head = (Part.of((weight, 1) for weight in end) for end in both)
    return embedding, head


class _Layers(Struct, frozen=True):
    """Elements of a model's layers: of the largest, and the experts in it; of all, and theirs.
    sent: 16-bit elements that have the bytes of the largest one's all-gather."""

    number: int
    largest: Part
    sent: int
    experts_of_largest: int
    all: Part
    experts: Part

    @staticmethod
    def of(shape: RankShape, sharding: Sharding) -> "_Layers":
        kinds = shape.model.layer_kinds
        each = {kind: _of_layers(shape, (kind,)) for kind in dict.fromkeys(kinds)}
        largest = max(each, key=lambda kind: each[kind][0].all)
        most, of_largest = each[largest]
        total, experts = _of_layers(shape, kinds)
        narrow = _elements_in_8_bits(shape, largest) if sharding.in_8_bits else 0
        sent = most.all - narrow // DType.BF16.itemsize
        return _Layers(len(kinds), most, sent, of_largest.all, total, experts)


def _of_layers(shape: RankShape, kinds: tuple[LayerKind, ...]) -> tuple[Part, Part]:
    """Of layers, and of the experts among them."""
    weights = list(stage_weights(shape, (ModelChunk(kinds),)))
    experts = ((one, number) for one, number in weights if one.expert)
    return Part.of(weights, shape.tuning), Part.of(experts, shape.tuning)


def _elements_in_8_bits(shape: RankShape, kind: LayerKind) -> int:
    """Of the weights of torchao's linear layers; experts are none."""
    operators = transformer_layer(shape, kind)
    linear = (o for o in operators if o.gemm and o.gemm.quantized and not o.weights[0].expert)
    return sum(weight.num_elements for o in linear for weight in o.weights if weight.in_linear)


@lru_cache(maxsize=1024)
def fsdp_working_set(shape: RankShape, sharding: Sharding) -> WorkingSet:
    """During each block. Where layers differ, the largest stands for each, and leaves the mean.

    Forward: the gathered parameters of a group, and the all-gather's output, which is freed when
    the next group's is there. Backward: its own, the all-gather of the group that goes back next,
    and the reduce-scatter's input of the group that went back before."""
    layers, (embedding, head) = _Layers.of(shape, sharding), _ends(shape)
    tied = shape.model.share_embeddings_and_output_weights
    together = sharding.root_holds_ends or tied
    groups = _one_group_of_ends if together else _groups_of_their_own
    if sharding.flat:
        groups = _flat_parameters
    inside = family_of(shape.model).loss_inside
    found = groups(layers, embedding, head, sharding, loss_inside=inside)
    shared = embedding_weights(shape)[0]
    if tied and not sharding.flat and not shared.frozen:
        found = replace(found, embedding=_tied(found.embedding, shared.num_elements, sharding))
    if sharding.expert_ranks:
        found = _with_groups_of_experts(found, layers, sharding)
    blocks, seen = (Part.of(some, shape.tuning) for some in tower_weights(shape))
    found = _with_tower(found, blocks.over(len(shape.model.tower_kinds) or 1), seen, sharding)
    whole = layers.all + embedding + head + blocks + seen
    root = together or sharding.flat
    found = _with_left(found, layers, *((NONE, NONE) if root else (embedding, head)), sharding)
    if root:
        stays = _staying(sharding, (embedding + head).all)
        found = replace(found, embedding=replace(found.embedding, stays=stays))
    appears = _appearing(sharding, whole.trained, layers.experts.trained)
    return replace(found, step=appears - _staying(sharding, whole.all))


def _with_tower(found: WorkingSet, block: Part, ends: Part, sharding: Sharding) -> WorkingSet:
    """A block of a vision tower is a group; what is before and after them is the root's, which is
    gathered next to them and reduced last."""
    gathers, root = sharding.reshards, sharding.gathered(ends.all)
    own = sharding.gathered(block.all) * (1 + gathers)
    reduced = sharding.reduced(block.trained)
    first, last = (_appearing(sharding, part.trained, 0) for part in (block, ends))
    return replace(
        found,
        tower=ShardingOverhead(
            forward=own + root,
            backward=own * gathers + root + reduced,
            exit=root + reduced,
            left=first,
            stays=_staying(sharding, block.all),
        ),
        vision_ends=ShardingOverhead(forward=root, backward=root, left=last // len(TOWER_ENDS)),
    )


def _with_groups_of_experts(found: WorkingSet, layers: _Layers, sharding: Sharding) -> WorkingSet:
    """Under expert parallelism a layer's experts are gathered and reduced by themselves.

    Their reduce-scatter begins inside the layer's backward, where gathered experts and 16-bit
    gradients make room for it, next to its output, the gradients' shards; it is through when the
    rest of the layer is reduced, so that the layer below finds that alone. What is gathered is cut
    over fewer ranks: the part that a rank gives is a buffer as well."""
    experts = layers.experts_of_largest
    given = -(-experts // sharding.expert_ranks)
    less = sharding.reduced(experts) - given * DType.FP32.itemsize

    def apart(overhead: ShardingOverhead, above: int) -> ShardingOverhead:
        return replace(
            overhead,
            entry=overhead.entry + given * DType.BF16.itemsize,
            backward=overhead.backward - above,
            exit=0,
        )

    return replace(
        found,
        first_layer=apart(found.first_layer, less),
        layer=apart(found.layer, less),
        last_layer=apart(found.last_layer, 0),
    )


def _layer(
    sharding: Sharding, layers: _Layers, *, before: int, below: int, above: int
) -> ShardingOverhead:
    """The largest layer during the all-gather of `below` elements and the reduce-scatter of
    `above`. When it enters its forward, the all-gather's output of the `before` elements of the
    group before it is there as well."""
    gathered, own = sharding.sent(layers.sent), sharding.gathered(layers.sent) * sharding.reshards
    ahead = sharding.sent(below) * sharding.reshards
    return ShardingOverhead(
        entry=sharding.sent(before) + gathered + own,
        forward=gathered + own,
        backward=own + ahead + sharding.reduced(above),
        exit=ahead + _reduction(sharding, layers.largest),
        ahead=ahead,
        sent=gathered,
        again=own,
    )


def _reduction(sharding: Sharding, part: Part, last: int = 0) -> int:
    """Bytes while the gradients of a group are reduced, which its parameters have made room for.
    The reduce-scatter's input is next to them all; its output, and the shards that it becomes, next
    to the gradient of its `last` parameter, which a variable holds (foreach_reduce) unless one rank
    copies the input."""
    elements = part.trained
    reduced, shards = sharding.reduced(elements), sharding.shard(elements)
    cast = 0 if sharding.reduce_dtype is sharding.weights_dtype else -(-reduced // sharding.ranks)
    after = sharding.gathered(last) + cast + shards
    if sharding.ranks == 1:
        after = 0 if sharding.computing else max(cast + shards, 2 * reduced * sharding.divides)
    return max(sharding.gathered(elements), after) + reduced - _staying(sharding, part.all)


def _more(overhead: ShardingOverhead, forward: int, backward: int) -> ShardingOverhead:
    return replace(
        overhead,
        entry=overhead.entry + forward,
        forward=overhead.forward + forward,
        backward=overhead.backward + backward,
        exit=overhead.exit + backward,
    )


def _groups_of_their_own(
    layers: _Layers, embedding: Part, head: Part, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """Embedding is a group, norm and output are one that is not freed between the passes
    (torchtitan's apply_fsdp, Accelerate's fsdp2_prepare_model). The last all-gather's output goes
    when the root's forward returns."""
    gathers, layer, sent = sharding.reshards, layers.largest.trained, layers.sent
    copy, end = sharding.sent(embedding.all), sharding.sent(head.all)
    first, last = (sharding.gathered(part.all) * gathers for part in (embedding, head))
    ahead, own = sharding.sent(sent) * gathers, embedding.all
    return WorkingSet(
        embedding=ShardingOverhead(
            forward=first + copy,
            sent=copy,
            backward=first + sharding.reduced(layer),
            exit=_reduction(sharding, embedding, last=embedding.trained),
        ),
        first_layer=_layer(sharding, layers, before=own, below=own, above=layer),
        layer=_layer(sharding, layers, before=sent, below=sent, above=layer),
        last_layer=_layer(sharding, layers, before=sent, below=sent, above=head.trained),
        head=ShardingOverhead(
            entry=sharding.sent(sent) + end + last,
            forward=end + last,
            sent=end,
            backward=last + ahead,
            ahead=ahead,
            exit=ahead + _reduction(sharding, head, last=head.trained),
        ),
        loss=ShardingOverhead(forward=last + end * loss_inside, backward=last),
    )


def _one_group_of_ends(
    layers: _Layers, embedding: Part, head: Part, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """One group is gathered from the first forward to the last backward; the gradient of the output
    layer waits there for the embedding's. Where it is the root's, the backward of a loss inside the
    root begins with the all-gather of the last layer."""
    gathers, sent, ends = sharding.reshards, layers.sent, embedding + head
    group = sharding.gathered(ends.all) * gathers
    waiting = group + sharding.gathered(head.trained)
    ahead, layer = sharding.sent(sent) * gathers, layers.largest.trained
    prefetched = ahead * (loss_inside and sharding.root_holds_ends)
    first_layer = _layer(sharding, layers, before=ends.all, below=0, above=layer)
    between = _layer(sharding, layers, before=sent, below=sent, above=layer)
    last_layer = _layer(sharding, layers, before=sent, below=sent, above=0)
    return WorkingSet(
        root=group,
        embedding=ShardingOverhead(
            forward=group + sharding.sent(ends.all),
            sent=sharding.sent(ends.all),
            backward=waiting + sharding.reduced(layer),
            exit=_reduction(sharding, ends, last=head.trained),
        ),
        first_layer=_more(first_layer, group, waiting),
        layer=_more(between, group, waiting),
        last_layer=_more(last_layer, group, waiting),
        head=ShardingOverhead(forward=group + sharding.sent(sent), backward=group + ahead),
        loss=ShardingOverhead(
            forward=group + sharding.sent(sent) * loss_inside, backward=group + prefetched
        ),
    )


def _flat_parameters(
    layers: _Layers, embedding: Part, head: Part, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """FSDP1, of parameters that are all trained, gathers into the flat parameter itself, of which
    weights are views: nothing is copied out, nothing gathered ahead in the forward, and the root's
    stays to the end. Gradients of the views are put together when all are there, and reduced at
    once.

    Source: torch 2.13 distributed/fsdp/_flat_param.py, _runtime_utils.py; torch counts the cast of
    a rank's own shard as well, as long as it gathers."""
    layer, ends = layers.largest.all, (embedding + head).all
    gathers = sharding.reshards
    own, root = (sharding.gathered(n) * gathers for n in (layer, ends))
    cast = -(-sharding.gathered(layer) // sharding.ranks)
    waiting = root + sharding.gathered(head.all)
    last = ShardingOverhead(
        entry=root + own + cast,
        forward=root + own,
        backward=waiting + 2 * own,
        exit=waiting + own + _flat_reduction(sharding, layer),
    )
    return WorkingSet(
        embedding=ShardingOverhead(
            forward=root, backward=waiting, exit=_flat_reduction(sharding, ends)
        ),
        first_layer=replace(last, backward=waiting + own, exit=last.exit - own),
        layer=last,
        last_layer=last,
        head=ShardingOverhead(forward=root, backward=root + own),
        loss=ShardingOverhead(forward=root, backward=root + own * loss_inside),
    )


def _flat_reduction(sharding: Sharding, elements: int) -> int:
    """Bytes of the gradients of a flat parameter's views, which are put together next to the
    parameter; then, without it and them, of the reduction's type and the shards."""
    whole = sharding.gathered(elements)
    reduced = sharding.reduced(elements)
    cast = reduced if reduced != whole else 0
    own = whole * sharding.reshards
    shards = -(-reduced // sharding.ranks) + sharding.shard(elements)
    return whole + max(own + whole, cast + shards - (whole - own))


def _tied(overhead: ShardingOverhead, embedding: int, sharding: Sharding) -> ShardingOverhead:
    """The embedding where the output layer's gradient of the same weight waits: the sum of both is
    a third tensor; what is reduced at last is one of them (counted as waiting: memory.chunk)."""
    one = sharding.gathered(embedding)
    return replace(overhead, exit=max(overhead.exit - one, overhead.backward + 2 * one))


def _with_left(
    found: WorkingSet, layers: _Layers, embedding: Part, head: Part, sharding: Sharding
) -> WorkingSet:
    """`found` with what each group leaves, and what of it stays gathered before that."""

    def leaving(overhead: ShardingOverhead, part: Part, experts: Part = NONE) -> ShardingOverhead:
        left = _appearing(sharding, part.trained, experts.trained)
        return replace(overhead, left=left, stays=_staying(sharding, part.all))

    mean = layers.all.over(layers.number), layers.experts.over(layers.number)
    return replace(
        found,
        embedding=leaving(found.embedding, embedding),
        first_layer=leaving(found.first_layer, *mean),
        layer=leaving(found.layer, *mean),
        last_layer=leaving(found.last_layer, *mean),
        head=leaving(found.head, head),
    )


def _staying(sharding: Sharding, elements: int) -> int:
    """Bytes of a group's gathered parameters that stay from its forward until it has gone back."""
    return 0 if sharding.reshards else sharding.gathered(elements)


def _appearing(sharding: Sharding, elements: int, experts: int) -> int:
    """Gradient shards that come with the backward and stay to the step."""
    if sharding.accumulates or sharding.steps_in_backward or sharding.on_host:
        return 0
    if sharding.computing:
        return 0
    return sharding.shard(elements, experts)
