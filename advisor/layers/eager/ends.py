"""Before the first layer and after the last in eager torch: embedding, final norm, output, loss.

Source: torchtitan 0.2.2 models/llama3/model/model.py and components/loss.py; transformers 5.23.0
modeling_llama.py, modeling_gpt2.py and loss/loss_utils.py (ForCausalLMLoss).
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.loss_head import HeadImplementation
from advisor.layers.eager import parts
from advisor.layers.heads.implementations import HEADS
from advisor.layers.operators import Module, Operator, Tensor, cached_operators
from advisor.layers.shape import (
    RankShape,
    embedding_weights,
    output_weight,
    per_layer_weights,
    trained_output_weight,
)
from advisor.layers.softcap import soft_cap
from advisor.layers.torchtitan.collectives import gather_sequence, scatter_sequence, whole_hidden
from advisor.layers.transformers.norms import norm as transformers_norm
from advisor.layers.transformers.per_layer_input import per_layer_inputs
from advisor.models.options import PositionEmbedding, TransformerImpl


@cached_operators
def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Lookup, learned positions added, dropout.

    transformers makes cos and sin of a microbatch here, which all its layers share and keep [1,
    seq_length, kv_channels] for each width of heads, or for each sequence, whose positions are its
    own in models that see; torchtitan's frequencies are a buffer of the model."""
    model = shape.model
    output = parts.hidden(shape, "embedding_output")
    tables: tuple[Tensor, ...] = ()
    makes_tables = model.transformer_impl is TransformerImpl.TRANSFORMERS
    if makes_tables and model.position_embedding_type is PositionEmbedding.ROPE:
        cast = model.norm_placement.before  # OLMo 2's rotary embedding leaves them in fp32
        dtype = shape.stream_dtype if cast else DType.FP32
        widths = dict.fromkeys(model.of_kind(kind).kv_channels for kind in model.layer_kinds)
        rows = 1 if model.vision is None else shape.micro_batch_size
        tables = tuple(
            Tensor(f"rope_{name}{suffix}", (rows, shape.local_seq, width), dtype)
            for width, suffix in zip(widths, ("", "_global"), strict=False)
            for name in ("cos", "sin")
        )
    whole = output if shape.tp == 1 else whole_hidden(shape, "embedding_partial")
    own = per_layer_weights(model)
    others = {weight.name for weight in own}
    weights = tuple(one for one in embedding_weights(shape) if one.name not in others)
    lookup = Operator("embedding", Module.EMBEDDING, (), (whole,), saved=tables, weights=weights)
    lookup = parts.with_weight_gradients(shape, lookup)
    if shape.tp > 1:
        # Each rank looks up its part of the vocabulary, zeros for other tokens; the sum is
        # scattered. Going back, DTensor makes the gradient of the whole vocabulary before it takes
        # the rank's part.
        lookup = replace(lookup, weight_gradient_bytes=shape.tp * lookup.weight_gradient_bytes)
        return lookup, *scatter_sequence(shape, Module.EMBEDDING, whole, output, ())
    if model.apply_embedding_scaling:
        scaled = parts.hidden(shape, "embedding_scaled")
        scale = Operator("embedding_scale", Module.EMBEDDING, (output,), (scaled,))
        return lookup, scale, *(per_layer_inputs(shape, scaled) if own else ())
    _, dropped = parts.dropout(
        "embedding_dropout_out", Module.EMBEDDING, output, model.hidden_dropout
    )
    return (lookup, *dropped)


def head_groups(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm and output layer, and the loss, which is computed outside the model; or both in
    one, as `shape.head` says."""
    rows = output_weight(shape).shape[0]
    name, chosen = shape.head.implementation, HEADS.get(shape.head.implementation)
    liger = name is HeadImplementation.LIGER or (chosen is None and shape.use_liger_kernel)
    if liger or (chosen is not None and not chosen.of_logits):
        return (("head", _fused_head(shape, rows)),)
    fused = shape.compiled_loss and shape.tp == 1 and not shape.autocast
    loss = _compiled_cross_entropy if fused else _cross_entropy
    if name is HeadImplementation.TRANSFORMERS:
        loss = _transformers_loss
    if chosen is not None:
        loss = _chosen_loss
    return ("head", _output_head(shape, rows)), ("loss", loss(_last_positions(shape), rows))


def _last_positions(shape: RankShape) -> RankShape:
    """The shape of what has logits: of each sample so many last positions as are kept."""
    kept = shape.head.logits_to_keep
    if kept is None or kept >= shape.local_seq:
        return shape
    return replace(shape, seq_length=kept * shape.context_parallel_size)


def _normed(shape: RankShape) -> tuple[tuple[Operator, ...], Tensor]:
    """Final norm, and what the output layer reads of it: several samples' last positions are copied
    out by it, those of one are a part of the whole."""
    source, normed = parts.hidden(shape, "decoder_output"), parts.hidden(shape, "final_norm_out")
    huggingface = shape.model.transformer_impl is TransformerImpl.TRANSFORMERS
    norm = transformers_norm if huggingface or shape.use_liger_kernel else parts.fused_norm
    final = norm(shape, "final_norm", Module.FINAL_LAYERNORM, source, normed)
    short = _last_positions(shape)
    if short is shape:
        return (final,), normed
    part = parts.hidden(short, "last_positions")
    if shape.micro_batch_size == 1:
        part = normed.view(part.name, part.shape)
    return (final, Operator("last_positions", Module.OUTPUT_LAYER, (normed,), (part,))), part


@cached_operators
def _output_head(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """Final norm and output layer; logits [micro_batch_size, seq_length, vocabulary / tp]."""
    final, normed = _normed(shape)
    shape = _last_positions(shape)
    logits = parts.activation(shape, "logits", vocabulary)
    if shape.model.final_logit_softcapping is None:
        read, gather = gather_sequence(shape, Module.OUTPUT_LAYER, normed)
        held = (normed,) if gather else ()
        output = parts.linear(
            shape, "output", Module.OUTPUT_LAYER, read, logits, bias=False, holds=held
        )
        return (*final, *gather, output)
    raw = parts.activation(shape, "raw_logits", vocabulary)
    *steps, last = soft_cap(raw, Module.OUTPUT_LAYER, held=False)
    linear_out = parts.linear(shape, "output", Module.OUTPUT_LAYER, normed, raw, bias=False)
    return *final, linear_out, *steps, replace(last, outputs=(logits,))


@cached_operators
def _fused_head(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """Final norm, and an output layer with the loss."""
    from advisor.layers.transformers.liger import liger_loss

    final, normed = _normed(shape)
    short, chosen = _last_positions(shape), HEADS.get(shape.head.implementation)
    if chosen is not None:
        return *final, *chosen.operators(short, normed)
    return *final, liger_loss(short, normed, trained_output_weight(shape))


@cached_operators
def _transformers_loss(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """ForCausalLMLoss, which keeps labels of its own, padded and shifted."""
    *steps, last = _cross_entropy(shape, vocabulary)
    unshifted = shape.micro_batch_size == 1  # of one sample they are a part of the padded ones
    labels = Tensor("shifted_labels", (shape.tokens + unshifted,), DType.INT64)
    return (*steps, replace(last, saved=(labels, Tensor("total_weight", (1,), DType.FP32))))


@cached_operators
def _chosen_loss(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """What an implementation that has all logits does to them."""
    logits = parts.activation(shape, "logits", vocabulary)
    return HEADS[shape.head.implementation].operators(shape, logits)


@cached_operators
def _compiled_cross_entropy(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """The loss as torch.compile fuses it: of the 16-bit logits it keeps, in fp32, the largest one
    and the logarithm of the sum of a token [micro_batch_size, seq_length, 1], and going back it
    makes their 16-bit gradient (torch 2.13's partitioner; tests/oracles)."""
    logits = parts.activation(shape, "logits", vocabulary)
    of_tokens = parts.activation(shape, "loss_of_tokens", 1)
    kept = tuple(parts.in_fp32(of_tokens, name) for name in ("largest_logit", "log_sum"))
    loss = Tensor("loss", (1,), DType.FP32)
    return (Operator("cross_entropy", Module.LOSS, (logits,), (loss,), saved=(logits, *kept)),)


@cached_operators
def _cross_entropy(shape: RankShape, vocabulary: int) -> tuple[Operator, ...]:
    """Logits in fp32, log_softmax, which keeps its output, and the loss. A vocabulary cut by TP has
    its log_softmax step by step (torch 2.13 tensor/parallel/loss.py).

    The 16-bit logits and their fp32 copy are held by variables until the loss is there; under
    autocast so are the fp32 hidden states, which nothing keeps."""
    logits = parts.activation(shape, "logits", vocabulary)
    copy = parts.in_fp32(logits, "logits.fp32")
    probs = parts.in_fp32(logits, "log_softmax")
    loss = Tensor("loss", (1,), DType.FP32)
    steps = probs.num_bytes if shape.tp > 1 else 0
    held = parts.hidden(shape, "final_norm_out").num_bytes if shape.autocast else 0
    return (
        Operator("logits.float", Module.LOSS, (logits,), (copy,), forward_workspace=held),
        Operator(
            "log_softmax",
            Module.LOSS,
            (copy,),
            (probs,),
            saved=(probs,),
            forward_workspace=steps + held,
            backward_workspace=steps,
        ),
        Operator(
            "nll_loss",
            Module.LOSS,
            (probs,),
            (loss,),
            forward_holds=(logits, copy),
            forward_workspace=held,
        ),
    )
