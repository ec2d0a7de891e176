"""Parameter counts, as model cards print them: a fold over the operators' weights."""

from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.layers.ends import embedding_weights, output_weights
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of a whole model by where they stand; the vocabulary is not padded.

    embedding: word embeddings and learned positions. layers: all transformer layers.
    output: final norm, and the output layer where it is not the word embedding.
    """

    embedding: int
    layers: int
    output: int

    @property
    def total(self) -> int:
        """Sum of the three."""
        return self.embedding + self.layers + self.output


@lru_cache(maxsize=256)
def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Parameters of `spec` on one rank that holds everything.

    Megatron pads the vocabulary to a multiple; published counts do not, so the multiple is 1 here.
    """
    unpadded = replace(spec, make_vocab_size_divisible_by=1)
    shape = RankShape(model=unpadded, seq_length=1, micro_batch_size=1)
    layer = sum(_elements(operator.weights) for operator in transformer_layer(shape))
    return ParameterCount(
        embedding=_elements(embedding_weights(shape)),
        layers=spec.num_layers * layer,
        output=_elements(output_weights(shape, holds_embedding=True)),
    )


def count_parameters(spec: ModelSpec) -> int:
    """Parameters of the whole model, embeddings counted once where they are tied."""
    return parameter_count(spec).total


def _elements(weights: tuple[Weight, ...]) -> int:
    return sum(weight.num_elements for weight in weights)
