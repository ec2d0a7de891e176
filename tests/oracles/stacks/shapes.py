"""Shapes of the oracle: real widths of published models, short sequences."""

from typing import Any

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import (
    Activation,
    Normalization,
    NormPlacement,
    PositionEmbedding,
    ScoreFunction,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec

LLAMA3_8B = ModelSpec(
    name="llama3_8b",
    num_layers=4,
    hidden_size=4096,
    ffn_hidden_size=14336,
    num_attention_heads=32,
    num_query_groups=8,
    kv_channels=128,
    vocab_size=128256,
    max_position_embeddings=8192,
    transformer_impl=TransformerImpl.TORCH,
)
LLAMA2_7B = replace(LLAMA3_8B, name="llama2_7b", ffn_hidden_size=11008, num_query_groups=32)
QWEN3_8B = replace(LLAMA3_8B, name="qwen3_8b", ffn_hidden_size=12288, qk_layernorm=True)
GPT2_XL = ModelSpec(
    name="gpt2_xl",
    num_layers=4,
    hidden_size=1600,
    ffn_hidden_size=6400,
    num_attention_heads=25,
    num_query_groups=25,
    kv_channels=64,
    vocab_size=50257,
    max_position_embeddings=1024,
    normalization=Normalization.LAYER_NORM,
    activation=Activation.GELU,
    add_bias_linear=True,
    position_embedding_type=PositionEmbedding.LEARNED,
    hidden_dropout=0.1,
    attention_dropout=0.1,
    transformer_impl=TransformerImpl.TORCH,
)
_GEMMA: dict[str, Any] = {
    "activation": Activation.GEGLU,
    "norm_placement": NormPlacement.PRE_AND_POST,
    "layernorm_zero_centered_gamma": True,
    "apply_embedding_scaling": True,
    "share_embeddings_and_output_weights": True,
    "transformer_impl": TransformerImpl.TRANSFORMERS,
}
GEMMA2_9B = ModelSpec(
    name="gemma2_9b",
    num_layers=4,
    hidden_size=3584,
    ffn_hidden_size=14336,
    num_attention_heads=16,
    num_query_groups=8,
    kv_channels=256,
    vocab_size=256000,
    max_position_embeddings=8192,
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    window_size=128,
    window_attn_skip_freq=LayerPattern("2"),
    **_GEMMA,
)
GEMMA3_27B = ModelSpec(
    name="gemma3_27b",
    num_layers=4,
    hidden_size=5376,
    ffn_hidden_size=21504,
    num_attention_heads=32,
    num_query_groups=16,
    kv_channels=128,
    vocab_size=262144,
    max_position_embeddings=131072,
    qk_layernorm=True,
    window_size=128,
    window_attn_skip_freq=LayerPattern("2"),
    **_GEMMA,
)
OLMO2_32B = replace(
    LLAMA3_8B,
    name="olmo2_32b",
    hidden_size=5120,
    ffn_hidden_size=27648,
    num_attention_heads=40,
    transformer_impl=TransformerImpl.TRANSFORMERS,
    norm_placement=NormPlacement.POST,
    qk_layernorm=True,
    qk_layernorm_across_heads=True,
)
QWEN3_30B_A3B = replace(
    LLAMA3_8B,
    name="qwen3_30b_a3b",
    hidden_size=2048,
    ffn_hidden_size=6144,
    num_query_groups=4,
    qk_layernorm=True,
    num_moe_experts=128,
    moe_ffn_hidden_size=768,
    moe_router_topk=8,
    moe_grouped_gemm=True,
)
DEEPSEEK_V3 = replace(
    LLAMA3_8B,
    name="deepseek_v3",
    hidden_size=7168,
    ffn_hidden_size=18432,
    num_attention_heads=128,
    num_query_groups=128,
    multi_latent_attention=True,
    q_lora_rank=1536,
    num_moe_experts=64,
    moe_ffn_hidden_size=2048,
    moe_router_topk=8,
    moe_grouped_gemm=True,
    moe_shared_expert_intermediate_size=2048,
    moe_router_score_function=ScoreFunction.SIGMOID,
    moe_router_enable_expert_bias=True,
    moe_router_num_groups=8,
    moe_router_group_topk=4,
)
"""With a quarter of its experts."""
MIXTRAL_8X7B = replace(
    LLAMA3_8B,
    name="mixtral_8x7b",
    num_moe_experts=8,
    moe_ffn_hidden_size=14336,
    moe_router_topk=2,
    moe_grouped_gemm=True,
)
VARIANTS = {model.name: model for model in (GEMMA2_9B, GEMMA3_27B, OLMO2_32B)}
"""What transformers alone has; windows are short enough to matter here."""
MODELS = {model.name: model for model in (LLAMA3_8B, LLAMA2_7B, QWEN3_8B, GPT2_XL)}


def shape_of(model: ModelSpec, impl: TransformerImpl, *, seq: int = 512, mbs: int = 2) -> RankShape:
    """One rank with `model` as `impl` writes it."""
    chosen = replace(model, transformer_impl=impl)
    return RankShape(model=chosen, seq_length=seq, micro_batch_size=mbs)
