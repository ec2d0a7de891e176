"""Communication of torchtitan's tensor and sequence parallel blocks, as operators of their own.

Source: torch 2.13 distributed/tensor/parallel/style.py, distributed/_functional_collectives.py
(all_gather_tensor, reduce_scatter_tensor): a tensor is gathered, or scattered, along its first
dimension, and copied where that is not the sequence's. What a linear layer in 8 bits reads is
gathered in them, as is the gradient of what it makes (torchao 0.18.0
float8/float8_tensor_parallel.py, read and not run).
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import activation
from advisor.layers.operators import Collective, CollectiveKind, Group, Module, Operator, Tensor
from advisor.layers.shape import RankShape


def whole_hidden(shape: RankShape, name: str) -> Tensor:
    """[micro_batch_size, seq_length, hidden_size] on every rank of the tensor-parallel group."""
    return activation(shape, name, shape.model.hidden_size)


def gather_sequence(
    shape: RankShape, module: Module, part: Tensor
) -> tuple[Tensor, tuple[Operator, ...]]:
    """`part`, or at TP > 1 the whole sequence of it; its gradient is reduced and scattered."""
    if shape.tp == 1:
        return part, ()
    whole = whole_hidden(shape, f"{part.name}.gathered")
    return whole, (
        Operator(
            f"{part.name}.all_gather",
            module,
            (part,),
            (whole,),
            forward_workspace=_joined(shape, whole),
            backward_workspace=whole.num_bytes,
            forward_collectives=(_gathered(shape, module, whole),),
            backward_collectives=(_over_tp(CollectiveKind.REDUCE_SCATTER, whole),),
        ),
    )


def scatter_sequence(
    shape: RankShape, module: Module, whole: Tensor, part: Tensor, holds: tuple[Tensor, ...]
) -> tuple[Operator, ...]:
    """The sum over the ranks of `whole`, a `part` of the sequence each.

    holds: arguments and variables of the modules in whose calls it runs."""
    if shape.tp == 1:
        return ()
    return (
        Operator(
            f"{part.name}.reduce_scatter",
            module,
            (whole,),
            (part,),
            forward_workspace=whole.num_bytes,
            backward_workspace=_joined(shape, whole),
            forward_collectives=(_over_tp(CollectiveKind.REDUCE_SCATTER, whole),),
            backward_collectives=(_gathered(shape, module, whole),),
            forward_holds=holds,
        ),
    )


def pipelined(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """`operators` with asynchronous TP: a tensor is gathered in parts next to the GEMMs that read
    it, and scattered in parts next to the one that makes it. The gradient of a tensor that several
    GEMMs read is a sum, and scattered after them.

    Source: torch 2.13 _inductor/fx_passes/micro_pipeline_tp.py (fuse_all_gather_matmul,
    fuse_matmul_reduce_scatter)."""
    return tuple(
        _with_overlapped_gemms(operator, operators)
        if any(one.group is Group.TENSOR for one in operator.forward_collectives)
        else operator
        for operator in operators
    )


def _with_overlapped_gemms(operator: Operator, operators: tuple[Operator, ...]) -> Operator:
    """A gather or scatter with the GEMMs next to it; as it is where it has none."""
    (source,), (output,) = operator.inputs, operator.outputs
    gathers = operator.forward_collectives[0].kind is CollectiveKind.ALL_GATHER
    neighbours = tuple(
        other.gemm
        for other in operators
        if other.gemm and (output in other.inputs if gathers else source in other.outputs)
    )
    if not neighbours:
        return operator
    there, back = operator.forward_collectives, operator.backward_collectives
    if not gathers or len(neighbours) == 1:
        back = tuple(replace(one, overlapped=True) for one in back)
    return replace(
        operator,
        overlapped_gemms=neighbours,
        forward_collectives=tuple(replace(one, overlapped=True) for one in there),
        backward_collectives=back,
    )


def all_to_all(name: str, module: Module, source: Tensor, output: Tensor) -> Operator:
    """Rows to the ranks of their experts, or back."""
    exchange = Collective.both_ways(CollectiveKind.ALL_TO_ALL, Group.EXPERT, source.num_bytes)
    return Operator(name, module, (source,), (output,), **exchange)


def _joined(shape: RankShape, whole: Tensor) -> int:
    """The ranks' parts before they are put side by side; of one sequence they lie so already."""
    return whole.num_bytes if shape.micro_batch_size > 1 else 0


def _gathered(shape: RankShape, module: Module, whole: Tensor) -> Collective:
    """All-gather of what a linear layer reads, or of its output's gradient."""
    gather = _over_tp(CollectiveKind.ALL_GATHER, whole)
    if not shape.quantizes or module in (Module.ROUTER, Module.COMBINE):
        return gather
    return replace(gather, num_bytes=whole.num_elements * DType.FLOAT8.itemsize)


def _over_tp(kind: CollectiveKind, whole: Tensor) -> Collective:
    return Collective(kind, Group.TENSOR, whole.num_bytes)
