"""Buffers that torch counts as allocated and that stay from the first step on."""

from dataclasses import dataclass
from functools import lru_cache

from advisor.dtypes import DType
from advisor.layers.ends import head_operators
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.spec import AttentionBackend, PositionEmbedding

_CUBLAS_WORKSPACE_BYTES = 8_519_680  # :4096:2:16:8 (pytorch CublasHandlePool.cpp)
_CUBLAS_WORKSPACE_HOPPER_BYTES = 33_554_432  # 4096 KiB x 8, compute capability 9.0 alone
_CUBLAS_HANDLES = 2  # one of the forward's thread, one of autograd's
_TE_WORKSPACE_BYTES = 4_194_304  # TE pytorch/cpp_extensions/gemm.py, below compute capability 9
_TE_WORKSPACE_HOPPER_BYTES = 33_555_456  # 32 MiB + 1024, from 9.0 on


@dataclass(frozen=True, slots=True)
class NamedBytes:
    """A term of the memory that is no activation: name, bytes, source."""

    name: str
    num_bytes: int
    source: str


@lru_cache(maxsize=8192)
def process_buffers(shape: RankShape, num_chunks: int, last: bool) -> tuple[NamedBytes, ...]:
    """Buffers that Megatron itself makes on a stage with `num_chunks` chunks.

    The gather buffer serves Megatron's own column-parallel layers: all of them on the local spec,
    the output layer alone under Transformer Engine. Unfused attention writes its scores into the
    same buffer. Each chunk caches its rotary frequencies in fp32.
    """
    terms = []
    gather = 0
    if shape.sequence_parallel and (shape.is_local or last):
        gather = shape.gathered_hidden_bytes
    if shape.model.attention_backend is AttentionBackend.UNFUSED:
        gather = max(gather, _score_bytes(shape))
    if gather:
        terms.append(
            NamedBytes("global gather buffer", gather, "megatron-core utils.py GlobalMemoryBuffer")
        )
    if shape.model.position_embedding_type is PositionEmbedding.ROPE:
        rotary_dim = int(shape.model.kv_channels * shape.model.rotary_percent)
        table = shape.local_seq * rotary_dim * DType.FP32.itemsize
        terms.append(
            NamedBytes("rotary frequencies", table * num_chunks, "megatron-core RotaryEmbedding")
        )
    return tuple(terms)


def _score_bytes(shape: RankShape) -> int:
    batches = shape.micro_batch_size * shape.local_heads
    return batches * shape.local_seq * shape.seq_length * shape.dtype.itemsize


@lru_cache(maxsize=8192)
def dummy_weight_gradients(shape: RankShape, last: bool) -> int:
    """Placeholder gradients under gradient_accumulation_fusion: one per distinct weight shape.

    Source: TE pytorch/module/base.py get_dummy_wgrad; Megatron's own layers share it.
    """
    if not shape.model.gradient_accumulation_fusion:
        return 0
    operators: tuple[Operator, ...] = transformer_layer(shape)
    if last:
        operators += head_operators(shape)
    shapes = {w.shape for o in operators for w in o.weights if w.in_linear}
    return sum(rows * columns for rows, columns in shapes) * shape.dtype.itemsize


def gemm_workspaces(
    shape: RankShape, compute_capability: float, last: bool
) -> tuple[NamedBytes, ...]:
    """cuBLAS workspaces of torch matmuls and Transformer Engine's own.

    torch holds one per thread and stream that runs a matmul of its own: every stage on the local
    spec, under Transformer Engine the stage with Megatron's output layer.
    """
    terms = []
    if shape.is_local or last:
        hopper = compute_capability == 9.0
        each = _CUBLAS_WORKSPACE_HOPPER_BYTES if hopper else _CUBLAS_WORKSPACE_BYTES
        terms.append(
            NamedBytes("cuBLAS workspaces", each * _CUBLAS_HANDLES, "pytorch CublasHandlePool.cpp")
        )
    if not shape.is_local:
        modern = compute_capability >= 9.0
        each = _TE_WORKSPACE_HOPPER_BYTES if modern else _TE_WORKSPACE_BYTES
        terms.append(NamedBytes("TE GEMM workspace", each, "transformer_engine gemm.py"))
    return tuple(terms)


@lru_cache(maxsize=4096)
def stage_buffers(
    shape: RankShape, num_chunks: int, last: bool, compute_capability: float
) -> tuple[NamedBytes, ...]:
    """All resident buffers of a stage, by name."""
    dummies = dummy_weight_gradients(shape, last)
    placeholders = (
        (NamedBytes("dummy weight gradients", dummies, "transformer_engine module/base.py"),)
        if dummies
        else ()
    )
    return (
        *process_buffers(shape, num_chunks, last),
        *placeholders,
        *gemm_workspaces(shape, compute_capability, last),
    )
