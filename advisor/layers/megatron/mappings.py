"""Tensors that change how TP ranks hold them.

Source: megatron-core 0.16.1 tensor_parallel/mappings.py.
"""

from advisor.layers.operators import Collective, CollectiveKind, Group, Module, Operator, Tensor
from advisor.layers.shape import RankShape


def cuts_sequence(shape: RankShape) -> bool:
    """Whether each TP rank holds its own tokens outside the tensor-parallel region."""
    return shape.sequence_parallel and shape.tp > 1


def gather_width(module: Module, part: Tensor, whole: Tensor) -> Operator:
    """All-gather of the last dimension: into the first, and a copy puts it together; each rank
    takes its part of the gradient (_GatherFromModelParallelRegion)."""
    return Operator(
        f"gather_{whole.name}",
        module,
        (part,),
        (whole,),
        forward_collectives=(Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, whole.num_bytes),),
        forward_workspace=whole.num_bytes,
    )


def scatter_sequence(
    shape: RankShape, module: Module, whole: Tensor, part: Tensor, *others: Tensor
) -> Operator:
    """Each rank takes its tokens of `whole` as `part`; the gradient is gathered
    (_ScatterToSequenceParallelRegion). `others` are further views of `whole`."""
    gathered = part.num_bytes * shape.tp
    return Operator(
        f"scatter_{part.name}",
        module,
        (whole,),
        (part, *others),
        backward_collectives=(Collective(CollectiveKind.ALL_GATHER, Group.TENSOR, gathered),),
        backward_workspace=gathered if others else 0,
    )


def gather_sequence(module: Module, part: Tensor, whole: Tensor) -> Operator:
    """All-gather of the first dimension; the gradient is reduced and scattered
    (_GatherFromSequenceParallelRegion)."""
    gather = Collective.both_ways(CollectiveKind.ALL_GATHER, Group.TENSOR, whole.num_bytes)
    return Operator(f"gather_{part.name}", module, (part,), (whole,), **gather)


def exchange_sequence_for_heads(
    shape: RankShape, module: Module, source: Tensor
) -> tuple[tuple[Operator, ...], Tensor]:
    """All-to-all over context-parallel ranks: part of the sequence with all channels becomes the
    whole sequence with part of them, or the reverse; nothing where there is one rank.

    One copy puts the pieces in order before, and one after (ssm/mamba_context_parallel.py,
    _all_to_all_cp2hp, _all_to_all_hp2cp and the load balancing of attention undone)."""
    if shape.context_parallel_size == 1:
        return (), source
    output = Tensor(f"{source.name}_exchanged", source.shape, source.dtype)
    copies = 4 * source.num_bytes
    operator = Operator(
        f"exchange_{source.name}",
        module,
        (source,),
        (output,),
        forward_workspace=source.num_bytes,
        backward_workspace=source.num_bytes,
        extra_forward_bytes=copies,
        extra_backward_bytes=copies,
        **Collective.both_ways(CollectiveKind.ALL_TO_ALL, Group.CONTEXT, source.num_bytes),
    )
    return (operator,), output
