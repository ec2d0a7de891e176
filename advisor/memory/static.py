"""Weights, gradients and optimizer states of one rank: what lives from the first step to the last.

Source: megatron-core 0.16.1 distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py.
"""

from dataclasses import dataclass
from functools import lru_cache

from advisor.dtypes import DType
from advisor.layers.ends import embedding_weights, output_weights
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer

_ADAM_MOMENTS = 2  # exp_avg and exp_avg_sq, fp32 each
_MASTER_COPY = 1  # fp32 main parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMemory:
    """Bytes of one rank that do not depend on the microbatch."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Sum of the three."""
        return self.weights + self.gradients + self.optimizer


def num_elements(weights: tuple[Weight, ...]) -> int:
    """Elements of a group of weights on this rank."""
    return sum(weight.num_elements for weight in weights)


@lru_cache(maxsize=4096)
def layer_elements(shape: RankShape) -> int:
    """Parameters of one transformer layer on one rank."""
    return sum(num_elements(operator.weights) for operator in transformer_layer(shape))


@lru_cache(maxsize=8192)
def stage_elements(shape: RankShape, num_layers: int, first: bool, last: bool) -> int:
    """Parameters of one rank of a pipeline stage with `num_layers` layers.

    The first stage holds the embeddings, the last one the final norm and the output layer: a copy
    of the word embeddings where they are tied and the stage is not the first as well.
    """
    count = num_layers * layer_elements(shape)
    if first:
        count += num_elements(embedding_weights(shape))
    if last:
        count += num_elements(output_weights(shape, holds_embedding=first))
    return count


def static_memory(elements: int, optimizer_shards: int, main_grads_dtype: DType) -> StaticMemory:
    """Bytes of `elements` parameters: 16-bit weights, a contiguous gradient buffer in
    `main_grads_dtype`, and 12 bytes of fp32 master copy and Adam moments over the shards."""
    optimizer = elements * (_MASTER_COPY + _ADAM_MOMENTS) * DType.FP32.itemsize
    return StaticMemory(
        weights=elements * DType.BF16.itemsize,
        gradients=elements * main_grads_dtype.itemsize,
        optimizer=-(-optimizer // optimizer_shards),
    )
