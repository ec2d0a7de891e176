"""What families of layers have in common where weights are frozen, or have adapters next to them.

A frozen weight has no gradient, so autograd keeps none of what that alone would be made of: a
linear layer its input, a norm the normalized tensor that its weight multiplies (torch 2.13
derivatives.yaml). The input's gradient needs the weight, which is there in any case.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.tuning import ALL_LINEAR, StoredAs, Tuning
from advisor.layers.operators import Operator, Weight


def frozen(operator: Operator, stored_as: StoredAs = StoredAs.AS_LOADED) -> Operator:
    """`operator` with its weights frozen, those of linear layers `stored_as`; backward_workspace
    stays, as families count different things there."""
    if not operator.weights:
        return operator
    kept = tuple(one for one in operator.saved if one.name not in operator.saved_for_weights)
    return replace(
        operator,
        saved=kept,
        saved_for_weights=frozenset(),
        weights=tuple(_frozen(weight, stored_as) for weight in operator.weights),
        weight_gradient_bytes=0,
        narrow_weight_gradient_bytes=0,
    )


def _frozen(weight: Weight, stored_as: StoredAs) -> Weight:
    linear = weight.in_linear and not weight.expert
    return replace(weight, frozen=True, stored_as=stored_as if linear else weight.stored_as)


def is_target(tuning: Tuning, names: Iterable[str], *, of_all: bool) -> bool:
    """Whether a linear layer with these names has an adapter. of_all: whether it is among
    ``all-linear``; the output layer and what is no nn.Linear are not."""
    targets = tuning.target_modules
    return tuning.has_adapter and (
        (of_all and ALL_LINEAR in targets) or bool({*names} & {*targets})
    )


def low_rank_weights(
    name: str, inputs: int, outputs: int, rank: int, dtype: DType | None, copies: int = 1
) -> tuple[Weight, Weight]:
    """A [rank, inputs] and B [outputs, rank] of the linear layer `name`; `copies` of both, one an
    expert."""
    a, b = (rank, inputs), (outputs, rank)
    return (
        Weight(f"{name}.lora_A.weight", a, in_linear=True, copies=copies, dtype=dtype),
        Weight(f"{name}.lora_B.weight", b, in_linear=True, copies=copies, dtype=dtype),
    )
