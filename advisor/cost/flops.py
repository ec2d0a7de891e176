"""Model FLOPs by Megatron's convention, and hardware FLOPs with replays."""

from functools import lru_cache

from advisor.layers.operators import Operator
from advisor.models.spec import ModelSpec
from advisor.recompute import RecomputePlan

_PASSES = 3  # forward, and twice that in the backward


def model_flops(
    model: ModelSpec, seq_length: int, global_batch_size: int, padded_vocab_size: int
) -> int:
    """FLOPs of one step as Megatron reports them (training.py num_floating_point_operations).

    Linear layers, output layer and the two attention matmuls over the causal half; recompute,
    norms, softmax and embeddings are not counted.
    """
    tokens = global_batch_size * seq_length
    h, attention = model.hidden_size, model.query_projection_size
    expansion = 3 if model.activation.gated else 2
    projections = h * (attention + 2 * model.kv_projection_size) + attention * h
    layer = projections + expansion * h * model.ffn_hidden_size
    linear = 2 * _PASSES * tokens * (model.num_layers * layer + h * padded_vocab_size)
    core = 2 * _PASSES * tokens * seq_length * attention * model.num_layers
    return linear + core


@lru_cache(maxsize=8192)
def replayed_flops(operators: tuple[Operator, ...], plan: RecomputePlan) -> int:
    """Forward FLOPs that the backward of one microbatch of one chunk runs again."""
    total = 0
    for segment in plan.segments:
        modules = frozenset().union(*(run.modules for run in segment.runs))
        total += segment.total_layers * sum(
            operator.forward_flops
            for operator in operators
            if segment.whole or operator.module in modules
        )
    return total
