"""Before the first layer and after the last: embeddings, final norm, output layer, loss; and
multi-token prediction: layers that predict further tokens (arXiv 2412.19437, 2.2).

Source: megatron-core 0.16.1 models/gpt/gpt_model.py, models/common/embeddings,
tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py,
transformer/multi_token_prediction.py (MultiTokenPredictionLayer).
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.heads.implementations import HEADS, Head
from advisor.layers.megatron.linear import column_parallel_linear, norm_operator
from advisor.layers.megatron.mappings import cuts_sequence, gather_width, scatter_sequence
from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    ComputeUnit,
    Gemm,
    Group,
    Module,
    Operator,
    Tensor,
    cached_operators,
)
from advisor.layers.shape import RankShape, embedding_weights, output_weight
from advisor.layers.softcap import soft_cap
from advisor.models.options import CrossEntropyFusion


@cached_operators
def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Megatron's vocabulary-parallel embedding. A vocabulary cut by TP keeps the masked token ids
    and their mask (tensor_parallel/layers.py). Gemma scales what it looked up (Megatron Bridge
    0.3.1 models/gemma/modules.py)."""
    output = shape.hidden("embedding_output")
    lookup = embedding_lookup(shape, output)
    if not shape.model.apply_embedding_scaling:
        return (lookup,)
    return lookup, scaled_embedding(output)


def scaled_embedding(source: Tensor) -> Operator:
    """Embeddings times the root of hidden_size; keeps nothing of their size."""
    output = Tensor("embedding_scaled", source.shape, source.dtype)
    return Operator("embedding_scale", Module.EMBEDDING, (source,), (output,))


def embedding_lookup(shape: RankShape, output: Tensor) -> Operator:
    """One lookup of the tokens of a microbatch, with its weights."""
    weights = embedding_weights(shape)
    gradients = [weight.num_elements * shape.dtype.itemsize for weight in weights]
    ids = Tensor("masked_input", (shape.micro_batch_size, shape.local_seq), DType.INT64)
    saved = [ids, Tensor("input_mask", ids.shape, DType.BOOL)] if shape.tp > 1 else []
    if shape.model.hidden_dropout > 0:
        saved.append(Tensor("embedding_dropout_mask", output.shape, DType.BOOL))
    masks = sum(tensor.num_bytes for tensor in saved if tensor.dtype is DType.BOOL)
    return Operator(
        "embedding",
        Module.EMBEDDING,
        (),
        (output,),
        saved=tuple(saved),
        weights=weights,
        forward_collectives=shape.row_parallel_forward(),
        backward_collectives=shape.row_parallel_backward(),
        gathers_gradient=shape.sequence_parallel,
        forward_workspace=shape.row_parallel_workspace,
        backward_workspace=_embedding_backward_workspace(shape, gradients, masks),
        extra_backward_bytes=2 * sum(gradients),
    )


def _embedding_backward_workspace(shape: RankShape, gradients: list[int], masks: int) -> int:
    """Bytes next to the saved ids and the output's gradient at the end of a backward.

    The gradient has been gathered under SP, and the masks have been used. A clone of it zeroes
    foreign tokens, then comes the word embeddings' gradient: a dense tensor in the compute type, as
    no GEMM makes it. That of learned positions was accumulated before."""
    words, *positions = gradients
    clone = shape.gathered_hidden_bytes if shape.tp > 1 else 0
    return shape.row_parallel_workspace - masks + max(words, clone, *positions, 0)


@cached_operators
def final_layernorm(shape: RankShape) -> tuple[Operator, ...]:
    """The norm after the last layer."""
    hidden, normed = shape.hidden("decoder_output"), shape.hidden("final_layernorm_out")
    return (norm_operator(shape, Module.FINAL_LAYERNORM, hidden, normed),)


def head_groups(shape: RankShape) -> tuple[tuple[str, tuple[Operator, ...]], ...]:
    """Final norm, output layer and cross entropy of the last stage, which run as one."""
    return (("head", _head(shape)),)


@cached_operators
def _head(shape: RankShape) -> tuple[Operator, ...]:
    if shape.model.mtp_num_layers is not None:
        return _heads_of_every_depth(shape, shape.model.mtp_num_layers)
    norm, chosen = final_layernorm(shape), HEADS.get(shape.head.implementation)
    if chosen is not None and not chosen.of_logits:
        return *norm, *_fused_head(shape, norm[0].outputs[0], chosen)
    output = _output_layer(shape, norm[0].outputs[0])
    logits = output.outputs[0]
    capped: tuple[Operator, ...] = ()
    if shape.model.final_logit_softcapping is not None:
        capped = soft_cap(logits, Module.OUTPUT_LAYER, held=True)
        (logits,) = capped[-1].outputs
    if chosen is not None:
        return (*norm, output, *capped, *chosen.operators(shape, logits))
    entropy = replace(_cross_entropy(shape, logits), forward_holds=norm[0].outputs)
    return (*norm, output, *capped, entropy)


def _fused_head(shape: RankShape, source: Tensor, head: Head) -> tuple[Operator, ...]:
    """An output layer with the loss; under SP it keeps the gathered hidden states."""
    gathered = shape.activation("gathered_hidden", shape.model.hidden_size)
    if not shape.sequence_parallel:
        *before, last = head.operators(shape, source)
        return (*before, replace(last, backward_collectives=shape.column_parallel_backward()))
    sent = Collective.both_ways(CollectiveKind.ALL_GATHER, Group.TENSOR, gathered.num_bytes)
    gather = Operator("gather_hidden", Module.OUTPUT_LAYER, (source,), (gathered,), **sent)
    return gather, *head.operators(shape, gathered)


def _heads_of_every_depth(shape: RankShape, depths: int) -> tuple[Operator, ...]:
    """Output layer and loss of every depth of multi-token prediction, then those of the model.

    They read parts of one tensor [(1 + depths) x seq_length / cp (/ tp), b, hidden_size]. The
    variables of a depth (logits, labels, losses) live until the next one's replace them, those of
    the last until the forward ends (models/gpt/gpt_model.py, _postprocess), or until a function of
    their own returns (shape.frees_last_depth)."""
    hidden = shape.hidden("")
    merged = Tensor("mtp_hidden", (hidden.shape[0] * (1 + depths), *hidden.shape[1:]), shape.dtype)
    parts = tuple(merged.view(f"mtp_hidden_{depth}", hidden.shape) for depth in range(depths + 1))
    operators = [Operator("split_depths", Module.MTP_LOSS, (merged,), parts)]
    variables: tuple[Tensor, ...] = ()
    for depth in range(1, depths + 1):
        output = replace(_output_layer(shape, parts[depth], depth), forward_holds=variables)
        entropy = _cross_entropy(shape, output.outputs[0], f"_{depth}")
        losses = _depth_loss(entropy.outputs[0])
        variables = (*output.outputs, *losses.outputs)
        if shape.frees_last_depth and depth == depths:
            losses, variables = replace(losses, outputs=losses.outputs[:1]), ()
        operators += [output, entropy, losses]
    output = _output_layer(shape, parts[0])
    entropy = replace(_cross_entropy(shape, output.outputs[0]), forward_holds=variables)
    return (*operators, output, entropy)


def _depth_loss(loss: Tensor) -> Operator:
    """Masked and scaled losses [micro_batch_size, seq_length / cp] of one depth, in fp32; keeps the
    shifted loss mask and what it returns."""
    mask, masked, scaled = (
        Tensor(f"{loss.name}_{name}", loss.shape, DType.FP32)
        for name in ("mask", "masked", "scaled")
    )
    labels = Tensor(f"{loss.name}_labels", loss.shape, DType.INT64)
    return Operator(
        f"mtp_{loss.name}", Module.MTP_LOSS, (loss,), (scaled, masked, labels), saved=(mask, scaled)
    )


def _output_layer(shape: RankShape, source: Tensor, depth: int = 0) -> Operator:
    """Logits of `source`. In the backward the weight's gradient from the model's own logits waits
    for that of a depth; their sum is a third tensor, made when the logits' gradient is gone, and
    after the last of them what they read."""
    weight = output_weight(shape)
    rows = weight.shape[0]
    logits = shape.activation(f"logits_{depth}" if depth else "logits", rows)
    gradient = shape.weight_gradient_bytes(weight.num_elements)
    workspace = shape.row_parallel_workspace + gradient
    if depth:
        total = weight.num_elements * shape.dtype.itemsize
        gone = logits.num_bytes + (source.storage.num_bytes if depth == 1 else 0)
        workspace = gradient + max(workspace, gradient + total - gone)
    return Operator(
        f"output_layer_{depth}" if depth else "output_layer",
        Module.OUTPUT_LAYER,
        (source,),
        (logits,),
        unit=ComputeUnit.GEMM,
        saved=(source,),
        saved_for_weights=frozenset({source.name}),
        weights=(weight,),
        gemm=shape.with_main_grad(Gemm(shape.tokens, rows, shape.model.hidden_size)),
        forward_collectives=shape.column_parallel_forward(),
        backward_collectives=shape.column_parallel_backward(),
        backward_workspace=workspace,
        extra_backward_bytes=shape.main_grad_traffic(weight.num_elements),
    )


def _cross_entropy(shape: RankShape, logits: Tensor, suffix: str = "") -> Operator:
    """Vocabulary-parallel cross entropy: what it keeps of the logits [s / cp, b, vocabulary / tp].

    Unfused and native: softmax in fp32, next to the 16-bit logits in the forward and their 16-bit
    gradient in the backward; native adds one fp32 temporary in the backward. Transformer Engine
    writes the gradient into the logits during the forward."""
    fusion = shape.model.cross_entropy_fusion
    softmax = Tensor(f"softmax{suffix}", logits.shape, DType.FP32)
    in_place = fusion is CrossEntropyFusion.TE
    targets = Tensor(
        f"masked_target{suffix}", (shape.micro_batch_size * shape.local_seq,), DType.INT64
    )
    target_mask = Tensor(f"target_mask{suffix}", targets.shape, DType.BOOL)
    loss = Tensor(f"loss{suffix}", (shape.micro_batch_size, shape.local_seq), DType.FP32)
    native = fusion is CrossEntropyFusion.NATIVE
    elements = logits.num_bytes // logits.dtype.itemsize
    # the rows' numbers, the largest logits, the predicted ones before they are copied, and the
    # labels with the sequence first, which is a copy of several sequences
    labels = DType.INT64.itemsize if shape.micro_batch_size > 1 else 0
    rows = shape.tokens * (labels + DType.INT64.itemsize + 2 * DType.FP32.itemsize)
    return Operator(
        f"cross_entropy{suffix}",
        Module.LOSS,
        (logits,),
        (loss,),
        saved=(logits,) if in_place else (softmax, targets, target_mask),
        gradient_in_saved=in_place,
        forward_workspace=0 if in_place else rows,
        workspace_without_grad=0 if in_place else rows + softmax.num_bytes,
        backward_workspace=softmax.num_bytes if native else 0,
        extra_forward_bytes=_CROSS_ENTROPY_TRAFFIC[fusion][0] * elements,
        extra_backward_bytes=_CROSS_ENTROPY_TRAFFIC[fusion][1] * elements,
    )


_CROSS_ENTROPY_TRAFFIC = {
    CrossEntropyFusion.NONE: (32, 8),
    CrossEntropyFusion.NATIVE: (20, 0),
    CrossEntropyFusion.TE: (4, 0),
}
"""Memory traffic per logit, forward and backward, beyond one pass over what is read and kept.

Passes over fp32 copies, 4 bytes each. Unfused: the copy, maximum (1), subtraction, exponential and
division in place (2 each), sum (1); back: scaling in place and a 16-bit copy (2). Native fuses
subtraction, exponential and their copies. Transformer Engine reads the logits twice."""


_PROJECTION = Module.MTP_PROJECTION


def mtp_projection(shape: RankShape, layer_input: str) -> tuple[tuple[Operator, ...], Tensor]:
    """What comes before the transformer layer, and that layer's input under the name `layer_input`.

    The next tokens are looked up in the embedding, normalized (enorm), joined to the normalized
    (hnorm) hidden states of the depth before, and projected from 2 x hidden_size to hidden_size:
    column-parallel, then gathered for the whole sequence, of which SP takes a view."""
    embedded, hidden = shape.hidden("mtp_embedding"), shape.hidden("mtp_input")
    joined = Tensor("mtp_joined", (*hidden.shape[:-1], 2 * shape.model.hidden_size), shape.dtype)
    normed = shape.hidden("enorm_out"), shape.hidden("hnorm_out")
    before = (
        _embedding(shape, embedded),
        replace(norm_operator(shape, _PROJECTION, embedded, normed[0]), name="enorm"),
        replace(norm_operator(shape, _PROJECTION, hidden, normed[1]), name="hnorm"),
        Operator("join", _PROJECTION, normed, (joined,)),
    )
    projection, whole = _eh_proj(shape, joined, layer_input)
    if not cuts_sequence(shape):
        return (*before, *projection), whole
    part = whole.view(layer_input, hidden.shape)
    return (*before, *projection, scatter_sequence(shape, _PROJECTION, whole, part)), part


def _embedding(shape: RankShape, output: Tensor) -> Operator:
    """The lookup shares its weight with the model's embedding; the shifted token ids are kept where
    TP ranks do not keep masked ones."""
    lookup = embedding_lookup(shape, output)
    saved = lookup.saved
    if shape.tp == 1:
        tokens = shape.micro_batch_size, shape.local_seq
        saved = (Tensor("mtp_input_ids", tokens, DType.INT64), *saved)
    return replace(lookup, saved=saved, weights=())


def _eh_proj(
    shape: RankShape, joined: Tensor, layer_input: str
) -> tuple[tuple[Operator, ...], Tensor]:
    hidden = shape.model.hidden_size
    whole = shape.activation("eh_proj_out" if cuts_sequence(shape) else layer_input, hidden)
    if shape.tp == 1:
        linear = column_parallel_linear(shape, "eh_proj", _PROJECTION, joined, whole, bias=False)
        return (linear,), whole
    part = shape.activation("eh_proj_shard", hidden // shape.tp)
    linear = column_parallel_linear(shape, "eh_proj", _PROJECTION, joined, part, bias=False)
    return (linear, gather_width(_PROJECTION, part, whole)), whole


def mtp_final_layernorm(shape: RankShape, source: Tensor) -> Operator:
    """The depth's own norm, before the output layer that all depths share."""
    return norm_operator(shape, Module.MTP_FINAL_LAYERNORM, source, shape.hidden("mtp_output"))
