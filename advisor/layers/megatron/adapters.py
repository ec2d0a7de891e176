"""Frozen layers of Megatron, and the adapters next to them.

Sources: Megatron Bridge 0.6.2 peft/lora.py, lora_layers.py, canonical_lora.py, dora_layers.py and
utils.py (ParallelLinearAdapter), whose two matrices are Megatron's own linear layers, run in
tests/oracles; mcore-bridge 1.7.0 tuners/lora.py (ms-swift), whose matrices are Transformer
Engine's; megatron-core 0.16.1 tensor_parallel/layers.py (LinearWithFrozenWeight); Transformer
Engine 2.20.2 pytorch/module/linear.py, layernorm_linear.py and grouped_linear.py.
"""

from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.tuning import Adapter
from advisor.layers.adapters import frozen, is_target
from advisor.layers.megatron.mappings import (
    cuts_sequence,
    gather_sequence,
    gather_width,
    scatter_sequence,
)
from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Group,
    Module,
    Operator,
    Tensor,
    Weight,
    cached_operators,
)
from advisor.layers.shape import RankShape
from advisor.layers.weights import EMBEDDINGS, OUTPUT_LAYERS

Operators = tuple[Operator, ...]

_ROWS: Final = frozenset(
    {
        Module.LINEAR_PROJ,
        Module.LINEAR_FC2,
        Module.SHARED_FC2,
        Module.EXPERT_FC2,
        Module.GDN_OUT_PROJ,
        Module.MAMBA_OUT_PROJ,
    }
)
"""Whose linear layers are row-parallel."""
_DUPLICATED: Final = frozenset({Module.QKV_DOWN_PROJ, Module.DISPATCH, Module.COMBINE})
"""Whose linear layers every TP rank has whole under Transformer Engine."""
_NORMED: Final = frozenset(
    {
        Module.LINEAR_QKV,
        Module.LINEAR_FC1,
        Module.QKV_UP_PROJ,
        Module.GDN_IN_PROJ,
        Module.MAMBA_IN_PROJ,
    }
)
"""Whose linear layers Transformer Engine joins with the norm before them."""
_EXPERTS: Final = frozenset({Module.EXPERT_FC1, Module.EXPERT_FC2})
CANONICAL: Final = {
    "linear_qkv": ("linear_q", "linear_k", "linear_v"),
    "linear_fc1": ("linear_fc1_gate", "linear_fc1_up"),
}
"""Names of the parts of a linear layer that CanonicalLoRA gives an adapter each."""
LINEAR_NAMES: Final = (
    *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    *(part for parts in CANONICAL.values() for part in parts),
    *("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"),
    *("linear_kv_down_proj", "linear_kv_up_proj", "in_proj", "out_proj", "eh_proj"),
    *("fc1_latent_proj", "fc2_latent_proj"),
)
"""Last names of Megatron's linear layers; the first four are Bridge's default."""


@cached_operators
def tuned_operators(shape: RankShape, operators: Operators) -> Operators:
    """`operators` with what `shape.tuning` freezes and adds."""
    return tuple(one for operator in operators for one in _tuned(shape, operator))


def _tuned(shape: RankShape, operator: Operator) -> Operators:
    tuning = shape.tuning
    if operator.name == "embedding":
        learns = not tuning.freezes_embedding or tuning.saves(*EMBEDDINGS)
        return (operator if learns else _without_gradient(operator),)
    if operator.module is Module.OUTPUT_LAYER:
        return (_frozen(shape, operator) if freezes_output(shape) else operator,)
    if not (tuning.has_adapter and operator.weights):
        return (operator,)
    name = linear_name(operator)
    parts = tuple(
        part for part in CANONICAL.get(name, ()) if is_target(tuning, (part,), of_all=False)
    )
    if not parts and not is_target(tuning, (name,), of_all=operator.weights[0].in_linear):
        return (_frozen(shape, operator),)
    return _with_adapters(shape, operator, parts)


def freezes_output(shape: RankShape) -> bool:
    """Whether the output layer's weight has no gradient."""
    tuning = shape.tuning
    tied = shape.model.share_embeddings_and_output_weights and tuning.freezes_embedding
    frozen_here = tuning.freeze_output or tuning.trains_parts or tied
    return frozen_here and not tuning.saves(*OUTPUT_LAYERS)


def linear_name(operator: Operator) -> str:
    """Last name of its linear layer's module."""
    return operator.weights[0].name.split(".")[-2].removeprefix("shared_")


def _without_gradient(lookup: Operator) -> Operator:
    """The embedding of a model whose first parameters are frozen: it has no backward."""
    return replace(
        frozen(lookup),
        saved=(),
        no_grad=True,
        backward_collectives=(),
        gathers_gradient=False,
        backward_workspace=0,
        extra_backward_bytes=0,
    )


def _frozen(shape: RankShape, operator: Operator) -> Operator:
    """`operator` without its weight's gradient: a linear layer keeps no input, gathers none again,
    and nothing hides what it communicates. Megatron's own gathers into a tensor, not a buffer."""
    linear = next((weight for weight in operator.weights if weight.in_linear), None)
    still = frozen(operator)
    if linear is None:
        return still
    forward, backward = operator.forward_workspace, operator.backward_workspace
    collectives = operator.backward_collectives
    if operator.module not in _ROWS:
        collectives = tuple(
            replace(one, overlapped=False)
            for one in collectives
            if one.kind is not CollectiveKind.ALL_GATHER
        )
        if operator.forward_collectives:
            gathered = operator.forward_collectives[0].num_bytes
            own = shape.is_local or operator.module is Module.OUTPUT_LAYER
            forward, backward = (gathered, backward) if own else (forward, backward - gathered)
    return replace(
        still,
        forward_workspace=forward,
        backward_workspace=backward - shape.weight_gradient_bytes(linear.num_elements),
        extra_backward_bytes=operator.extra_backward_bytes
        - shape.main_grad_traffic(linear.num_elements),
        backward_collectives=collectives,
    )


class _Place(Struct, frozen=True):
    """A linear layer that has an adapter: whether its weight is cut in rows or whole on every TP
    rank, ranks that cut it, and the experts that it is of."""

    base: Operator
    row: bool
    whole: bool
    expert: bool
    tp: int

    def lead(self, tensor: Tensor) -> tuple[int, ...]:
        """Dimensions of `tensor` before its channels."""
        return tensor.shape[:1] if self.expert else tensor.shape[:2]

    def tensor(self, name: str, *dimensions: int) -> Tensor:
        """Of the adapter, in the type of the layer's output."""
        return Tensor(f"{self.base.name}.{name}", dimensions, self.base.outputs[0].dtype)


def _place(shape: RankShape, base: Operator) -> _Place:
    expert = base.module in _EXPERTS
    whole = base.module in _DUPLICATED and not shape.is_local
    tp = shape.expert_tensor_parallel_size if expert else shape.tp
    return _Place(base, base.module in _ROWS, whole, expert, tp)


def _with_adapters(shape: RankShape, base: Operator, parts: tuple[str, ...]) -> Operators:
    """The frozen layer, its adapter or those of its `parts`, and their sum."""
    place, output = _place(shape, base), base.outputs[0]
    still, read, given = _base(shape, place)
    if base.module in _EXPERTS and not base.name.endswith(tuple("0123456789")):
        parts = ()  # of grouped experts, linear_fc1 has one
    operators: list[Operator] = []
    if read.shape[-1] != read.storage.shape[-1] and not parts:  # part of a tensor's channels
        copy = place.tensor("contiguous", *read.shape)
        operators.append(Operator(copy.name, base.module, (read,), (copy,)))
        read = copy
    outputs = []
    for part in parts or ("",):
        width = _part_width(shape, output.shape[-1], part)
        branch = _branch(shape, place, read, given, width, part)
        operators += branch
        outputs.append(branch[-1].outputs[0])
    if len(outputs) > 1:
        joined = place.tensor("joined", *output.shape)
        operators.append(Operator(f"{base.name}.join", base.module, tuple(outputs), (joined,)))
        outputs.append(joined)
    return still, *operators, *_added(shape, place, still.outputs[0], outputs)


def _part_width(shape: RankShape, whole: int, part: str) -> int:
    """Width of the adapter's output on one TP rank."""
    if part in CANONICAL["linear_fc1"]:
        return whole // 2
    model = shape.model
    sizes = {"linear_q": model.query_projection_size}
    sizes |= dict.fromkeys(("linear_k", "linear_v"), model.kv_projection_size)
    return sizes[part] // shape.tp if part else whole


def _base(shape: RankShape, place: _Place) -> tuple[Operator, Tensor, bool]:
    """The frozen layer, what its adapter reads, and whether that has the tokens of all TP ranks.

    Transformer Engine's joined norm hands its output on, and then keeps its own part of it as well;
    Bridge asks for the gathered one.
    """
    base, tuning = place.base, shape.tuning
    raw = place.tensor("base", *base.outputs[0].shape)
    source, outputs = base.inputs[0], (raw, *base.outputs[1:])
    if not _normed(shape, base):
        still = replace(_frozen(shape, base), outputs=outputs)
        kept = base.saved[0] if base.saved else source
        overlapped = kept.name not in (source.name, source.storage.name) and not kept.copy_of
        return still, kept if overlapped else source, overlapped
    still = replace(_frozen(shape, replace(base, saved_for_weights=frozenset())), outputs=outputs)
    gathers = tuning.cut_by_tokens or shape.tp_comm_overlap or _regathers(shape, place)
    if gathers or not cuts_sequence(shape):
        return still, source, False
    whole = shape.activation(f"{base.name}.gathered_input", *source.shape[2:])
    return replace(still, outputs=(*outputs, whole), forward_workspace=0), whole, True


def _normed(shape: RankShape, base: Operator) -> bool:
    """Whether the layer's norm is inside of it."""
    if shape.is_local or base.module not in _NORMED:
        return False
    plain = linear_name(base) == "linear_q_proj" or shape.model.has_sparse_attention
    latent = base.module is Module.QKV_UP_PROJ
    return not latent or (shape.model.qk_layernorm and not plain)


def _regathers(shape: RankShape, place: _Place) -> bool:
    """Whether A keeps its own tokens and gathers the others again in its backward."""
    reads = place.base.module in (Module.LINEAR_QKV, Module.LINEAR_FC1)
    return shape.tuning.sequence_parallel_input_regather and reads and cuts_sequence(shape)


def _branch(
    shape: RankShape, place: _Place, source: Tensor, given: bool, width: int, part: str
) -> list[Operator]:
    """One adapter: dropout, A, B and its scale. given: `source` has all tokens already."""
    n, module = f"{part}." if part else "", place.base.module
    operators: list[Operator] = []
    if shape.tuning.dropout:
        dropped = place.tensor(f"{n}dropped", *source.shape)
        mask = Tensor(f"{dropped.name}.mask", source.shape, DType.BOOL)
        operators.append(Operator(dropped.name, module, (source,), (dropped,), saved=(mask,)))
        source = dropped
    if shape.tuning.cut_by_tokens:
        operators += _own_tokens(shape, place, source, width, n)
    else:
        operators += (_row if place.row else _column)(shape, place, source, given, width, n)
    (out,) = operators[-1].outputs
    scaled = place.tensor(f"{n}scaled", *out.shape)
    return [*operators, Operator(scaled.name, module, (out,), (scaled,))]


def _column(
    shape: RankShape, place: _Place, source: Tensor, given: bool, width: int, n: str
) -> Operators:
    """Next to a column-parallel layer: A's input is gathered by tokens, which it keeps, its output
    by channels. Next to a layer that every rank has whole, B's output is gathered as well."""
    operators: list[Operator] = []
    module, tp, rank = place.base.module, place.tp, _rank(shape, place)
    again = _regathers(shape, place)
    if cuts_sequence(shape) and not (given or place.whole or place.expert or again):
        whole = place.tensor(f"{n}gathered", shape.local_seq, *source.shape[1:])
        operators.append(gather_sequence(module, source, whole))
        source = whole
    lead = (shape.local_seq, *place.lead(source)[1:]) if again else place.lead(source)
    low = place.tensor(f"{n}low_rank", *lead, rank)
    part = place.tensor(f"{n}low_rank_part", *lead, -(-rank // tp)) if tp > 1 else low
    first = _matrix(shape, place, f"{n}linear_in", source, part)
    if again:
        gathered = shape.tokens * prod(source.shape[2:]) * source.dtype.itemsize
        first = replace(
            first,
            forward_collectives=shape.column_parallel_forward(gathered),
            backward_collectives=shape.column_parallel_backward(gathered),
            backward_workspace=first.backward_workspace + gathered,
        )
    elif not shape.sequence_parallel:
        first = replace(first, backward_collectives=_summed(place, source, overlapped=True))
    operators += [first, *([gather_width(module, part, low)] if tp > 1 else [])]
    return *operators, *_second(shape, place, low, width, n, gathered=place.whole)


def _row(
    shape: RankShape, place: _Place, source: Tensor, given: bool, width: int, n: str
) -> Operators:
    """Next to a row-parallel layer: A's output of all tokens is summed over TP ranks, B's gathered
    by channels; under SP each rank takes its tokens of that."""
    del given
    low = place.tensor(f"{n}low_rank", *place.lead(source), _rank(shape, place))
    first = _matrix(shape, place, f"{n}linear_in", source, low)
    first = replace(first, forward_collectives=_summed(place, low))
    operators = (first, *_second(shape, place, low, width, n, gathered=True))
    if not cuts_sequence(shape) or place.expert:
        return operators
    (whole,) = operators[-1].outputs
    mine = whole.view(f"{whole.name}_scattered", (shape.norm_seq, *whole.shape[1:]))
    return *operators, scatter_sequence(shape, place.base.module, whole, mine)


def _second(
    shape: RankShape, place: _Place, low: Tensor, width: int, n: str, *, gathered: bool
) -> Operators:
    """B, column-parallel, and the gathering of its output by channels."""
    lead, name = low.shape[:-1], f"{n}linear_out"
    gathered = gathered and place.tp > 1
    out = place.tensor(f"{n}delta", *lead, width)
    part = place.tensor(f"{n}delta_part", *lead, width // place.tp) if gathered else out
    second = _matrix(shape, place, name, low, part)
    second = replace(second, backward_collectives=_summed(place, low, overlapped=True))
    return second, *((gather_width(place.base.module, part, out),) if gathered else ())


def _own_tokens(shape: RankShape, place: _Place, source: Tensor, width: int, n: str) -> Operators:
    """mcore-bridge's adapter: one of the two is cut as the layer is, the other is whole, and under
    SP what is between them has each rank's own tokens."""
    lead = place.lead(source)
    cut = cuts_sequence(shape) and not place.expert
    mine = (shape.norm_seq, *lead[1:]) if cut else lead
    low = place.tensor(f"{n}low_rank", *mine, _rank(shape, place))
    column = not (place.row or place.whole)
    out = place.tensor(
        f"{n}delta", *((shape.local_seq, *mine[1:]) if cut and column else mine), width
    )
    between = low.num_bytes * place.tp if cut else 0
    first = _matrix(shape, place, f"{n}linear_in", source, low)
    second = _matrix(shape, place, f"{n}linear_out", low, out)
    if place.row:
        kind = CollectiveKind.REDUCE_SCATTER if cut else CollectiveKind.ALL_REDUCE
        first = replace(
            first,
            forward_workspace=between,
            backward_workspace=first.backward_workspace + between,
            **_both_ways(place, kind, low.num_bytes * (place.tp if cut else 1)),
        )
    elif column and cut:
        second = replace(
            second,
            forward_workspace=between,
            backward_workspace=second.backward_workspace + 2 * between,
            **_both_ways(place, CollectiveKind.ALL_GATHER, between),
        )
    return first, second


def _both_ways(
    place: _Place, kind: CollectiveKind, num_bytes: int
) -> dict[str, tuple[Collective, ...]]:
    return Collective.both_ways(kind, Group.TENSOR, num_bytes) if place.tp > 1 else {}


def _summed(place: _Place, tensor: Tensor, *, overlapped: bool = False) -> tuple[Collective, ...]:
    """The all-reduce of `tensor`, or its gradient, over TP ranks; experts have none."""
    if place.tp == 1 or place.expert:
        return ()
    return (Collective(CollectiveKind.ALL_REDUCE, Group.TENSOR, tensor.num_bytes, overlapped),)


def _rank(shape: RankShape, place: _Place) -> int:
    """Of the adapter: an expert's may be cut by the experts of a token, and is rounded up to the
    ranks that cut it."""
    rank = shape.tuning.rank
    if not (place.expert and shape.tuning.normalize_moe_lora):
        return rank
    rank //= shape.model.moe_router_topk
    return rank if place.row else -(-rank // place.tp) * place.tp


def _matrix(shape: RankShape, place: _Place, name: str, source: Tensor, output: Tensor) -> Operator:
    """A or B, in 16 bits: keeps its input. Grouped experts share both, or have their own."""
    tuning, base = shape.tuning, place.base.weights[0]
    separate = place.expert and (tuning.cut_by_tokens or not tuning.share_expert_adapters)
    copies = base.copies if separate else 1
    width, depth = output.shape[-1], prod(source.shape[len(place.lead(source)) :])
    weight = Weight(
        f"{base.name.removesuffix('.weight')}.adapter.{name}.weight",
        (width, depth),
        place.tp > 1,
        in_linear=True,
        expert=base.expert,
        copies=copies,
    )
    return Operator(
        f"{place.base.name}.{name}",
        place.base.module,
        (source,),
        (output,),
        unit=ComputeUnit.GEMM,
        saved=(source,),
        saved_for_weights=frozenset({source.name}),
        weights=(weight,),
        gemm=shape.with_main_grad(
            Gemm(prod(output.shape[:-1]), width, depth, False, copies, copies)
        ),
        backward_workspace=shape.weight_gradient_bytes(weight.num_elements),
        extra_backward_bytes=shape.main_grad_traffic(weight.num_elements),
    )


def _added(shape: RankShape, place: _Place, raw: Tensor, deltas: list[Tensor]) -> Operators:
    """The sum of layer and adapter, the last of `deltas`, which variables hold until the end; DoRA
    scales each channel of it by a trained magnitude over the norm of both weights' rows, and adds a
    zero."""
    base, output, delta = place.base, place.base.outputs[0], deltas[-1]
    passes, held = frozenset({raw.name, delta.name}), (raw, *deltas)
    add = Operator(
        f"{base.name}.add",
        base.module,
        (raw, delta),
        (output,),
        gradient_passed_to=passes,
        forward_holds=held,
    )
    if shape.tuning.adapter is not Adapter.DORA:
        return (add,)
    total, scaled = (place.tensor(name, *output.shape) for name in ("total", "magnified"))
    rows = place.tensor("row_norms", output.shape[-1]), place.tensor("row_scales", output.shape[-1])
    magnitude = Weight(f"{base.weights[0].name}_magnitude", output.shape[-1:], not place.row)
    both = base.weights[0].num_elements * output.dtype.itemsize
    magnify = Operator(
        f"{base.name}.magnify",
        base.module,
        (total,),
        (scaled,),
        saved=(total, *rows),
        weights=(magnitude,),
        forward_workspace=2 * both,
        backward_workspace=total.num_bytes,
    )
    plus = Operator(
        f"{base.name}.plus",
        base.module,
        (scaled,),
        (output,),
        gradient_passed_to=frozenset({scaled.name}),
        forward_holds=held,
    )
    return replace(add, outputs=(total,)), magnify, plus
