"""Options of attention and of other mixers: latent, with windows or sinks, delta nets, Mamba-2;
multi-token prediction, and patterns of layers; and of the model's shape, which a command line or a
recipe of ours leaves as it is."""

from typing import Final

from advisor.frameworks.megatron.options import values
from advisor.frameworks.megatron.options.section import Section
from advisor.frameworks.megatron.options.values import activates
from advisor.frameworks.option import (
    DIFFERENT,
    ON_LINE,
    Emitted,
    Status,
    When,
    checked,
    option,
)
from advisor.models.options import Activation

_LATENT: Final = Emitted(line=When(always=True, only_if=values.is_latent))
_WINDOWED: Final = Emitted(line=When(only_if=lambda job: job.model.window_size is not None))


class Attention(Section, title="Attention and multi-token prediction"):
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
    dsa_indexer_n_heads: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_head_dim: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_topk: int | None = option(None, "model", ON_LINE, since="0.16")
    dsa_indexer_loss_coeff: float | None = option(None, "model", ON_LINE, since="0.16")
    rotary_interleaved: bool = option(False, "model", ON_LINE)


class Hybrid(Section, title="Mixers other than attention"):
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


_STREAMS: Final = "hyper-connections are not modelled"


class Shape(Section, title="Shape of the model"):
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
    share_embeddings_and_output_weights: bool = option(True, "model", flag="")
    untie_embeddings_and_output_weights: bool = option(
        False,
        "model.share_embeddings_and_output_weights",
        value=lambda job, _: not job.model.share_embeddings_and_output_weights,
    )
    normalization: str = option("LayerNorm", "model")
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
    activation_func_fp8_input_store: bool = option(False, "model", flag="")
    enable_mhc_connections: bool = checked(False, _STREAMS, Status.UNPRICED, since="0.20")
    mhc_recompute_layer_num: int | None = checked(None, _STREAMS, Status.UNPRICED, since="0.20")
