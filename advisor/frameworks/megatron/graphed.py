"""Which submodules of a layer CUDA graphs hold, and what they allocate of their own.

Source: megatron-core 0.16.1 transformer/transformer_layer.py (_te_cuda_graph_capture) and 0.19.2
transformer/cuda_graphs.py.
"""

from typing import Final

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.buffers import Chunks
from advisor.frameworks.megatron.plan import Layers
from advisor.frameworks.megatron.revisions import Revision
from advisor.job.job import CudaGraphImpl, Job, JobConfig
from advisor.layers.expert_tokens import moe_tokens, router_dtype
from advisor.layers.operators import LAYER_INPUT, MOE_MODULES, SHARED_MODULES, Capture, Module
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import SOFTMAX_MIXERS, FeedForward, LayerKind, Mixer, Role
from advisor.models.options import TokenDispatcher

_AROUND_MLP: Final = {Module.PRE_MLP_LAYERNORM, Module.POST_MLP_LAYERNORM, Module.MLP_BDA}
_MAMBA: Final = frozenset(
    module for module in Module if module.startswith("m") and "mixer" in module
)
_HELD: Final = {
    "attn": frozenset(module for module in Module if "attn" in module or "attention" in module)
    | {Module.INPUT_LAYERNORM},
    "mlp": frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2}) | _AROUND_MLP,
    "moe": MOE_MODULES | _AROUND_MLP,
    "moe_router": frozenset({Module.PRE_MLP_LAYERNORM, Module.ROUTER}),
    "moe_preprocess": frozenset({Module.DISPATCH}),
    "mamba": _MAMBA | {Module.MAMBA_BDA, Module.INPUT_LAYERNORM},
}
"""By the name of what is captured."""
_ENDS: Final = frozenset(
    {
        Module.EMBEDDING,
        Module.FINAL_LAYERNORM,
        Module.OUTPUT_LAYER,
        Module.LOSS,
        Module.MTP_PROJECTION,
        Module.MTP_FINAL_LAYERNORM,
        Module.MTP_LOSS,
    }
)
"""What no graph of a layer holds."""
_OF_DYNAMIC_SHAPE: Final = MOE_MODULES - SHARED_MODULES - {Module.ROUTER}
_DROPS_LAST_GRAPH: Final = (2, 20)
"""The release of Transformer Engine with change 3427: in 2.20.2, not in 2.19.0."""
_BATCH: Final = 3 * DType.INT64.itemsize + DType.FP32.itemsize
"""Bytes of a token in a batch: itself, its label, its position; and its share of the loss."""


def graph_capture(job: Job) -> Capture | None:
    """The operators whose tensors lie in the graphs' pool. Of dispatch the graph of moe_preprocess
    holds what comes before the exchange: the permutation of the all-to-all dispatcher. Without
    modules all of a layer, except experts whose tokens no capacity fixes, which cannot be
    captured.

    Source: megatron-core 0.16.1 and 0.19.2 transformer/cuda_graphs.py, full_cuda_graph.py,
    moe/moe_layer.py; one pool for all graphs whatever cuda_graph_use_single_mempool says.
    """
    config = job.config
    if config.cuda_graph_impl is CudaGraphImpl.NONE:
        return None
    if config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION:
        return Capture(frozenset(Module))
    modules, names, named = graphed_modules(job) - _ENDS, frozenset[str](), _named(job)
    if not (named or job.model.moe_pad_expert_input_to_capacity):
        modules -= _OF_DYNAMIC_SHAPE
    if "moe_preprocess" in named:
        modules -= {Module.DISPATCH}
        if job.model.moe_token_dispatcher_type is TokenDispatcher.ALLTOALL:
            names = frozenset({"permute"})
    return Capture(modules, names)


def graph_inputs(config: JobConfig, shape: RankShape, layers: Layers) -> int:
    """Bytes of the inputs that Transformer Engine's graphs of `layers` have of their own, for a
    microbatch in flight: of each layer the hidden states [seq_length / cp (/ tp under SP),
    micro_batch_size, hidden_size], and where its attention is held a mask, bools
    [micro_batch_size, 1, seq_length / cp, seq_length]. They stay from the capture on; a microbatch
    that went back leaves its own to the next.

    Source: megatron-core 0.16.1 to 0.19.2 transformer/module.py and transformer_layer.py
    (get_layer_static_inputs), cuda_graphs.py (_get_sample_arguments). Left out: probabilities and
    maps of routing among the gradients of the outputs.
    """
    if config.cuda_graph_impl is not CudaGraphImpl.TRANSFORMER_ENGINE:
        return 0
    names = frozenset(config.cuda_graph_modules)
    held = [kind for kind in layers if _is_graphable(kind, names)]
    attention = sum(kind.mixer in _IN_TRANSFORMER_LAYERS for kind in held)
    masks = 0 if names and "attn" not in names else attention
    mask = shape.micro_batch_size * shape.local_seq * shape.seq_length * DType.BOOL.itemsize
    return len(held) * shape.hidden(LAYER_INPUT).num_bytes + masks * mask


_IN_TRANSFORMER_LAYERS: Final = SOFTMAX_MIXERS | {Mixer.GATED_DELTA_NET}


def _is_graphable(kind: LayerKind, names: frozenset[str]) -> bool:
    """Source: megatron-core 0.16.1 cuda_graphs.py, _layer_is_graphable."""
    if kind.role is Role.FINAL_LAYERNORM:
        return False
    if not names:
        return True
    moe = kind.feed_forward is FeedForward.MOE
    return (
        ("attn" in names and kind.mixer in _IN_TRANSFORMER_LAYERS)
        or ("mamba" in names and kind.mixer is Mixer.MAMBA)
        or (moe and not names.isdisjoint({"moe", "moe_router", "moe_preprocess"}))
        or ("mlp" in names and kind.feed_forward is FeedForward.DENSE)
    )


def graph_buffers(job: Job, shape: RankShape, chunks: Chunks, revision: Revision) -> int:
    """Bytes that graphs hold besides their pool and the inputs of microbatches in flight.

    Transformer Engine's: gradients of what a layer's graph hands over, one set for all layers whose
    graphs hand over the same; before 2.20, whose change 3427 ends that, the outputs and the input's
    gradient of the last graph as well, which a capture cannot use again. A graph of the whole step:
    the batches of all its microbatches, as the data loader gives them, on the stages that read any:
    of a token its number, label and position (8 bytes each) and its share of the loss (4), and its
    row of the attention mask where the loader makes one. Megatron's own graphs of layers, before
    0.19: the outputs of every layer and graph, of which there is one a microbatch of the step under
    pipeline parallelism; those in flight are in the pool already.

    Source: full_cuda_graph.py (StaticBufferLoader), cuda_graphs.py (fwd_graph_outputs), Transformer
    Engine 2.19 and 2.20 graph.py (static_grad_outputs; what _make_graphed_callables deletes). Left
    out: outputs of the warm-up, which older releases hold until the last capture, while nothing
    else is there.
    """
    config, names, hidden = job.config, _named(job), shape.hidden(LAYER_INPUT).num_bytes
    held = [kind for chunk in chunks for kind in chunk.layers if _is_graphable(kind, names)]
    if config.cuda_graph_impl is CudaGraphImpl.TRANSFORMER_ENGINE:
        handed = [_handed_over(shape, kind, names, revision) for kind in held]
        if handed and config.transformer_engine < _DROPS_LAST_GRAPH:
            handed.append((hidden, *handed[0]))  # not equal to any
        return sum(map(sum, {*handed}))
    if config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION:
        if not any(chunk.embedding or chunk.head for chunk in chunks):
            return 0
        row = _BATCH + (config.seq_length if config.loads_attention_mask else 0)
        return job.num_microbatches * config.micro_batch_size * config.seq_length * row
    if revision.at_least(0, 19) or job.layout.pipeline_model_parallel_size == 1:
        return 0
    return (
        hidden * len(held) * max(0, job.num_microbatches - job.layout.pipeline_model_parallel_size)
    )


def _handed_over(
    shape: RankShape, kind: LayerKind, names: frozenset[str], revision: Revision
) -> tuple[int, ...]:
    """Bytes of what the graph of a layer returns that has a gradient: its hidden states, and ahead
    of experts also the tokens, as they are or permuted, their probabilities (since 0.19 next to
    permuted ones the router's), and what shared experts made of them, or overlapped ones will.

    Source: megatron-core 0.16.1 and 0.19.2 transformer_layer.py (_te_cuda_graph_capture),
    moe_utils.py (get_early_return_outputs), token_dispatcher.py. Left out: flex's probabilities.
    """
    model, hidden = shape.model, shape.hidden(LAYER_INPUT).num_bytes
    if kind.feed_forward is not FeedForward.MOE or "moe_router" not in names:
        return (hidden,)
    counts, ahead = moe_tokens(shape), "moe_preprocess" in names
    permuted = ahead and model.moe_token_dispatcher_type is TokenDispatcher.ALLTOALL
    tokens, ways = counts.local, counts.local * counts.num_experts
    if permuted:
        tokens, ways = counts.routed, counts.routed + revision.at_least(0, 19) * ways
    width = (ahead and model.moe_latent_size) or model.hidden_size
    shared = (permuted or not model.moe_shared_expert_overlap) and (
        model.moe_shared_expert_intermediate_size
    )
    return (
        tokens * width * shape.dtype.itemsize,
        ways * router_dtype(shape).itemsize,
        hidden * (2 if shared else 1),
    )


def graphed_modules(job: Job) -> frozenset[Module]:
    """Submodules whose kernels CUDA graphs launch; none named: all of a layer."""
    config, model = job.config, job.model
    if config.cuda_graph_impl is CudaGraphImpl.NONE:
        return frozenset()
    names = _named(job)
    if config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION or not names:
        return frozenset(Module)
    held = frozenset[Module]().union(*(_HELD.get(name, frozenset()) for name in names))
    overlapped = model.moe_shared_expert_overlap
    return held | SHARED_MODULES if "moe_router" in names and not overlapped else held


def _named(job: Job) -> frozenset[str]:
    """What graphs of layers hold of them, by name; nothing: whole layers, as Megatron's own do of a
    model that is no hybrid one, named attn or mlp.

    Source: megatron-core 0.16.1 to 0.19.2 transformer_layer.py (create_mcore_cudagraph_manager).
    """
    names = frozenset(job.config.cuda_graph_modules)
    gpt = job.config.cuda_graph_impl is CudaGraphImpl.LOCAL and not job.model.hybrid_layer_pattern
    return frozenset() if gpt and names & {"attn", "mlp"} else names
