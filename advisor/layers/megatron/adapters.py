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
from advisor.job.tuning import EMBEDDINGS, OUTPUT_LAYERS, Adapter
from advisor.layers.adapters import frozen, is_target
from advisor.layers.megatron.mappings import (
    cuts_sequence,
    gather_sequence,
    gather_width,
    scatter_sequence,
)
from advisor.layers.operators import (
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Module,
    Operator,
    Tensor,
    Weight,
    cached_operators,
)
from advisor.layers.shape import RankShape

Operators = tuple[Operator, ...]

_ROWS: Final = (
    *(Module.LINEAR_PROJ, Module.GDN_OUT_PROJ, Module.MAMBA_OUT_PROJ),
    *(Module.LINEAR_FC2, Module.SHARED_FC2, Module.EXPERT_FC2),
)
"""Whose linear layers are row-parallel."""
_DUPLICATED: Final = (Module.QKV_DOWN_PROJ, Module.DISPATCH, Module.COMBINE)
"""Whose linear layers every TP rank has whole under Transformer Engine."""
_NORMED: Final = (
    *(Module.LINEAR_QKV, Module.LINEAR_FC1),
    *(Module.QKV_UP_PROJ, Module.GDN_IN_PROJ, Module.MAMBA_IN_PROJ),
)
"""Whose linear layers Transformer Engine joins with the norm before them."""
_EXPERTS: Final = (Module.EXPERT_FC1, Module.EXPERT_FC2)
CANONICAL: Final = {
    "linear_qkv": ("linear_q", "linear_k", "linear_v"),
    "linear_fc1": ("linear_fc1_gate", "linear_fc1_up"),
}
"""Names of the parts of a linear layer that CanonicalLoRA gives an adapter each."""
PEFT_SWITCHES: Final = (
    *("share_expert_adapters", "normalize_moe_lora"),
    "sequence_parallel_input_regather",
)
"""Fields of Bridge's adapters that are called as ours are."""
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
    name, targets = linear_name(operator), tuning.target_modules
    parts = tuple(part for part in CANONICAL.get(name, ()) if part in targets)
    if operator.weights[0].in_linear and (parts or is_target(tuning, (name,), of_all=True)):
        return _with_adapters(shape, operator, parts)
    return (_frozen(shape, operator),)


def freezes_output(shape: RankShape) -> bool:
    """Whether the output layer's weight has no gradient."""
    tuning = shape.tuning
    tied = shape.model.share_embeddings_and_output_weights and tuning.freezes_embedding
    frozen_here = tuning.freeze_output or tuning.trains_parts or tied
    return frozen_here and not tuning.saves(*OUTPUT_LAYERS)


def linear_name(operator: Operator) -> str:
    """Last name of its linear layer's module."""
    path = operator.weights[0].name.rpartition(".")[0]
    return path.rpartition(".")[2].removeprefix("shared_")


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
    model = shape.model
    if part == "linear_q":
        return model.query_projection_size // shape.tp
    if part in ("linear_k", "linear_v"):
        return model.kv_projection_size // shape.tp
    return whole // 2 if part else whole


def _base(shape: RankShape, place: _Place) -> tuple[Operator, Tensor, bool]:
    """The frozen layer, what its adapter reads, and whether that has the tokens of all TP ranks.
    Transformer Engine's joined norm hands its output on, and then keeps its own part of it as well
    and gathers next to no GEMM; Bridge asks for the gathered one."""
    base, tuning = place.base, shape.tuning
    raw = place.tensor("base", *base.outputs[0].shape)
    source, outputs = base.inputs[0], (raw, *base.outputs[1:])
    if not _normed(shape, base):
        still = replace(_frozen(shape, base), outputs=outputs)
        first = base.saved[0] if base.saved else source
        gathered = first.name not in (source.name, source.storage.name) and not first.copy_of
        return still, first if gathered else source, gathered
    exposed = tuple(replace(one, overlapped=False) for one in base.forward_collectives)
    kept = replace(base, saved_for_weights=frozenset(), forward_collectives=exposed)
    still = replace(_frozen(shape, kept), outputs=outputs)
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
    """Whether A keeps its own tokens and gathers the others again in its backward: of LoRA."""
    tuning, reads = shape.tuning, place.base.module in (Module.LINEAR_QKV, Module.LINEAR_FC1)
    lora = tuning.adapter is Adapter.LORA and is_target(
        tuning, (linear_name(place.base),), of_all=True
    )
    return lora and tuning.sequence_parallel_input_regather and reads and cuts_sequence(shape)


def _branch(
    shape: RankShape, place: _Place, source: Tensor, given: bool, width: int, part: str
) -> list[Operator]:
    """One adapter: dropout, A, B and its scale. given: `source` has all tokens already.

    Bridge cuts A as the layer is cut, and gathers what it reads by tokens, which A keeps, and what
    it gives by channels; B is column-parallel, and next to a layer that is not it is gathered as
    well, of which SP takes each rank's tokens. With cut_by_tokens nothing of full width is
    gathered: one of the two is whole. Left out: communication of what is as wide as the rank."""
    n, module, own = f"{part}." if part else "", place.base.module, shape.tuning.cut_by_tokens
    cut, column = cuts_sequence(shape) and not place.expert, not (place.row or place.whole)
    again, operators = _regathers(shape, place) and not own, list[Operator]()

    def matrix(name: str, read: Tensor, tokens: int, wide: int, split: bool) -> Tensor:
        size = (tokens, *place.lead(read)[1:])
        whole = place.tensor(f"{n}{name}_out", *size, wide)
        some = place.tensor(f"{n}{name}_part", *size, -(-wide // place.tp)) if split else whole
        operators.append(_matrix(shape, place, f"{n}{name}", read, some))
        operators.extend([gather_width(module, some, whole)] if split else [])
        return whole

    if shape.tuning.dropout:
        dropped = place.tensor(f"{n}dropped", *source.shape)
        mask = Tensor(f"{dropped.name}.mask", source.shape, DType.BOOL)
        operators.append(Operator(dropped.name, module, (source,), (dropped,), saved=(mask,)))
        source = dropped
    if cut and column and not (given or own or again):
        whole = place.tensor(f"{n}gathered", shape.local_seq, *source.shape[1:])
        operators.append(gather_sequence(module, source, whole))
        source = whole
    tokens, cuts = source.shape[0], place.tp > 1 and not own
    tokens = shape.local_seq if again else shape.norm_seq if own and cut and place.row else tokens
    first = len(operators)
    low = matrix("linear_in", source, tokens, _rank(shape, place), cuts and not place.row)
    if column and cuts and not place.expert and (again or not cut):
        operators[first] = _communicating(shape, operators[first], source, again)
    tokens = shape.local_seq if own and cut and column else tokens
    out = matrix("linear_out", low, tokens, width, cuts and not column)
    if place.row and cut and not own:
        mine = out.view(f"{out.name}_scattered", (shape.norm_seq, *out.shape[1:]))
        operators.append(scatter_sequence(shape, module, out, mine))
        out = mine
    scaled = place.tensor(f"{n}scaled", *out.shape)
    return [*operators, Operator(scaled.name, module, (out,), (scaled,))]


def _communicating(shape: RankShape, first: Operator, source: Tensor, again: bool) -> Operator:
    """A that sums its input's gradient over TP ranks, or gathers its input in both passes."""
    gathered = shape.tokens * prod(source.shape[2:]) * source.dtype.itemsize
    return replace(
        first,
        forward_collectives=shape.column_parallel_forward(gathered) if again else (),
        backward_collectives=shape.column_parallel_backward(gathered),
        backward_workspace=first.backward_workspace + gathered * again,
    )


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
