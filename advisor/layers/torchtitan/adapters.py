"""LoRA in compiled blocks of plain torch layers: base and adapter are one sum, whose parts the
compiler's kernels do not keep: the adapter's, and the gradient that is scaled for it, come and go
(prime-rl 559b447 src/prime_rl/trainer/models/layers/lora)."""

from msgspec.structs import replace

from advisor.job.tuning import EMBEDDINGS, OUTPUT_LAYERS, StoredAs
from advisor.layers.adapters import frozen, is_target, low_rank_weights
from advisor.layers.eager import parts
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape

_NAMES = {
    "wq": "q_proj",
    "wk": "k_proj",
    "wv": "v_proj",
    "wo": "o_proj",
    "w1": "gate_proj",
    "w3": "up_proj",
    "w2": "down_proj",
}
"""transformers' names of linear layers, which its target_modules take."""


def tuned(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a layer or an end with what `shape.tuning` freezes and adds."""
    return tuple(_tuned(shape, one) for one in operators)


def _tuned(shape: RankShape, operator: Operator) -> Operator:
    tuning, ends = shape.tuning, {Module.EMBEDDING: EMBEDDINGS, Module.OUTPUT_LAYER: OUTPUT_LAYERS}
    if not operator.weights or tuning.saves(*ends.get(operator.module, ())):
        return operator
    gone = parts.passing_gradients(shape, operator)
    base = frozen(operator, StoredAs.AS_LOADED)
    base = replace(base, backward_workspace=base.backward_workspace - gone)
    name = _NAMES.get(operator.name, operator.name)
    linear = operator.gemm is not None and operator.module not in ends
    if not (linear and is_target(tuning, (name,), of_all=True)):
        return base
    (output,), (width, depth) = base.outputs, base.weights[0].shape
    both = low_rank_weights(operator.name, depth, width, tuning.rank, output.dtype)
    weights, idle = (*base.weights, *both), tuning.num_adapters - 1
    if idle:  # those of other runs
        weights += tuple(replace(one, frozen=True, copies=idle) for one in both)
    inner = Tensor(f"{operator.name}.lora_A_out", (*output.shape[:-1], tuning.rank), output.dtype)
    saved = dict.fromkeys((*base.saved, *operator.saved, inner))
    return replace(
        base,
        weights=weights,
        saved=tuple(saved),
        forward_workspace=base.forward_workspace + output.num_bytes,
        backward_workspace=base.backward_workspace + output.num_bytes + base.inputs[0].num_bytes,
    )
