"""What FSDP2 gathers and reduces during each block of a model, and what it holds of the parameters.

It gathers one group of parameters at a time and reduces its gradients when the group has gone back.
Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py (run
on fake tensors and a fake process group in tests/oracles).
"""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.family import family_of
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.layers.weights import embedding_weights, output_weights
from advisor.memory.static import StaticMemory, layer_elements, num_elements, stage_expert_elements
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
    weights_dtype: type of the shards and of their gradients, which go at once where
    `steps_in_backward`. flat: FSDP1, whose groups are one flat parameter each, the ends the root's.
    in_8_bits: whether layers' linear weights are cast before they are gathered (torchao 0.18.0
    float8/fsdp_utils.py fsdp_pre_all_gather); what is not freed is counted in 16.
    """

    ranks: int
    expert_ranks: int = 0
    reshards: bool = True
    root_holds_ends: bool = False
    reduce_dtype: DType = DType.FP32
    accumulates: bool = False
    accumulates_whole: bool = False
    weights_dtype: DType = DType.FP32
    steps_in_backward: bool = False
    flat: bool = False
    in_8_bits: bool = False

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


def fsdp_static(
    elements: int, sharding: Sharding, experts: int = 0, moments: int | None = None
) -> StaticMemory:
    """Shards of the parameters and of Adam's `moments` (None: in their type); gathered 16-bit
    parameters that stay.

    Gradients are counted where they outlive a microbatch; else they come with the backward.
    """
    shard = sharding.shard(elements, experts)
    gradients = shard if sharding.accumulates else 0
    if sharding.accumulates_whole:
        gradients = sharding.reduced(elements)
    return StaticMemory(
        weights=shard + _staying(sharding, elements),
        gradients=gradients,
        optimizer=_ADAM_MOMENTS * shard if moments is None else moments,
    )


def stream_pools(shape: RankShape, sharding: Sharding) -> int:
    """Bytes that the allocator keeps for FSDP2's own streams while the computing one has its peak.

    All-gathers and reduce-scatters allocate on streams of their own (FSDPCommContext), and torch's
    caching allocator gives a block back to the stream that it came from alone: the largest group's
    buffers, and the gradient shards, which the reduce-scatter stream writes.
    """
    tied = shape.model.share_embeddings_and_output_weights
    head = num_elements(output_weights(shape, holds_embedding=tied))
    ends = num_elements(embedding_weights(shape)), head
    layers = _Layers.of(shape, sharding)
    largest = max(layers.largest, sum(ends) if sharding.root_holds_ends else max(ends))
    shards = 0 if sharding.accumulates else sharding.shard(layers.all + sum(ends), layers.experts)
    return sharding.gathered(largest) + sharding.reduced(largest) + shards


class _Layers(Struct, frozen=True):
    """Elements of a model's layers: of the largest, and the experts in it; of all, and theirs.
    sent: 16-bit elements that have the bytes of the largest one's all-gather."""

    number: int
    largest: int
    sent: int
    experts_of_largest: int
    all: int
    experts: int

    @staticmethod
    def of(shape: RankShape, sharding: Sharding) -> "_Layers":
        """Those of the whole model."""
        kinds = shape.model.layer_kinds
        each = {kind: layer_elements(shape, kind) for kind in dict.fromkeys(kinds)}
        largest = max(each, key=lambda kind: each[kind])
        of_largest, experts = (
            stage_expert_elements(shape, (ModelChunk(layers),)) for layers in ((largest,), kinds)
        )
        total = sum(each[kind] for kind in kinds)
        narrow = _elements_in_8_bits(shape, largest) if sharding.in_8_bits else 0
        sent = each[largest] - narrow // DType.BF16.itemsize
        return _Layers(len(kinds), each[largest], sent, of_largest, total, experts)


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
    and the reduce-scatter's input of the group that went back before.
    """
    layers = _Layers.of(shape, sharding)
    embedding = num_elements(embedding_weights(shape))
    tied = shape.model.share_embeddings_and_output_weights
    head = num_elements(output_weights(shape, holds_embedding=tied))
    together = sharding.root_holds_ends or tied
    groups = _one_group_of_ends if together else _groups_of_their_own
    if sharding.flat:
        groups = _flat_parameters
    inside = family_of(shape.model).loss_inside
    found = groups(layers, embedding, head, sharding, loss_inside=inside)
    shared = embedding_weights(shape)[0].num_elements
    if tied and not sharding.flat:
        found = replace(found, embedding=_tied(found.embedding, shared, sharding))
    if sharding.expert_ranks:
        found = _with_groups_of_experts(found, layers, sharding)
    elements = layers.all + embedding + head
    root = embedding + head if together or sharding.flat else 0
    found = _with_left(found, layers, *((0, 0) if root else (embedding, head)), sharding)
    if root:
        found = replace(found, embedding=replace(found.embedding, stays=_staying(sharding, root)))
    return replace(
        found, step=_appearing(sharding, elements, layers.experts) - _staying(sharding, elements)
    )


def _with_groups_of_experts(found: WorkingSet, layers: _Layers, sharding: Sharding) -> WorkingSet:
    """Under expert parallelism a layer's experts are gathered and reduced by themselves.

    Their reduce-scatter begins inside the layer's backward, where gathered experts and 16-bit
    gradients make room for it, next to its output, the gradients' shards; it is through when the
    rest of the layer is reduced, so that the layer below finds that alone. What is gathered is cut
    over fewer ranks: the part that a rank gives is a buffer as well.
    """
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
    `above`.

    When it enters its forward, the all-gather's output of the `before` elements of the group
    before it is there as well.
    """
    gathered = sharding.gathered(layers.sent)
    own, ahead = (gathered, sharding.gathered(below)) if sharding.reshards else (0, 0)
    return ShardingOverhead(
        entry=sharding.gathered(before) + gathered + own,
        forward=gathered + own,
        backward=own + ahead + sharding.reduced(above),
        exit=ahead + _reduction(sharding, layers.largest),
        ahead=ahead,
        again=own,
    )


def _reduction(sharding: Sharding, elements: int, last: int = 0) -> int:
    """Bytes while the gradients of a group are reduced, which its parameters have made room for.

    The reduce-scatter's input is next to them all; its output, and the shards that it becomes,
    next to the gradient of its `last` parameter, which a variable holds (foreach_reduce).
    """
    reduced, shards = sharding.reduced(elements), sharding.shard(elements)
    cast = 0 if sharding.reduce_dtype is sharding.weights_dtype else -(-reduced // sharding.ranks)
    most = max(sharding.gathered(elements), sharding.gathered(last) + cast + shards)
    return most + reduced - _staying(sharding, elements)


def _more(overhead: ShardingOverhead, forward: int, backward: int) -> ShardingOverhead:
    return replace(
        overhead,
        entry=overhead.entry + forward,
        forward=overhead.forward + forward,
        backward=overhead.backward + backward,
        exit=overhead.exit + backward,
    )


def _groups_of_their_own(
    layers: _Layers, embedding: int, head: int, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """Embedding is a group, norm and output are one that is not freed between the passes
    (torchtitan's apply_fsdp, Accelerate's fsdp2_prepare_model). The last all-gather's output goes
    when the root's forward returns.
    """
    gathers, layer, sent = sharding.reshards, layers.largest, layers.sent
    first, last = sharding.gathered(embedding) * gathers, sharding.gathered(head) * gathers
    ahead = sharding.gathered(sent) * gathers
    return WorkingSet(
        embedding=ShardingOverhead(
            forward=first + sharding.gathered(embedding),
            backward=first + sharding.reduced(layer),
            exit=_reduction(sharding, embedding, last=embedding),
        ),
        first_layer=_layer(sharding, layers, before=embedding, below=embedding, above=layer),
        layer=_layer(sharding, layers, before=sent, below=sent, above=layer),
        last_layer=_layer(sharding, layers, before=sent, below=sent, above=head),
        head=ShardingOverhead(
            entry=sharding.gathered(sent) + sharding.gathered(head) + last,
            forward=sharding.gathered(head) + last,
            backward=last + ahead,
            exit=ahead + _reduction(sharding, head, last=head),
        ),
        loss=ShardingOverhead(forward=last + sharding.gathered(head) * loss_inside, backward=last),
    )


def _one_group_of_ends(
    layers: _Layers, embedding: int, head: int, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """One group is gathered from the first forward to the last backward; the gradient of the output
    layer waits there for the embedding's. Where it is the root's, the backward of a loss inside the
    root begins with the all-gather of the last layer.
    """
    gathers, sent, ends = sharding.reshards, layers.sent, embedding + head
    group = sharding.gathered(ends) * gathers
    waiting = group + sharding.gathered(head)
    ahead = sharding.gathered(sent) * gathers
    prefetched = ahead * (loss_inside and sharding.root_holds_ends)
    first_layer = _layer(sharding, layers, before=ends, below=0, above=layers.largest)
    between = _layer(sharding, layers, before=sent, below=sent, above=layers.largest)
    last_layer = _layer(sharding, layers, before=sent, below=sent, above=0)
    return WorkingSet(
        embedding=ShardingOverhead(
            forward=group + sharding.gathered(ends),
            backward=waiting + sharding.reduced(layers.largest),
            exit=_reduction(sharding, ends, last=head),
        ),
        first_layer=_more(first_layer, group, waiting),
        layer=_more(between, group, waiting),
        last_layer=_more(last_layer, group, waiting),
        head=ShardingOverhead(forward=group + sharding.gathered(sent), backward=group + ahead),
        loss=ShardingOverhead(
            forward=group + sharding.gathered(sent) * loss_inside, backward=group + prefetched
        ),
    )


def _flat_parameters(
    layers: _Layers, embedding: int, head: int, sharding: Sharding, *, loss_inside: bool
) -> WorkingSet:
    """FSDP1 gathers into the flat parameter itself, of which weights are views: nothing is copied
    out, nothing gathered ahead in the forward, and the root's stays to the end. Gradients of the
    views are put together when all are there, and reduced at once.

    Source: torch 2.13 distributed/fsdp/_flat_param.py, _runtime_utils.py; torch counts the cast of
    a rank's own shard as well, as long as it gathers.
    """
    layer, ends = layers.largest, embedding + head
    gathers = sharding.reshards
    own, root = (sharding.gathered(n) * gathers for n in (layer, ends))
    cast = -(-sharding.gathered(layer) // sharding.ranks)
    waiting = root + sharding.gathered(head)
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
    found: WorkingSet, layers: _Layers, embedding: int, head: int, sharding: Sharding
) -> WorkingSet:
    """`found` with what each group leaves, and what of it stays gathered before that."""

    def leaving(overhead: ShardingOverhead, elements: int, experts: int = 0) -> ShardingOverhead:
        left = _appearing(sharding, elements, experts)
        return replace(overhead, left=left, stays=_staying(sharding, elements))

    mean = layers.all // layers.number, layers.experts // layers.number
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
    if sharding.accumulates or sharding.steps_in_backward:
        return 0
    return sharding.shard(elements, experts)
