"""DeepSpeed's TiledMLP: gate, up, activation and down over one part of the tokens after the other.

Source: DeepSpeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py, in its example ceil(sequence /
hidden) parts. It keeps its input; the backward runs each part forward again before it goes back.
"""

from msgspec.structs import replace

from advisor.layers.eager.parts import hidden, linear, nonlinearity
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformers.liger import liger_swiglu


def tiled_mlp(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Operators of an MLP whose inner tensors are of one part of the tokens; GEMMs are of all."""
    model = shape.model
    parts = -(-shape.local_seq // model.hidden_size)
    size = (-(-shape.tokens // parts), model.ffn_hidden_size)
    gate, up, activated, product = (
        Tensor(f"tile.{name}", size, shape.dtype)
        for name in ("gate", "up", "act_fn_out", "product")
    )
    out = hidden(shape, "down_proj_out", shape.dtype)
    bias = model.add_bias_linear
    first = linear(shape, "gate_proj", Module.LINEAR_FC1, source, gate, bias=bias)
    second = linear(shape, "up_proj", Module.LINEAR_FC1, source, up, bias=bias)
    down = linear(shape, "down_proj", Module.LINEAR_FC2, product, out, bias=bias, holds=(source,))
    if shape.use_liger_kernel:
        middle = [liger_swiglu(gate, up, product)]
    else:
        middle = nonlinearity(model.activation, gate, activated)
        middle.append(Operator("multiply", Module.ACTIVATION, (activated, up), (product,)))
    earlier = out.num_bytes * (parts - 1) // parts
    again = _while_a_part_goes_back(shape, gate, down.weights[0].num_elements, parts)
    return (
        _of_a_part(first, earlier),
        replace(_of_a_part(second, earlier), gradient_free_inputs=frozenset({source.name})),
        *(_of_a_part(operator, earlier) for operator in middle),
        replace(
            down,
            saved=(),
            forward_workspace=out.num_bytes,  # outputs of all parts, before they are put together
            backward_workspace=down.backward_workspace
            + again
            + source.num_bytes  # its whole gradient
            + out.num_bytes // parts,
        ),
    )


def _of_a_part(operator: Operator, earlier: int) -> Operator:
    """`operator` next to `earlier` bytes of outputs; of what it reads the input alone is kept."""
    return replace(
        operator,
        saved=operator.saved if operator.name == "gate_proj" else (),
        gradient_in_saved=False,
        forward_workspace=operator.forward_workspace + earlier,
    )


def _while_a_part_goes_back(shape: RankShape, gate: Tensor, weight: int, parts: int) -> int:
    """Bytes next to the product's and the down projection's gradients, which the walk counts: what
    the part computed again, and from the second part on the gradients of all three weights, with
    that of one that is added to them."""
    one, own = gate.num_bytes, weight * (shape.weight_grads_dtype or shape.dtype).itemsize
    if shape.use_liger_kernel:  # gate, up and product; their gradients are written over them
        return 3 * one + (3 * own if parts > 1 else 0)
    if parts == 1:
        return 5 * one
    return max(5 * one + 2 * own, 4 * one + 3 * own)
