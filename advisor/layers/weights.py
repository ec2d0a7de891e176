"""Weights that every family of layers has alike: of norms, of the vocabulary."""

from msgspec.structs import replace

from advisor.job.tuning import EMBEDDINGS, OUTPUT_LAYERS
from advisor.layers.operators import Module, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import Normalization, PositionEmbedding
from advisor.models.spec import ModelSpec


def norm_weights(shape: RankShape, name: str, width: int) -> tuple[Weight, ...]:
    """Scale [width] of a norm, and LayerNorm's bias."""
    scale = Weight(f"{name}.weight", (width,))
    if shape.model.normalization is Normalization.LAYER_NORM:
        return scale, Weight(f"{name}.bias", (width,))
    return (scale,)


def embedding_weights(shape: RankShape) -> tuple[Weight, ...]:
    """Word embeddings [padded vocabulary / tp, hidden_size]; learned positions are not cut, nor is
    what makes the layers' own inputs: embeddings, a projection and a norm."""
    model, tuning = shape.model, shape.tuning
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    weights = [Weight("word_embeddings.weight", (rows, model.hidden_size), True)]
    if model.position_embedding_type is PositionEmbedding.LEARNED:
        rows = model.max_position_embeddings
        weights.append(Weight("position_embeddings.weight", (rows, model.hidden_size)))
    weights += per_layer_weights(model)
    return _tuned(tuple(weights), weights[0], tuning.freezes_embedding, tuning.saves(*EMBEDDINGS))


def tied_weight_gradient(shape: RankShape) -> int:
    """A tied output layer's gradient tensor, which waits for the embedding's in the same pass; none
    where it is not trained."""
    weight = embedding_weights(shape)[0]
    if weight.frozen or not shape.model.share_embeddings_and_output_weights:
        return 0
    return shape.weight_gradient_bytes(weight.num_elements)


def _tuned(
    weights: tuple[Weight, ...], main: Weight, frozen: bool, saved: bool
) -> tuple[Weight, ...]:
    """`weights`, `frozen` or not, and of the `main` one a copy that is trained where it is
    `saved` whole."""
    copy = (replace(main, name=f"{main.name} (trained copy)"),) if saved else ()
    return (*(replace(one, frozen=True) for one in weights), *copy) if frozen else weights


def per_layer_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Embeddings of all layers together, the projection of the word embeddings, and its norm."""
    own, rows = model.hidden_size_per_layer_input, model.vocab_size_per_layer_input
    if own is None:
        return ()
    width = model.num_layers * own
    return (
        Weight("per_layer_embeddings.weight", (rows or model.vocab_size, width)),
        Weight("per_layer_model_projection.weight", (width, model.hidden_size), in_linear=True),
        Weight("per_layer_projection_norm.weight", (own,)),
    )


def output_weights(shape: RankShape, *, holds_embedding: bool) -> tuple[Weight, ...]:
    """Final norm, and the output layer unless it is the embedding of the same rank. Under
    multi-token prediction the norm is a member of the chunk with the last layer."""
    model, tuning, main = shape.model, shape.tuning, output_weight(shape)
    weights: tuple[Weight, ...] = ()
    if model.mtp_num_layers is None:
        weights += norm_weights(shape, Module.FINAL_LAYERNORM, model.hidden_size)
    if not (model.share_embeddings_and_output_weights and holds_embedding):
        weights += (main,)
    if tuning.freeze_output and not tuning.trains_parts:
        return tuple(replace(one, frozen=one == main) for one in weights)
    return _tuned(weights, main, tuning.trains_parts, tuning.saves(*OUTPUT_LAYERS))


def output_weight(shape: RankShape) -> Weight:
    """The output layer [padded vocabulary / tp, hidden_size]."""
    model = shape.model
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    return Weight("output_layer.weight", (rows, model.hidden_size), True, True)


def trained_output_weight(shape: RankShape) -> Weight:
    """The same, frozen where neither it nor a copy of it is trained."""
    return replace(output_weight(shape), frozen=not shape.tuning.trains_output)
