"""Shapes of the oracle: real widths of published models, short sequences."""

from dataclasses import replace

from advisor.layers.shape import RankShape
from advisor.models.spec import (
    Activation,
    ModelSpec,
    Normalization,
    PositionEmbedding,
    TransformerImpl,
)

LLAMA3_8B = ModelSpec(
    name="llama3_8b", num_layers=4, hidden_size=4096, ffn_hidden_size=14336,
    num_attention_heads=32, num_query_groups=8, kv_channels=128, vocab_size=128256,
    max_position_embeddings=8192, transformer_impl=TransformerImpl.TORCH,
)  # fmt: skip
LLAMA2_7B = replace(LLAMA3_8B, name="llama2_7b", ffn_hidden_size=11008, num_query_groups=32)
QWEN3_8B = replace(LLAMA3_8B, name="qwen3_8b", ffn_hidden_size=12288, qk_layernorm=True)
GPT2_XL = ModelSpec(
    name="gpt2_xl", num_layers=4, hidden_size=1600, ffn_hidden_size=6400,
    num_attention_heads=25, num_query_groups=25, kv_channels=64, vocab_size=50257,
    max_position_embeddings=1024, normalization=Normalization.LAYER_NORM,
    activation=Activation.GELU, add_bias_linear=True,
    position_embedding_type=PositionEmbedding.LEARNED, hidden_dropout=0.1, attention_dropout=0.1,
    transformer_impl=TransformerImpl.TORCH,
)  # fmt: skip
MODELS = {model.name: model for model in (LLAMA3_8B, LLAMA2_7B, QWEN3_8B, GPT2_XL)}


def shape_of(model: ModelSpec, impl: TransformerImpl, *, seq: int = 512, mbs: int = 2) -> RankShape:
    """One rank with `model` as `impl` writes it."""
    chosen = replace(model, transformer_impl=impl)
    return RankShape(model=chosen, seq_length=seq, micro_batch_size=mbs)
