"""Options of attention and of other mixers: latent, with windows or sinks, delta nets, Mamba-2;
multi-token prediction, and patterns of layers."""

from typing import Final

from advisor.frameworks.megatron.options import values
from advisor.frameworks.option import (
    CALLABLE,
    DIFFERENT,
    ON_LINE,
    Emitted,
    Options,
    When,
    harmless,
    option,
    refused,
    unpriced,
)

_LATENT: Final = Emitted(line=When(always=True, only_if=values.is_latent))
_WINDOWED: Final = Emitted(line=When(only_if=lambda job: job.model.window_size is not None))
_INDEXER: Final = "values of the indexer's scores"
_SHARED: Final = "layers that share what one indexer finds are not modelled"
_ROTARY: Final = "values of the rotary table"
_SHAPES: Final = "layers of different shapes are not modelled"
_LARGEST_LOGITS: Final = "keeping the largest attention logits is not modelled"


class Attention(Options, title="Attention and multi-token prediction"):
    """Options of attention and multi-token prediction. Megatron-LM's arguments default to other
    ranks of latent attention than its configuration does, so all are written out."""

    multi_latent_attention: bool = option(False, "model", ON_LINE)
    q_lora_rank: int | None = option(None, "model", config=512, line=When(only_if=values.is_latent))
    kv_lora_rank: int = option(512, "model", _LATENT, launcher=32)
    qk_head_dim: int = option(128, "model", _LATENT)
    qk_pos_emb_head_dim: int = option(64, "model", _LATENT)
    v_head_dim: int = option(128, "model", _LATENT)
    rope_type: str = option("yarn", "model", _LATENT)
    window_size: str | None = option(
        None, "model", ON_LINE, value=values.window_pair, means=values.first_number
    )
    window_attn_skip_freq: str | None = option(None, "model", _WINDOWED, strict=True, since="0.15")
    no_rope_freq: str | None = option(None, "model", ON_LINE, strict=True, since="0.13")
    softmax_type: str = option("vanilla", "model", ON_LINE, strict=True, since="0.15")
    mtp_num_layers: int | None = option(
        None, "model", ON_LINE, recipe=DIFFERENT, in_nemo=False, since="0.12"
    )
    mtp_loss_scaling_factor: float = harmless(0.1, since="0.12", older={"0.15": None})
    mtp_use_repeated_layer: bool = refused(
        False, "multi-token prediction depths that share one layer are not modelled", since="0.17"
    )
    mtp_hybrid_override_pattern: str | None = refused(
        None, "multi-token prediction of hybrid layers is not modelled", since="0.17"
    )
    mtp_detach_heads: bool = unpriced(
        False, "the backward of multi-token prediction is modelled in full", since="0.19"
    )
    mla_down_proj_fusion: bool = unpriced(
        False, "the two down projections are modelled separately", since="0.17"
    )
    cache_mla_latents: bool = harmless(False, "used only for inference", since="0.14")
    softmax_scale: float | None = harmless(None, "", flag="")
    attention_output_gate: bool = option(False, "model", ON_LINE, strict=True, since="0.16")
    experimental_attention_variant: str | None = option(
        None,
        "model",
        ON_LINE,
        value=values.attention_variant,
        means=values.variant_named,
        strict=True,
        since="0.16",
    )
    experimental_attention_variant_loss_scale_func: object = harmless(
        None, CALLABLE, flag="", since="0.19"
    )
    dsa_indexer_n_heads: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_head_dim: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_topk: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_loss_coeff: float | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_use_sparse_loss: bool = harmless(False, "values of its loss", since="0.16")
    dsa_indexer_topk_freq: int = refused(1, _SHARED, since="0.19")
    dsa_indexer_skip_topk_offset: int = refused(0, _SHARED, since="0.19")
    dsa_kernel_backend: str = unpriced("none", "modelled as PyTorch computes it", since="0.19")
    dsa_indexer_rope_interleaved: bool = harmless(False, _INDEXER, since="0.19")
    dsa_indexer_rotate_activation: bool = harmless(True, _INDEXER, since="0.19")
    dsa_indexer_scoring_relu: bool = harmless(True, _INDEXER, since="0.19")
    dsa_indexer_k_norm_epsilon: float | None = harmless(None, _INDEXER, since="0.19")
    dsa_indexer_k_norm_fp32: bool = unpriced(False, "modelled in 16 bits", since="0.19")
    qk_clip: bool = unpriced(False, _LARGEST_LOGITS, since="0.16")
    qk_clip_alpha: float = harmless(0.5, "used only with qk_clip", since="0.16")
    qk_clip_threshold: float = harmless(100, "used only with qk_clip", since="0.16")
    log_max_attention_logit: bool = unpriced(False, _LARGEST_LOGITS, since="0.16")
    apply_query_key_layer_scaling: bool = harmless(False)
    flash_attention_version: int | None = harmless(
        None, "attention_backend selects the modelled kernel", since="0.19"
    )
    rotary_base: float = harmless(10000, _ROTARY)
    rotary_scaling_factor: float = harmless(40, _ROTARY)
    original_max_position_embeddings: int = harmless(4096, _ROTARY, since="0.14")
    beta_fast: float = harmless(32, _ROTARY)
    beta_slow: float = harmless(1, _ROTARY)
    mscale: float = harmless(1.0, _ROTARY, older={"0.13": 0.707})
    mscale_all_dim: float = harmless(0.0, _ROTARY, older={"0.13": 0.707})
    mrope_section: str | None = refused(
        None, "multi-axis rotary positions (M-RoPE) are not modelled", since="0.12"
    )
    rotary_interleaved: bool = option(False, "model", ON_LINE)
    rotary_seq_len_interpolation_factor: int | None = harmless(None, _ROTARY)
    use_rope_scaling: bool = harmless(False, _ROTARY)
    rope_scaling_factor: float = harmless(8.0, _ROTARY)


class Hybrid(Options, title="Mixers other than attention"):
    """Options of gated delta nets, Mamba-2 layers and patterns of layers."""

    hybrid_layer_pattern: str | None = option(
        None, "model", ON_LINE, was="hybrid_override_pattern", renamed="0.17"
    )
    linear_attention_freq: str | None = option(None, "model", ON_LINE, since="0.16")
    linear_conv_kernel_dim: int = option(4, "model", ON_LINE, since="0.16")
    linear_key_head_dim: int = option(128, "model", ON_LINE, since="0.16")
    linear_value_head_dim: int = option(128, "model", ON_LINE, since="0.16")
    linear_num_key_heads: int = option(16, "model", ON_LINE, since="0.16")
    linear_num_value_heads: int = option(32, "model", ON_LINE, since="0.16")
    mamba_state_dim: int = option(128, "model", ON_LINE, since="0.12")
    mamba_head_dim: int = option(64, "model", ON_LINE, since="0.12")
    mamba_num_groups: int = option(8, "model", ON_LINE, since="0.12")
    mamba_num_heads: int | None = option(None, "model", ON_LINE, strict=True, since="0.13")
    is_hybrid_model: bool = harmless(False, "follows from hybrid_layer_pattern", since="0.12")
    use_mamba_mem_eff_path: bool = unpriced(
        True,
        "Mamba-2 layers are modelled with their fused kernel",
        off="--disable-mamba-mem-eff-path",
        since="0.13",
    )
    mamba_training_ssm_states_dtype: str | None = unpriced(
        None, "SSM states are modelled in the kernel's type", since="0.19"
    )
    heterogeneous_block_specs: bool = refused(False, _SHAPES, flag="", since="0.12")
    hetereogenous_dist_checkpoint: bool = harmless(
        False, "used only for checkpoints", flag="", since="0.13"
    )
    heterogeneous_layers_config_path: str | None = refused(None, _SHAPES)
    heterogeneous_layers_config_encoded_json: str | None = refused(None, _SHAPES)
    spec: tuple[str, ...] = unpriced((), "layers are modelled as in the built-in layer specs")
