"""Weights, gradients and optimizer states of one rank, and libraries' buffers that torch counts as
allocated: what lives from the first step to the last.

Source: megatron-core 0.16.1 distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.hardware.gpu import Gpu, Vendor
from advisor.job.job import JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import StoredAs, Tuning
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape, embedding_weights, output_weights
from advisor.layers.transformer import (
    transformer_layer,
    vision_ends,
    vision_operators,
    with_constant,
)
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.options import CpCommType

_CUBLAS_WORKSPACE_BYTES = 8_519_680  # :4096:2:16:8 (pytorch CublasHandlePool.cpp)
_CUBLAS_WORKSPACE_HOPPER_BYTES = 33_554_432  # 4096 KiB x 8, the default of 9.0 alone
_HIPBLAS_WORKSPACE_BYTES = 134_217_728  # of gfx942 and gfx950
_CUBLAS_HANDLES = 2  # one of the forward's thread, one of autograd's


class NamedBytes(Struct, frozen=True):
    """A term of the memory that is no activation: name, bytes, source."""

    name: str
    num_bytes: int
    source: str


def cublas_workspaces(gpu: Gpu, *, deterministic: bool = False) -> NamedBytes:
    """Workspaces of torch's matmuls, bytes: one of the forward's thread, one of autograd's; the
    default of CUBLAS_WORKSPACE_CONFIG (pytorch CublasHandlePool.cpp), or :4096:8 where runs repeat
    to the bit; on AMD hipBLAS's default."""
    amd = gpu.vendor is Vendor.AMD
    large = deterministic or gpu.cuda_capability == 9.0
    each = _CUBLAS_WORKSPACE_HOPPER_BYTES if large else _CUBLAS_WORKSPACE_BYTES
    each = _HIPBLAS_WORKSPACE_BYTES if amd else each
    name = "hipBLAS workspaces" if amd else "cuBLAS workspaces"
    return NamedBytes(name, each * _CUBLAS_HANDLES, "pytorch CublasHandlePool.cpp")


PLAIN_OPTIMIZER_BYTES = 3 * DType.FP32.itemsize
"""Main parameter, exp_avg and exp_avg_sq of one element, fp32 each."""

GRADIENT_COPIES = "fp32 copies of the gradients"
STATE_COPIES = "fp32 copies of Adam's states"
"""What an optimizer's step takes next to its states, in words."""


class StaticMemory(Struct, frozen=True, kw_only=True):
    """Bytes of one rank that do not depend on the microbatch. frozen: those of `weights` that are
    not trained."""

    weights: int
    gradients: int
    optimizer: int
    frozen: int = 0

    @property
    def total(self) -> int:
        """Sum of the three."""
        return self.weights + self.gradients + self.optimizer

    def __add__(self, other: "StaticMemory") -> "StaticMemory":
        return StaticMemory(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
            frozen=self.frozen + other.frozen,
        )


def num_elements(weights: tuple[Weight, ...]) -> int:
    """Elements of a group of weights on this rank: the products of their local shapes, cut by TP or
    EP already."""
    return sum(weight.num_elements for weight in weights)


@lru_cache(maxsize=4096)
def layer_elements(shape: RankShape, kind: LayerKind = DENSE) -> int:
    """Parameters of one transformer layer on one rank, routed experts included: those that TP, ETP
    and EP leave it. Data-parallel ranks hold the same ones."""
    return sum(number for number, _ in _elements(with_one_token(shape), kind))


@lru_cache(maxsize=4096)
def _elements(shape: RankShape, kind: LayerKind) -> tuple[tuple[int, bool], ...]:
    """Elements of each weight, and whether it is a routed expert's."""
    return tuple(
        (weight.num_elements, weight.expert)
        for operator in transformer_layer(shape, kind)
        for weight in operator.weights
    )


def with_one_token(shape: RankShape) -> RankShape:
    """A shape with the same weights: shapes that differ in activations alone share what is known of
    it."""
    return replace(
        shape,
        seq_length=shape.tensor_model_parallel_size,
        micro_batch_size=1,
        context_parallel_size=1,
        cp_comm_type=CpCommType.P2P,
        cp_all_to_all_size=1,
        mean_packed_length=None,
        image_tokens=0,
        images=1,
    )


@lru_cache(maxsize=8192)
def stage_expert_elements(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
    """Parameters of the routed experts on one rank of the stage that holds `chunks`: EP and ETP
    have cut them. stage_elements counts them as well; shared experts and the router are no part of
    them."""
    kinds = Counter(kind for chunk in chunks for kind in chunk.layers)
    return sum(number * _expert_elements(shape, kind) for kind, number in kinds.items())


@lru_cache(maxsize=4096)
def _expert_elements(shape: RankShape, kind: LayerKind) -> int:
    """Parameters of the routed experts of one layer on one rank."""
    if kind.feed_forward is not FeedForward.MOE:
        return 0
    return sum(number for number, expert in _elements(with_one_token(shape), kind) if expert)


@lru_cache(maxsize=8192)
def stage_elements(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
    """Parameters of one rank of the pipeline stage that holds `chunks`.

    The first stage holds the embeddings, and the one that predicts further tokens a copy. The last
    stage holds the final norm and the output layer: a copy of the word embeddings where they are
    tied and the stage is not the first as well."""
    kinds = Counter(kind for chunk in chunks for kind in chunk.layers)
    count = sum(number * layer_elements(shape, kind) for kind, number in kinds.items())
    return count + num_elements(_end_weights(shape, chunks))


def _end_weights(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> tuple[Weight, ...]:
    first = any(chunk.embedding for chunk in chunks)
    weights: tuple[Weight, ...] = ()
    if first or any(chunk.predicts for chunk in chunks):
        weights += embedding_weights(shape)
    if first:
        weights += tuple(weight for weight, _ in tower_weights(shape)[1])
    if any(chunk.head for chunk in chunks):
        weights += output_weights(shape, holds_embedding=first)
    return weights


Weights = tuple[tuple[Weight, int], ...]


@lru_cache(maxsize=512)
def tower_weights(shape: RankShape) -> tuple[Weights, Weights]:
    """Those of the blocks of a vision tower, each with the number of blocks that have it, and of
    both of its ends; none without a tower."""
    if shape.model.vision is None:
        return (), ()
    one, kinds = with_one_token(shape), Counter(shape.model.tower_kinds)
    ends = [operator for end in TOWER_ENDS for operator in vision_operators(one, end)]
    blocks = ((kind, operator) for kind in kinds for operator in transformer_layer(one, kind))
    return (
        tuple((weight, kinds[kind]) for kind, operator in blocks for weight in operator.weights),
        tuple((weight, 1) for operator in ends for weight in operator.weights),
    )


TOWER_ENDS: Final = vision_ends(constant=False)


def stage_weights(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> Iterator[tuple[Weight, int]]:
    """The parameters that stage_elements counts, each with the number of layers that have it."""
    kinds = Counter(kind for chunk in chunks for kind in with_constant(shape, chunk.layers))
    one = with_one_token(shape)
    for kind, number in kinds.items():
        for operator in transformer_layer(one, kind):
            yield from ((weight, number) for weight in operator.weights)
    yield from ((weight, 1) for weight in _end_weights(shape, chunks))


@lru_cache(maxsize=4096)
def trained_elements(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> tuple[int, int]:
    """Of the elements that stage_elements counts, those that are not frozen; and of these the
    routed experts'."""
    weights = stage_weights(shape, chunks)
    trained = [(w.num_elements * number, w.expert) for w, number in weights if not w.frozen]
    return sum(n for n, _ in trained), sum(n for n, expert in trained if expert)


def trained_parameters(shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
    """How many tensors are trained, with the adapters that wait for other runs."""
    weights = stage_weights(shape, chunks)
    return sum(number for w, number in weights if not w.frozen) * shape.tuning.num_adapters


_NF4_BLOCK = 64
_SCALES_OF_SCALES = 256


def stored_bytes(weight: Weight, dtype: DType, tuning: Tuning) -> int:
    """Bytes of a weight between its uses, in `dtype` where it says nothing else.

    int8 has an fp32 scale a row. NF4 has two elements a byte, an fp32 scale for 64 of them and a
    table of 16 values; with double quantization the scales are a byte each, with an fp32 scale for
    256 of them and their mean (bitsandbytes 0.50.2 functional.py, quantize_4bit)."""
    elements = weight.num_elements
    if weight.frozen and tuning.num_trainable_layers:  # LLaMA-Factory casts what is trained alone
        dtype = DType.BF16
    each = {
        StoredAs.AS_LOADED: elements * (weight.dtype or dtype).itemsize,
        StoredAs.INT8: elements,
        StoredAs.NF4: -(-elements // 2),
    }
    return each[weight.stored_as] + scale_bytes(weight, tuning)


def scale_bytes(weight: Weight, tuning: Tuning) -> int:
    """Of these, what a quantized weight has next to its codes."""
    wide, scales = DType.FP32.itemsize, -(-weight.num_elements // _NF4_BLOCK)
    if weight.stored_as is StoredAs.AS_LOADED:
        return 0
    if weight.stored_as is StoredAs.INT8:
        return weight.shape[0] * wide
    if not tuning.double_quantization:
        return (16 + scales) * wide
    return scales + wide * (16 + -(-scales // _SCALES_OF_SCALES) + 1)


def tuned_bytes(
    weights: Iterable[tuple[Weight, int]], dtype: DType, tuning: Tuning
) -> tuple[int, int]:
    """Bytes of the weights that are trained, and of the frozen ones as they are stored; each comes
    with the number of its like."""
    both = [0, 0]
    for weight, number in weights:
        both[weight.frozen] += number * stored_bytes(weight, dtype, tuning)
    return both[False], both[True]


def static_memory(
    elements: int,
    optimizer_shards: int,
    main_grads_dtype: DType,
    optimizer_bytes: int = PLAIN_OPTIMIZER_BYTES,
    trained: int | None = None,
) -> StaticMemory:
    """Bytes of `elements` parameters: 16-bit weights, and of those that are `trained`, all where
    none are frozen, a contiguous gradient buffer in `main_grads_dtype`, and `optimizer_bytes` of
    each over the shards.

    Source: megatron-core 0.16.1 param_and_grad_buffer.py, distrib_optimizer.py. The padding of its
    buckets is left out. Held against its real optimizer on DP 1 to 64 in tests/oracles."""
    trained = elements if trained is None else trained
    optimizer = trained * optimizer_bytes
    return StaticMemory(
        weights=elements * DType.BF16.itemsize,
        gradients=trained * main_grads_dtype.itemsize,
        optimizer=-(-optimizer // optimizer_shards),
        frozen=(elements - trained) * DType.BF16.itemsize,
    )


def gradient_copies(static: StaticMemory, config: JobConfig) -> int:
    """fp32 copies of 16-bit gradients while the optimizer runs, of this rank's shard: as many bytes
    as its main parameters, until the next step begins; an Adam that holds the main parameters reads
    the gradients as they are.

    Source: megatron-core 0.16.1 optimizer/distrib_optimizer.py, _copy_model_grads_to_main_grads."""
    sixteen_bit = config.main_grads_dtype is not DType.FP32
    if not (sixteen_bit and config.copies_gradients) or config.adam_holds_main_params:
        return 0
    return static.optimizer * DType.FP32.itemsize // config.optimizer_bytes


def fp32_states(config: JobConfig) -> int:
    """Bytes of an element that Adam makes of its narrower states while it works on one group of
    parameters; the groups of an optimizer follow one another, and so do the optimizers of routed
    experts and of the rest.

    Source: Transformer Engine 2.20 optimizers/fused_adam.py, get_unscaled_state; two bf16 moments
    go to its kernel as they are from 2.13 on (fuse_unscale)."""
    states = [config.exp_avg_dtype, config.exp_avg_sq_dtype]
    if set(states) == {DType.BF16} and config.transformer_engine >= (2, 13):
        states = []
    if config.adam_holds_main_params:
        states.append(config.main_params_dtype)
    return sum(DType.FP32.itemsize for dtype in states if dtype is not DType.FP32)
