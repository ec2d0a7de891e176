"""Options of attention and of other mixers: latent, with windows or sinks, delta nets, Mamba-2;
multi-token prediction, and patterns of layers; and of the model's shape, which a command line or a
recipe of ours leaves as it is."""

from typing import Final

from advisor.frameworks.megatron.options import values
from advisor.frameworks.megatron.options.values import activates
from advisor.frameworks.option import (
    CALLABLE,
    DIFFERENT,
    ON_LINE,
    Emitted,
    Options,
    When,
    checked,
    harmless,
    option,
    refused,
    unpriced,
)
from advisor.models.options import Activation

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
    rotary_scaling_factor: float = harmless(40, _ROTARY, launcher=1.0)
    original_max_position_embeddings: int = harmless(4096, _ROTARY, flag="", since="0.14")
    beta_fast: float = harmless(32, _ROTARY, flag="")
    beta_slow: float = harmless(1, _ROTARY, flag="")
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


_START: Final = "initial values of the weights"
_MUP: Final = "scaling factors of maximal update parametrization"
_STREAMS: Final = "hyper-connections are not modelled"


class Shape(Options, title="Shape of the model"):
    """Options of the model's shape. None: not known, where a configuration leaves it out."""

    num_layers: int | None = option(None, "model", config=0)
    hidden_size: int | None = option(None, "model", config=0)
    ffn_hidden_size: int | None = option(None, "model")
    num_attention_heads: int | None = option(None, "model", config=0)
    num_query_groups: int | None = option(None, "model", launcher=1)
    group_query_attention: bool = option(
        False,
        "model.num_query_groups",
        value=lambda job, _: job.model.num_query_groups < job.model.num_attention_heads,
    )
    kv_channels: int | None = option(None, "model")
    vocab_size: int | None = option(None, "model", bridge="tokenizer")
    padded_vocab_size: int | None = checked(None, "follows from vocab_size")
    make_vocab_size_divisible_by: int = option(128, "model")
    max_position_embeddings: int | None = option(None, "model", config=4096)
    position_embedding_type: str = option("learned_absolute", "model")
    rotary_percent: float = option(1.0, "model")
    use_rotary_position_embeddings: bool = harmless(
        False, "an old name of position_embedding_type rope"
    )
    add_position_embedding: bool = harmless(
        True, "an old name of position_embedding_type none", off="--no-position-embedding"
    )
    relative_attention_num_buckets: int = harmless(32, "used only with relative positions")
    relative_attention_max_distance: int = harmless(128, "used only with relative positions")
    share_embeddings_and_output_weights: bool = option(True, "model", flag="")
    untie_embeddings_and_output_weights: bool = option(
        False,
        "model.share_embeddings_and_output_weights",
        value=lambda job, _: not job.model.share_embeddings_and_output_weights,
    )
    normalization: str = option("LayerNorm", "model")
    layernorm_epsilon: float = harmless(1e-05, "", flag="--norm-epsilon")
    layernorm_zero_centered_gamma: bool = option(False, "model", flag="--apply-layernorm-1p")
    qk_layernorm: bool = option(False, "model")
    qk_l2_norm: bool = option(False, "model", since="0.16")
    add_bias_linear: bool | None = option(
        None, "model", config=True, launcher=True, flag="", off="--disable-bias-linear"
    )
    add_qkv_bias: bool = option(False, "model")
    gated_linear_unit: bool = option(
        False, "model.activation", value=lambda job, _: job.model.activation.gated, flag=""
    )
    swiglu: bool = option(False, "model.activation", value=activates(Activation.SWIGLU))
    squared_relu: bool = option(False, "model.activation", value=activates(Activation.SQUARED_RELU))
    quick_geglu: bool = option(False, "model.activation", value=activates(Activation.QUICK_GEGLU))
    openai_gelu: bool = unpriced(False, "modelled as gelu")
    onnx_safe: bool | None = unpriced(None, "modelled as gelu")
    activation_func: object = harmless(
        None, "a function that follows from model.activation", flag=""
    )
    activation_func_clamp_value: float | None = unpriced(
        None, "the activation is modelled without clamping", since="0.15"
    )
    glu_linear_offset: float = unpriced(
        0.0, "the activation is modelled without an offset", since="0.15"
    )
    activation_func_fp8_input_store: bool = option(False, "model", flag="")
    fp32_residual_connection: bool = refused(False, "a residual stream in fp32 is not modelled")
    apply_residual_connection_post_layernorm: bool = refused(
        False, "a residual taken after the norm is not modelled"
    )
    enable_mhc_connections: bool = unpriced(False, _STREAMS, since="0.20")
    mhc_recompute_layer_num: int | None = unpriced(None, _STREAMS, since="0.20")
    init_method: object = harmless(None, _START, flag="")
    output_layer_init_method: object = harmless(None, _START, flag="")
    embedding_init_method: object = harmless(None, _START, flag="", since="0.14")
    init_method_std: float = harmless(0.02, _START)
    embedding_init_method_std: float | None = harmless(None, _START, since="0.14")
    init_method_xavier_uniform: bool = harmless(False, _START)
    perform_initialization: bool = harmless(True, _START, off="--no-initialization")
    use_cpu_initialization: bool = harmless(False, _START)
    init_model_with_meta_device: bool = harmless(False, _START, since="0.12")
    use_mup: bool = harmless(False, _MUP, since="0.17")
    mup_width_mult: float = harmless(1.0, _MUP, since="0.17")
    mup_base_hidden_size: int | None = harmless(None, _MUP, since="0.17")
    mup_embedding_mult: float = harmless(1.0, _MUP, since="0.17")
    mup_output_mult: float = harmless(1.0, _MUP, since="0.17")
    mup_base_head_dim: float | None = harmless(None, _MUP, since="0.17")
    mup_attn_scale_power: float = harmless(1.0, _MUP, since="0.17")
    encoder_num_layers: int | None = refused(None, "a model with an encoder is not modelled")
    decoder_num_layers: int | None = refused(None, "a model with an encoder is not modelled")
    encoder_seq_length: int | None = harmless(None, "an old name of seq_length")
    decoder_seq_length: int | None = refused(None, "a model with an encoder is not modelled")
