"""States of Adam, and what its step takes in addition, in torch, bitsandbytes and torchao.

Source: torch 2.13 optim/adam.py (run in tests/oracles); bitsandbytes 0.50.2 optim/optimizer.py and
torchao 0.18.0 optim/adam.py, whose kernels need a GPU: read.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.job.job import JobConfig, Optimizer, OptimizerImplementation
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.memory.static import stage_weights

_MOMENTS: Final = 2
_SMALLEST_QUANTIZED: Final = 4096
"""Elements of a tensor from which moments are quantized."""
_BLOCKS: Final = {
    Optimizer.BITSANDBYTES_8BIT: 256,
    Optimizer.TORCHAO_8BIT: 256,
    Optimizer.TORCHAO_4BIT: 128,
}
"""Elements that share one fp32 scale."""
_WORDS: Final = {
    Optimizer.BITSANDBYTES_8BIT: "Adam moments in 8 bits, the embedding's in fp32",
    Optimizer.TORCHAO_8BIT: "Adam moments in 8 bits",
    Optimizer.TORCHAO_4BIT: "Adam moments in 4 bits",
}
_SOURCES: Final = {
    Optimizer.BITSANDBYTES_8BIT: "bitsandbytes optim/optimizer.py",
    Optimizer.TORCHAO_8BIT: "torchao optim/adam.py",
    Optimizer.TORCHAO_4BIT: "torchao optim/adam.py",
}


class AdamMemory(Struct, frozen=True, kw_only=True):
    """Bytes of one rank: moments between steps, and what a step takes in addition."""

    states: int
    step: int


def adam_memory(
    shape: RankShape,
    chunks: tuple[ModelChunk, ...],
    config: JobConfig,
    dtype: DType,
    *,
    ranks: int = 1,
    elements: int | None = None,
) -> AdamMemory:
    """Of weights in `dtype`, cut over `ranks`; `elements` are this rank's, where that is another
    share than one of `ranks`.

    Moments have the weights' type. foreach takes the root of the second moments of all tensors at
    once; the loop of one tensor, divided, and what a variable holds of the one before; a fused
    kernel nothing. Quantized moments have
    an fp32 scale a block, and are computed by one kernel a tensor.
    """
    weights = list(_tensors(shape, chunks))
    if elements is None:
        elements = -(
            -sum(weight.num_elements // weight.copies * n for weight, n in weights) // ranks
        )
    whole = elements * dtype.itemsize
    if config.optimizer.is_quantized:
        states = sum(
            n * _quantized(weight, ranks, config.optimizer, dtype) for weight, n in weights
        )
        return AdamMemory(states=states, step=0)
    step = {
        OptimizerImplementation.FUSED: 0,
        OptimizerImplementation.FOREACH: whole,
        OptimizerImplementation.FOR_LOOP: -(-_looped(weights) // ranks) * dtype.itemsize,
    }
    return AdamMemory(states=_MOMENTS * whole, step=step[config.optimizer_implementation])


def _looped(weights: list[tuple[Weight, int]]) -> int:
    """The most elements alive in the loop over tensors: two of one, one of that before it."""
    sizes = [weight.num_elements // weight.copies for weight, _ in weights]
    return max(2 * size + before for before, size in zip([0, *sizes], sizes, strict=False))


def adam_words(config: JobConfig) -> tuple[str, str]:
    """The moments in words, and the source."""
    if config.optimizer.is_quantized:
        return _WORDS[config.optimizer], _SOURCES[config.optimizer]
    return "Adam moments", f"torch optim/adam.py, {config.optimizer_implementation}"


def _tensors(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> Iterator[tuple[Weight, int]]:
    """Weights and how many tensors of each there are."""
    for weight, number in stage_weights(shape, chunks):
        yield weight, number * weight.copies


def _quantized(weight: Weight, ranks: int, optimizer: Optimizer, dtype: DType) -> int:
    """Bytes of both moments of one tensor on one rank: codes and scales, or what is not quantized:
    small tensors, in torchao those of broken blocks too; embeddings in bitsandbytes, as Trainer
    tells it (trainer.py create_optimizer)."""
    elements, block = -(-weight.num_elements // weight.copies // ranks), _BLOCKS[optimizer]
    theirs = optimizer is Optimizer.BITSANDBYTES_8BIT
    if elements < _SMALLEST_QUANTIZED or (
        elements % block if not theirs else _is_embedding(weight)
    ):
        return _MOMENTS * elements * (DType.FP32 if theirs else dtype).itemsize
    codes = -(-elements // 2) if optimizer is Optimizer.TORCHAO_4BIT else elements
    return _MOMENTS * (codes + -(-elements // block) * DType.FP32.itemsize)


def _is_embedding(weight: Weight) -> bool:
    return "embeddings" in weight.name
