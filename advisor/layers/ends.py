"""Before the first layer and after the last: embeddings, final norm, output layer, loss.

Source: megatron-core 0.16.1 models/gpt/gpt_model.py, models/common/embeddings,
tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py.
"""

from functools import lru_cache

from advisor.dtypes import DType
from advisor.layers.norm import norm_operator
from advisor.layers.operators import (
    ComputeUnit,
    Gemm,
    Module,
    Operator,
    Tensor,
    Weight,
)
from advisor.layers.shape import RankShape
from advisor.models.spec import CrossEntropyFusion, Normalization, PositionEmbedding


def embedding_weights(shape: RankShape) -> tuple[Weight, ...]:
    """Word embeddings [padded vocabulary / tp, hidden_size]; learned positions are not cut."""
    model = shape.model
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    weights = [Weight("word_embeddings.weight", (rows, model.hidden_size), True)]
    if model.position_embedding_type is PositionEmbedding.LEARNED:
        rows = model.max_position_embeddings
        weights.append(Weight("position_embeddings.weight", (rows, model.hidden_size)))
    return tuple(weights)


def output_weights(shape: RankShape, *, holds_embedding: bool) -> tuple[Weight, ...]:
    """Final norm, and the output layer unless it is the embedding of the same rank."""
    model = shape.model
    weights = [Weight("final_layernorm.weight", (model.hidden_size,))]
    if model.normalization is Normalization.LAYER_NORM:
        weights.append(Weight("final_layernorm.bias", (model.hidden_size,)))
    if not (model.share_embeddings_and_output_weights and holds_embedding):
        weights.append(_output_weight(shape))
    return tuple(weights)


def _output_weight(shape: RankShape) -> Weight:
    model = shape.model
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    return Weight("output_layer.weight", (rows, model.hidden_size), True, True)


@lru_cache(maxsize=4096)
def embedding_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Embedding lookup, and its dropout where hidden_dropout > 0.

    A vocabulary cut by TP keeps the masked token ids and their mask (tensor_parallel/layers.py).
    """
    weights = embedding_weights(shape)
    output = shape.hidden("embedding_output")
    dropout = shape.model.hidden_dropout > 0
    mask = Tensor("embedding_dropout_mask", output.shape, DType.BOOL)
    gradients = [weight.num_elements * shape.dtype.itemsize for weight in weights]
    saved = [
        Tensor("masked_input", (shape.micro_batch_size, shape.local_seq), DType.INT64),
        Tensor("input_mask", (shape.micro_batch_size, shape.local_seq), DType.BOOL),
    ]
    if shape.tp == 1:
        saved = []
    if dropout:
        saved.append(mask)
    return (
        Operator(
            name="embedding",
            module=Module.EMBEDDING,
            unit=ComputeUnit.BANDWIDTH,
            inputs=(),
            outputs=(output,),
            saved=tuple(saved),
            weights=weights,
            forward_collectives=shape.row_parallel_forward(),
            backward_collectives=shape.row_parallel_backward(),
            forward_workspace=shape.row_parallel_workspace,
            backward_workspace=_embedding_backward_workspace(
                shape, gradients, sum(t.num_bytes for t in saved if t.dtype is DType.BOOL)
            ),
            extra_backward_bytes=2 * sum(gradients),
        ),
    )


def _embedding_backward_workspace(shape: RankShape, gradients: list[int], masks: int) -> int:
    """Bytes beside the saved ids and the output's gradient at the end of a backward.

    The whole sequence's gradient has taken the output's place, the masks have been used. A clone of
    it zeroes foreign tokens, then comes the word embeddings' gradient: a dense tensor in the
    compute type, as no GEMM makes it. That of learned positions was accumulated before.
    """
    gathered = shape.gathered_hidden_bytes
    output = shape.hidden("embedding_output").num_bytes
    words, *positions = gradients
    clone = gathered if shape.tp > 1 else 0
    return gathered - output - masks + max(words, clone, *positions, 0)


@lru_cache(maxsize=4096)
def head_operators(shape: RankShape) -> tuple[Operator, ...]:
    """Final norm, output layer and cross entropy of the last stage."""
    hidden = shape.hidden("decoder_output")
    normed = shape.hidden("final_layernorm_out")
    rows = _output_weight(shape).shape[0]
    logits = shape.activation("logits", rows)
    return (
        norm_operator(shape, Module.FINAL_LAYERNORM, hidden, normed),
        Operator(
            name="output_layer",
            module=Module.OUTPUT_LAYER,
            unit=ComputeUnit.GEMM,
            inputs=(normed,),
            outputs=(logits,),
            saved=(normed,),
            weights=(_output_weight(shape),),
            gemm=Gemm(shape.tokens, rows, shape.model.hidden_size),
            forward_collectives=shape.column_parallel_forward(),
            backward_collectives=shape.column_parallel_backward(),
            backward_workspace=shape.row_parallel_workspace
            + shape.weight_gradient_bytes(rows * shape.model.hidden_size),
        ),
        _cross_entropy(shape, logits),
    )


def _cross_entropy(shape: RankShape, logits: Tensor) -> Operator:
    """Vocabulary-parallel cross entropy: what it keeps of the logits [s / cp, b, vocabulary / tp].

    Unfused and native: softmax in fp32, beside the 16-bit logits in the forward and their 16-bit
    gradient in the backward; native adds one fp32 temporary in the backward. Transformer Engine
    writes the gradient into the logits during the forward.
    """
    fusion = shape.model.cross_entropy_fusion
    softmax = Tensor("softmax", logits.shape, DType.FP32)
    in_place = fusion is CrossEntropyFusion.TE
    targets = Tensor("masked_target", (shape.micro_batch_size * shape.local_seq,), DType.INT64)
    target_mask = Tensor("target_mask", targets.shape, DType.BOOL)
    loss = Tensor("loss", (shape.micro_batch_size, shape.local_seq), DType.FP32)
    native = fusion is CrossEntropyFusion.NATIVE
    elements = logits.num_bytes // logits.dtype.itemsize
    # the rows' numbers, the largest logits, the predicted ones before they are copied, and the
    # labels with the sequence first, which is a copy of several sequences
    labels = DType.INT64.itemsize if shape.micro_batch_size > 1 else 0
    rows = shape.tokens * (labels + DType.INT64.itemsize + 2 * DType.FP32.itemsize)
    return Operator(
        name="cross_entropy",
        module=Module.LOSS,
        unit=ComputeUnit.BANDWIDTH,
        inputs=(logits,),
        outputs=(loss,),
        saved=(logits,) if in_place else (softmax, targets, target_mask),
        gradient_in_saved=in_place,
        forward_workspace=0 if in_place else rows,
        backward_workspace=softmax.num_bytes if native else 0,
        extra_forward_bytes=_CROSS_ENTROPY_TRAFFIC[fusion][0] * elements,
        extra_backward_bytes=_CROSS_ENTROPY_TRAFFIC[fusion][1] * elements,
    )


_CROSS_ENTROPY_TRAFFIC = {
    CrossEntropyFusion.NONE: (32, 8), CrossEntropyFusion.NATIVE: (20, 0),
    CrossEntropyFusion.TE: (4, 0),
}  # fmt: skip
"""Memory traffic per logit, forward and backward, beyond one pass over what is read and kept.

Passes over fp32 copies, 4 bytes each. Unfused: the copy, maximum (1), subtraction, exponential and
division in place (2 each), sum (1); back: scaling in place and a 16-bit copy (2). Native fuses
subtraction, exponential and their copies. Transformer Engine reads the logits twice."""
