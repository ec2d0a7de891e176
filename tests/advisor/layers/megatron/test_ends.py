from math import prod

import pytest

from advisor.layers.operators import Module
from advisor.layers.shape import embedding_weights, output_weights
from advisor.layers.transformer import embedding_operators, head_operators
from tests.advisor.toys import GPT, HIDDEN, saved_bytes, toy_shape

TOKENS = 32 * 2
LOGITS = TOKENS * 504  # 1000 padded to 1008 over two ranks
WORDS = 504 * 64 * 2


def test_embedding_weights_pad_the_vocabulary_and_do_not_cut_positions() -> None:
    assert [w.shape for w in embedding_weights(toy_shape())] == [(504, 64)]
    assert [w.shape for w in embedding_weights(toy_shape(GPT))] == [(504, 64), (32, 64)]


def test_the_output_layer_is_the_embedding_where_tied_and_on_the_same_rank() -> None:
    def elements(*, holds_embedding: bool, **changes: object) -> int:
        weights = output_weights(toy_shape(**changes), holds_embedding=holds_embedding)
        return sum(prod(weight.shape) for weight in weights)

    tied = {"share_embeddings_and_output_weights": True}
    assert elements(holds_embedding=True) == elements(holds_embedding=False) == 64 + 504 * 64
    assert elements(holds_embedding=False, **tied) == 64 + 504 * 64
    assert elements(holds_embedding=True, **tied) == 64
    assert elements(holds_embedding=True, **tied, normalization="LayerNorm") == 128


@pytest.mark.parametrize(
    ("changes", "workspace"),
    [
        # the gradient is gathered, the mask used, the words' gradient is there
        ({}, HIDDEN - TOKENS + WORDS),
        ({"sequence_parallel": False}, WORDS - TOKENS),
        ({"sequence_parallel": False, "tensor_model_parallel_size": 1}, 1000 * 64 * 2),
        # with few words the clone that zeroes foreign tokens is larger
        ({"vocab_size": 64}, HIDDEN - TOKENS + HIDDEN),
    ],
)
def test_embedding_backward(changes: dict[str, object], workspace: int) -> None:
    (embedding,) = embedding_operators(toy_shape(**changes))
    assert embedding.backward_workspace == workspace


def test_cross_entropy_of_transformer_engine_works_in_the_logits() -> None:
    saved = saved_bytes(head_operators(toy_shape(cross_entropy_fusion="te")))
    assert saved["logits"] == 2 * LOGITS
    assert "softmax" not in saved


def test_native_cross_entropy_has_an_fp32_temporary_in_the_backward() -> None:
    for fusion, workspace in (("none", 0), ("native", 4 * LOGITS), ("te", 0)):
        loss = head_operators(toy_shape(cross_entropy_fusion=fusion))[-1]
        assert loss.module is Module.LOSS
        assert loss.backward_workspace == workspace


def test_cross_entropy_copies_the_labels_of_several_sequences() -> None:
    """Row numbers (8 bytes), largest logits and predicted ones (4 each); labels are 8 more."""
    several, one = (head_operators(toy_shape(micro_batch_size=b))[-1] for b in (2, 1))
    assert several.forward_workspace == 24 * TOKENS
    assert one.forward_workspace == 16 * TOKENS // 2
