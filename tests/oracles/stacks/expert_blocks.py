"""Blocks with experts of torchtitan and transformers for one RankShape."""

from typing import Any

import torch
from torch import nn

from advisor.layers.shape import RankShape
from advisor.layers.torchtitan.moe import normalizes
from advisor.models.layer_kind import FeedForward
from advisor.models.spec import ModelSpec

from .titan import import_titan

Block = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def titan_experts(model: ModelSpec) -> Any:
    """torchtitan's MoEArgs of `model`."""
    width = model.moe_shared_expert_intermediate_size or 0
    return import_titan("models.moe").MoEArgs(
        num_experts=model.num_moe_experts,
        top_k=model.moe_router_topk,
        num_shared_experts=width // model.expert_ffn_hidden_size,
        score_func=str(model.moe_router_score_function),
        route_norm=normalizes(model),
        score_before_experts=model.moe_apply_probs_on_input,
        num_expert_groups=model.moe_router_num_groups,
        num_limited_groups=model.moe_router_group_topk,
        use_grouped_mm=model.moe_grouped_gemm,
    )


def titan_arguments(shape: RankShape) -> Any:
    """torchtitan's Qwen3ModelArgs of the shape's model."""
    model = shape.model
    return import_titan("models.qwen3.model.args").Qwen3ModelArgs(
        dim=model.hidden_size,
        n_layers=model.num_layers,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.num_query_groups,
        head_dim=model.kv_channels,
        vocab_size=model.vocab_size,
        hidden_dim=model.ffn_hidden_size,
        qk_norm=True,
        moe_enabled=True,
        moe_inter_dim=model.expert_ffn_hidden_size,
        moe_args=titan_experts(model),
        max_seq_len=shape.seq_length,
    )


def titan_block(shape: RankShape) -> Block:
    """torchtitan's block with experts of Qwen3, or of DeepSeek-V3 where attention is latent."""
    if shape.model.multi_latent_attention:
        return _deepseek(shape)
    package = import_titan("models.qwen3.model.model")
    cache = torch.empty(shape.seq_length, 2 * shape.model.kv_channels, dtype=torch.float32)
    return package.TransformerBlock(0, titan_arguments(shape)), (cache, None), {}


def _deepseek(shape: RankShape) -> Block:
    """Layer 0 where the model begins with a dense one, else one after those."""
    model = shape.model
    package, args = (import_titan(f"models.deepseek_v3.model.{part}") for part in ("model", "args"))
    dense = model.layer_kinds[0].feed_forward is FeedForward.DENSE
    arguments = args.DeepSeekV3ModelArgs(
        dim=model.hidden_size,
        inter_dim=model.ffn_hidden_size,
        n_layers=1,
        moe_inter_dim=model.expert_ffn_hidden_size,
        n_dense_layers=int(dense),
        n_heads=model.num_attention_heads,
        q_lora_rank=model.q_lora_rank or 0,
        kv_lora_rank=model.kv_lora_rank,
        qk_nope_head_dim=model.qk_head_dim,
        qk_rope_head_dim=model.qk_pos_emb_head_dim,
        v_head_dim=model.v_head_dim,
        moe_args=titan_experts(model),
    )
    arguments.moe_impl = "standard"
    frequencies = model.qk_pos_emb_head_dim // 2
    table = torch.empty(shape.seq_length, frequencies, dtype=torch.complex64)
    return package.TransformerBlock(0, arguments), (table, None), {}


def transformers_block(shape: RankShape) -> Block:
    """Mixtral's decoder layer, or Qwen3-MoE's where q and k are normed."""
    from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

    model = shape.model
    layer = Qwen3MoeDecoderLayer if model.qk_layernorm else MixtralDecoderLayer
    tables = tuple(torch.empty(1, shape.seq_length, model.kv_channels) for _ in range(2))
    return layer(transformers_config(model), 0), (), {"position_embeddings": tables}


def transformers_config(model: ModelSpec) -> Any:
    """The configuration of Mixtral or Qwen3-MoE with the model's shape."""
    from transformers import MixtralConfig, Qwen3MoeConfig

    shared: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "head_dim": model.kv_channels,
        "num_key_value_heads": model.num_query_groups,
        "vocab_size": model.vocab_size,
        "num_experts_per_tok": model.moe_router_topk,
        "use_cache": False,
        **TOKENS,
    }
    config: Any
    if model.qk_layernorm:
        config = Qwen3MoeConfig(
            **shared,
            moe_intermediate_size=model.expert_ffn_hidden_size,
            num_experts=model.num_moe_experts,
            norm_topk_prob=True,
        )
    else:
        config = MixtralConfig(
            **shared,
            intermediate_size=model.expert_ffn_hidden_size,
            num_local_experts=model.num_moe_experts,
        )
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm" if model.moe_grouped_gemm else "eager"
    return config
