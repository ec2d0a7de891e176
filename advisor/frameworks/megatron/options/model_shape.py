"""Options of the model's shape, which a command line or a recipe of ours leaves as it is."""

from typing import Final

from advisor.frameworks.megatron.options.values import activates
from advisor.frameworks.option import Options, checked, harmless, option, refused, unpriced
from advisor.models.options import Activation

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
    enable_mhc_connections: bool = checked(False, _STREAMS, since="0.20")
    mhc_recompute_layer_num: int | None = checked(None, _STREAMS, since="0.20")
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
