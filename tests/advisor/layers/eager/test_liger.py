"""Bytes that Liger's kernels keep in transformers' layers, from their sources by hand."""

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_groups, transformer_layer
from advisor.memory.liveness import footprint
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model

TOKENS = 8192
HIDDEN, FFN, VOCABULARY = 4096, 14336, 128256
MODEL = replace(
    load_model("llama3_8b"),
    transformer_impl=TransformerImpl.TRANSFORMERS,
    make_vocab_size_divisible_by=1,
)
SHAPE = RankShape(model=MODEL, seq_length=TOKENS, micro_batch_size=1, use_liger_kernel=True)


def test_a_layer() -> None:
    """Two norms keep their inputs and fp32 statistics; q, k and v come of the norm's output, and
    are rotated where they lie; attention its output and statistics; gate and up, their product."""
    hidden, keys = 2 * HIDDEN, 2 * 1024
    norms = 2 * (hidden + 4)
    attention = hidden + (hidden + 2 * keys) + hidden + 4 * 32
    mlp = hidden + 3 * 2 * FFN
    assert footprint(transformer_layer(SHAPE), ()).kept == TOKENS * (norms + attention + mlp)


def test_the_loss_keeps_gradients_and_no_logits() -> None:
    """ceil(128256 / 4096) = 32 pieces of 256 tokens, a power of two; the gradient of the
    weight is added to in place."""
    ((name, operators),) = head_groups(SHAPE)
    loss = operators[-1]
    assert name == "head"
    assert loss.forward_workspace == 256 * VOCABULARY * 2
    kept = 2 * TOKENS * HIDDEN + 2 * VOCABULARY * HIDDEN
    assert sum(tensor.num_bytes for tensor in loss.saved) == kept


def test_a_tiled_mlp_keeps_its_input_alone() -> None:
    tiled = replace(SHAPE, tiled_mlp=True)
    less = TOKENS * 3 * 2 * FFN
    kept = footprint(transformer_layer(SHAPE), ()).kept - less
    assert footprint(transformer_layer(tiled), ()).kept == kept
