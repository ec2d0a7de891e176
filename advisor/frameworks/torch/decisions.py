"""What of a block a plan may decide on: the calls whose outputs torch can be told to keep."""

from advisor.layers.operators import Operator

Call = tuple[str, int]
"""Kind, and number of the call among those of its kind in a block, from 0."""


def decisions(operators: tuple[Operator, ...]) -> dict[str, Call]:
    """Matrix products and kernels of scaled_dot_product_attention by operator, in the order of the
    block. Experts' grouped products are other calls, and so is attention over a ring of ranks or
    with values narrower than keys (flex attention)."""
    found: dict[str, Call] = {}
    count = {"matmul": 0, "attention": 0}
    for operator in operators:
        kind = _kind(operator)
        if kind is not None:
            found[operator.name] = kind, count[kind]
            count[kind] += 1
    return found


def _kind(operator: Operator) -> str | None:
    if operator.gemm is not None:
        return None if any(weight.expert for weight in operator.weights) else "matmul"
    kernel = operator.attention
    if kernel is None or kernel.steps > 1 or kernel.qk_channels != kernel.v_channels:
        return None
    return "attention"
