"""Shapes of the oracle: real widths of published models, short sequences."""

from typing import Any

from msgspec.structs import replace

from advisor.layers.shape import RankShape
from advisor.models import options
from advisor.models.layer_pattern import LayerPattern
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from tests.advisor.toys import AS_GPT

_WIDTHS = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
_WIDTHS += ("kv_channels", "vocab_size", "max_position_embeddings")


def widths(name: str, **changes: Any) -> dict[str, Any]:
    """The widths of a preset, with four layers."""
    spec = load_model(name)
    return {"num_layers": 4, **{field: getattr(spec, field) for field in _WIDTHS}, **changes}


LLAMA3_8B = ModelSpec(
    name="llama3_8b", **widths("llama3_8b"), transformer_impl=options.TransformerImpl.TORCH
)
LLAMA2_7B = replace(LLAMA3_8B, name="llama2_7b", ffn_hidden_size=11008, num_query_groups=32)
QWEN3_8B = replace(LLAMA3_8B, name="qwen3_8b", ffn_hidden_size=12288, qk_layernorm=True)
GPT2_XL = ModelSpec(
    name="gpt2_xl",
    **widths("gpt2_xl"),
    **AS_GPT,
    attention_dropout=0.1,
    transformer_impl=options.TransformerImpl.TORCH,
)
_GEMMA: dict[str, Any] = {
    "activation": options.Activation.GEGLU,
    "norm_placement": options.NormPlacement.PRE_AND_POST,
    "layernorm_zero_centered_gamma": True,
    "apply_embedding_scaling": True,
    "share_embeddings_and_output_weights": True,
    "transformer_impl": options.TransformerImpl.TRANSFORMERS,
    "window_size": 128,
    "window_attn_skip_freq": LayerPattern("2"),
}
_CAPPED = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA2_9B = ModelSpec(name="gemma2_9b", **widths("gemma2_9b"), **_CAPPED, **_GEMMA)
GEMMA3_27B = ModelSpec(name="gemma3_27b", **widths("gemma3_27b"), qk_layernorm=True, **_GEMMA)
GEMMA4_31B = replace(
    GEMMA3_27B,
    **{"name": "gemma4_31b", "kv_channels": 256, "global_kv_channels": 512},
    **{"num_global_query_groups": 4, "attention_k_eq_v": True, "v_layernorm": True},
    **{"layernorm_zero_centered_gamma": False, "layer_scalar": True},
    final_logit_softcapping=30.0,
)
GEMMA4_GLOBAL = replace(
    GEMMA4_31B, name="gemma4, no window", window_attn_skip_freq=LayerPattern("[0,1,1,0]")
)
GEMMA4_26B_A4B = replace(
    GEMMA4_31B,
    **{"name": "gemma4_26b_a4b", "hidden_size": 2816, "ffn_hidden_size": 2112},
    **{"num_attention_heads": 16, "num_query_groups": 8, "num_global_query_groups": 2},
    **{"num_moe_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 704},
    **{"moe_shared_expert_intermediate_size": 2112, "moe_separate_norms": True},
    moe_grouped_gemm=True,
)
GEMMA4_E2B = replace(
    GEMMA4_31B,
    **{"name": "gemma4_e2b", "num_layers": 6, "hidden_size": 1536, "ffn_hidden_size": 6144},
    **{"num_attention_heads": 8, "num_query_groups": 1, "num_global_query_groups": None},
    **{"attention_k_eq_v": False, "num_kv_shared_layers": 4, "use_double_wide_mlp": True},
    hidden_size_per_layer_input=256,
)
GEMMA4_E4B = replace(
    GEMMA4_E2B,
    **{"name": "gemma4_e4b", "hidden_size": 2560, "ffn_hidden_size": 10240},
    **{"num_query_groups": 2, "num_kv_shared_layers": 2, "use_double_wide_mlp": False},
)
OLMO2_32B = replace(
    LLAMA3_8B,
    name="olmo2_32b",
    hidden_size=5120,
    ffn_hidden_size=27648,
    num_attention_heads=40,
    transformer_impl=options.TransformerImpl.TRANSFORMERS,
    norm_placement=options.NormPlacement.POST,
    qk_layernorm=True,
    qk_layernorm_across_heads=True,
)


def _experts(name: str, *more: str, **changes: Any) -> ModelSpec:
    """Widths, experts and `more` fields of a preset, otherwise as Llama."""
    spec = load_model(name)
    fields = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", *more)
    fields += ("num_moe_experts", "moe_ffn_hidden_size", "moe_router_topk", "moe_grouped_gemm")
    taken = {field: getattr(spec, field) for field in fields}
    return replace(LLAMA3_8B, name=name, **(taken | changes))


QWEN3_30B_A3B = _experts("qwen3_30b_a3b", "qk_layernorm")
DEEPSEEK_V3 = _experts(
    "deepseek_v3",
    *("multi_latent_attention", "q_lora_rank", "moe_shared_expert_intermediate_size"),
    *("moe_router_score_function", "moe_router_enable_expert_bias"),
    *("moe_router_num_groups", "moe_router_group_topk"),
    num_moe_experts=64,
)
"""With a quarter of its experts."""
MIXTRAL_8X7B = _experts("mixtral_8x7b")
VARIANTS = {model.name: model for model in (GEMMA2_9B, GEMMA3_27B, OLMO2_32B)}
VARIANTS |= {model.name: model for model in (GEMMA4_31B, GEMMA4_GLOBAL, GEMMA4_26B_A4B)}
SHARING = {model.name: model for model in (GEMMA4_E2B, GEMMA4_E4B)}
"""Layers that attend to keys and values of earlier ones, and have inputs of their own."""
"""What transformers alone has; windows are short enough to matter here."""
MODELS = {model.name: model for model in (LLAMA3_8B, LLAMA2_7B, QWEN3_8B, GPT2_XL)}


def shape_of(
    model: ModelSpec, impl: options.TransformerImpl, *, seq: int = 512, mbs: int = 2
) -> RankShape:
    """One rank with `model` as `impl` writes it."""
    chosen = replace(model, transformer_impl=impl)
    return RankShape(model=chosen, seq_length=seq, micro_batch_size=mbs)


def llama_shape(vocabulary: int, *, tied: bool = False, seq: int = 512) -> RankShape:
    """One rank with four layers of transformers' Llama."""
    model = replace(
        LLAMA3_8B,
        num_layers=4,
        vocab_size=vocabulary,
        share_embeddings_and_output_weights=tied,
        gradient_accumulation_fusion=False,
    )
    return shape_of(model, options.TransformerImpl.TRANSFORMERS, seq=seq)
