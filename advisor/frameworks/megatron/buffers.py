"""Buffers that Megatron Core and Transformer Engine make, and that stay from the first step on."""

from collections import Counter
from functools import lru_cache

from advisor.base.dtypes import DType
from advisor.hardware.gpu import Gpu
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.expert_tokens import moe_tokens, router_dtype, runs_grouped
from advisor.layers.megatron.adapters import freezes_output
from advisor.layers.megatron.core_attention import is_transformer_engines
from advisor.layers.megatron.quantization import weight_copies
from advisor.layers.operators import Module, Operator, total_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, head_operators, transformer_layer
from advisor.memory.static import NamedBytes, cublas_workspaces, with_one_token
from advisor.models.layer_kind import FeedForward, LayerKind, Role
from advisor.models.options import AttentionBackend, PositionEmbedding, TokenDispatcher

Chunks = tuple[ModelChunk, ...]
"""What a pipeline stage holds."""
Terms = tuple[NamedBytes, ...]
"""Parts of a sum of bytes."""

_ROTARY_CACHE_ENTRIES = 32  # lru_cache of RotaryEmbedding.forward and YarnRotaryEmbedding.forward
_TE_WORKSPACE_BYTES = 4_194_304  # TE pytorch/cpp_extensions/gemm.py, below compute capability 9
_TE_WORKSPACE_HOPPER_BYTES = 33_555_456  # 32 MiB + 1024, from 9.0 on
_TE_GROUPED_STREAMS = 4  # of a grouped GEMM, each with a workspace (TE get_num_cublas_streams)


@lru_cache(maxsize=8192)
def process_buffers(shape: RankShape, chunks: Chunks) -> Terms:
    """Buffers that Megatron itself makes on a stage that holds `chunks`.

    The gather buffer serves Megatron's own column-parallel layers: all of them on the local spec,
    of which multi-token prediction's reads two hidden states, the output layer alone under
    Transformer Engine: [seq_length / cp, micro_batch_size, hidden_size] in the type of the
    activations. Megatron's own unfused attention writes its scores into the same buffer,
    [micro_batch_size x heads / tp, seq_length / cp, seq_length]; Transformer Engine's makes a
    tensor (UnfusedDotProductAttention). Rotary frequencies are cached in fp32. Sources:
    megatron-core 0.16.1, the file in each term.
    """
    gather, tuning = 0, shape.tuning
    last = any(chunk.head for chunk in chunks) and not freezes_output(shape)
    layers = any(chunk.layers for chunk in chunks)
    own = tuning.sequence_parallel_input_regather if tuning.has_adapter else shape.is_local
    if shape.sequence_parallel and ((own and layers) or last):
        projects = shape.is_local and any(chunk.predicts for chunk in chunks)
        gather = shape.gathered_hidden_bytes * (2 if projects else 1)
    unfused = shape.model.attention_backend is AttentionBackend.UNFUSED and layers
    if unfused and not is_transformer_engines(shape):
        scores = shape.local_heads * shape.local_seq * shape.seq_length * shape.dtype.itemsize
        gather = max(gather, shape.micro_batch_size * scores)
    if _gathers_tokens(shape, chunks):
        from advisor.layers.megatron.moe.dispatch import gathered_token_bytes

        gather = max(gather, gathered_token_bytes(shape))
    state = sum(_dispatcher_bytes(shape, kind) for chunk in chunks for kind in chunk.layers)
    table = shape.local_seq * shape.model.rotary_dim * DType.FP32.itemsize
    rotary = _rotary_tables(shape, chunks) * table
    return _present(
        NamedBytes("global gather buffer", gather, "megatron-core utils.py GlobalMemoryBuffer"),
        NamedBytes("token dispatcher state", state, "megatron-core token_dispatcher.py"),
        NamedBytes("rotary frequencies", rotary, "megatron-core RotaryEmbedding"),
    )


def _present(*terms: NamedBytes) -> Terms:
    return tuple(term for term in terms if term.num_bytes)


def _rotary_tables(shape: RankShape, chunks: Chunks) -> int:
    """Cached tables of rotary frequencies [seq_length / cp, 1, 1, rotary dimension] in fp32: one a
    chunk, but one a layer under multi-latent attention, as far as the class's cache holds them."""
    if shape.model.position_embedding_type is not PositionEmbedding.ROPE:
        return 0
    if not shape.model.multi_latent_attention:
        return len(chunks)
    layers = sum(kind.role is not Role.FINAL_LAYERNORM for chunk in chunks for kind in chunk.layers)
    return min(layers, _ROTARY_CACHE_ENTRIES)


def _gathers_tokens(shape: RankShape, chunks: Chunks) -> bool:
    """Whether the allgather dispatcher brings the tokens of several ranks together."""
    ranks = shape.expert_model_parallel_size * shape.expert_tensor_parallel_size
    gathers = shape.model.moe_token_dispatcher_type is TokenDispatcher.ALLGATHER
    return ranks > 1 and gathers and _holds_experts(chunks)


def _holds_experts(chunks: Chunks) -> bool:
    return any(kind.feed_forward is FeedForward.MOE for chunk in chunks for kind in chunk.layers)


def _dispatcher_bytes(shape: RankShape, kind: LayerKind) -> int:
    """What a layer's dispatcher keeps in attributes until its next forward: the routing map, and
    the probabilities of alltoall (those of allgather autograd keeps as well)."""
    if kind.feed_forward is not FeedForward.MOE:
        return 0
    counts = moe_tokens(shape)
    if shape.model.moe_token_dispatcher_type is TokenDispatcher.ALLGATHER:
        return counts.gathered * counts.local_experts * DType.BOOL.itemsize
    return counts.local * counts.num_experts * (router_dtype(shape).itemsize + DType.BOOL.itemsize)


@lru_cache(maxsize=8192)
def dummy_weight_gradients(shape: RankShape, chunks: Chunks) -> int:
    """Bytes of placeholder gradients under gradient_accumulation_fusion, in the type of the
    weights: one per distinct local weight shape [out, in] of the linear layers.

    Source: TE pytorch/module/base.py get_dummy_wgrad; Megatron's own layers share it.
    """
    if not shape.model.gradient_accumulation_fusion:
        return 0
    kinds, one = {kind for chunk in chunks for kind in chunk.layers}, with_one_token(shape)
    operators = [operator for kind in kinds for operator in transformer_layer(one, kind)]
    if any(chunk.head for chunk in chunks):
        operators += head_operators(one)
    shapes = {w.shape for o in operators for w in o.weights if w.in_linear and not w.frozen}
    return sum(rows * columns for rows, columns in shapes) * shape.dtype.itemsize


@lru_cache(maxsize=1024)
def stream_pools(shape: RankShape, chunks: Chunks, *, overlaps_exchange: bool = False) -> Terms:
    """What the allocator keeps for other streams than the computing one: every other step of
    attention over context-parallel ranks has its own, and during another microbatch the experts'
    exchange, whose tokens, there or back, are gone when the rank is at its peak."""
    kinds = dict.fromkeys(kind for chunk in chunks for kind in chunk.layers)
    operators = [operator for kind in kinds for operator in transformer_layer(shape, kind)]
    attention = max((operator.second_stream_bytes for operator in operators), default=0)
    exchanged = max((_exchanged_bytes(o) for o in operators), default=0) if overlaps_exchange else 0
    of_attention = "Transformer Engine context_parallel.py, flash_attn_streams"
    of_exchange = "megatron-core pipeline_parallel/utils.py, get_comm_stream"
    return _present(
        NamedBytes("cache of the second CP stream", attention, of_attention),
        NamedBytes("cache of the expert-exchange stream", exchanged, of_exchange),
    )


def _exchanged_bytes(operator: Operator) -> int:
    """Bytes of what an exchange of tokens writes forward, or of its input's gradient."""
    if not (operator.module in (Module.DISPATCH, Module.COMBINE) and operator.forward_collectives):
        return 0
    return max(total_bytes(operator.outputs), total_bytes(operator.inputs))


def gemm_workspaces(shape: RankShape, chunks: Chunks, gpu: Gpu) -> Terms:
    """cuBLAS workspaces of torch matmuls and Transformer Engine's own.

    torch holds one per thread and stream that runs a matmul of its own: every stage on the local
    spec, under Transformer Engine the stage with Megatron's output layer, and those whose attention
    is unfused or whose adapters are Megatron's own layers. Transformer Engine holds one, and four
    more for grouped GEMMs.
    """
    terms = []
    unfused = shape.model.attention_backend is AttentionBackend.UNFUSED
    adapters = shape.tuning.has_adapter and not shape.tuning.cut_by_tokens
    if shape.is_local or unfused or adapters or any(chunk.head for chunk in chunks):
        terms.append(cublas_workspaces(gpu, deterministic=shape.deterministic))
    if not shape.is_local:
        each = _TE_WORKSPACE_HOPPER_BYTES if gpu.compute_capability >= 9.0 else _TE_WORKSPACE_BYTES
        terms.append(NamedBytes("TE GEMM workspace", each, "transformer_engine gemm.py"))
        if runs_grouped(shape.model) and _holds_experts(chunks):
            grouped = _TE_GROUPED_STREAMS * each
            terms.append(
                NamedBytes("TE grouped GEMM workspaces", grouped, "transformer_engine gemm.py")
            )
    return tuple(terms)


@lru_cache(maxsize=4096)
def last_inputs(shape: RankShape, chunks: Chunks) -> int:
    """What a step leaves behind: the last input that each chunk received, and its gradient.

    Each is [seq_length / cp (/ tp under SP), micro_batch_size, hidden_size] in the type of the
    activations. TransformerBlock.set_input_tensor keeps it until the next one (megatron-core
    0.16.1); a chunk with the embedding receives none.
    """
    return 2 * sum(not chunk.embedding for chunk in chunks) * shape.hidden(LAYER_INPUT).num_bytes


def quantized_elements(shape: RankShape, chunks: Chunks) -> int:
    """Elements of the linear layers' weights that compute in 8 or 4 bits, on one rank of a stage
    that holds `chunks`; the output layer stays at 16 bits."""
    return sum(
        count * weight.num_elements
        for kind, count in Counter(kind for chunk in chunks for kind in chunk.layers).items()
        for operator in transformer_layer(shape, kind)
        if operator.gemm is not None and operator.gemm.quantized
        for weight in operator.weights
        if weight.in_linear
    )


@lru_cache(maxsize=4096)
def stage_buffers(shape: RankShape, chunks: Chunks, gpu: Gpu) -> Terms:
    """All resident buffers of one rank of a stage, by name, in bytes with their sources.

    Left out: NCCL's own buffers and the CUDA context, which are not torch's (memory.allocator), and
    the data loader's.
    """
    dummies = dummy_weight_gradients(shape, chunks)
    copies = weight_copies(shape, quantized_elements(shape, chunks))
    weights = f"{shape.precision} weights"
    return (
        *process_buffers(shape, chunks),
        *_present(
            NamedBytes("dummy weight gradients", dummies, "transformer_engine module/base.py"),
            NamedBytes(weights, copies, "transformer_engine get_weight_workspace"),
        ),
        *gemm_workspaces(shape, chunks, gpu),
    )
