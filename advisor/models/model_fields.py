"""Every field of a model's shape, in Megatron's names; `spec.ModelSpec` checks them."""

from msgspec import Struct

from advisor.models import options
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern
from advisor.models.vision import VisionTower


class ModelFields(Struct, frozen=True, kw_only=True):
    """Shape and implementation options of one model.

    Names, defaults and meaning are those of megatron-core's ``TransformerConfig`` (0.16.1) and
    Megatron-LM's ``arguments.py``, except ``activation``, which stands for Megatron's pair
    activation_func and gated_linear_unit, and ``cross_entropy_fusion`` (a pair of flags there).
    ``vocab_size`` is the tokenizer's: Megatron pads it (`padded_vocab_size`).

    Where ``num_moe_experts`` is set, the layers that ``moe_layer_freq`` names have experts of
    ``moe_ffn_hidden_size`` (None: ffn_hidden_size) in place of the dense MLP, on tokens that
    are projected to ``moe_latent_size`` where that is set. Where
    ``multi_latent_attention`` is set, the ranks and head dimensions after it shape attention, and
    ``kv_channels`` means nothing. ``window_size`` is the left half of Megatron's pair: a token
    attends to so many before it, and to itself.

    ``norm_placement`` and what follows it make variants of the block, in the words of Megatron
    Bridge's providers. Layers that ``no_rope_freq`` names (of a number, every Nth) have no rotary
    positions; ``qk_l2_norm`` and ``attention_chunk_size`` act on the others alone (Llama 4).
    ``qk_layernorm_across_heads``: one norm over all heads of q or k, and none of each.
    Where ``global_kv_channels`` is set, layers without a window have heads so wide,
    ``num_global_query_groups`` (None: num_query_groups), and under ``attention_k_eq_v`` values that
    are keys before their norm (Gemma 4). ``v_layernorm``: values are normalized, without a weight.
    ``layer_scalar``: what a layer gives is multiplied by a number that does not learn.
    ``moe_separate_norms``: router, routed and shared experts have norms of their own.
    The last ``num_kv_shared_layers`` attend to keys and values of the last layer before them that
    has a window as they have, or none; under ``use_double_wide_mlp`` their MLP is twice as wide.
    ``hidden_size_per_layer_input``: width of each layer's own embeddings of the tokens, of
    ``vocab_size_per_layer_input`` (None: vocab_size) rows (Gemma 4 E2B, E4B).

    ``experimental_attention_variant`` dsa: latent attention to the ``dsa_indexer_topk`` tokens that
    an indexer scores highest, which learns by a loss of its own if ``dsa_indexer_loss_coeff`` > 0.

    Where ``linear_attention_freq`` is set, the layers that it names have a gated delta net of the
    ``linear_`` heads in place of softmax attention. ``hybrid_layer_pattern`` (0.16.1:
    hybrid_override_pattern) names the kind of every layer by a letter: each has a mixer alone, or
    a feed-forward part alone; the ``mamba_`` fields shape its Mamba-2 layers. ``vision`` is the
    tower of a model that sees.
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    normalization: options.Normalization = options.Normalization.RMS_NORM
    activation: options.Activation = options.Activation.SWIGLU
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    share_embeddings_and_output_weights: bool = False
    position_embedding_type: options.PositionEmbedding = options.PositionEmbedding.ROPE
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    make_vocab_size_divisible_by: int = 128
    transformer_impl: options.TransformerImpl = options.TransformerImpl.TRANSFORMER_ENGINE
    attention_backend: options.AttentionBackend = options.AttentionBackend.AUTO
    attention_softmax_in_fp32: bool = True
    masked_softmax_fusion: bool = True
    bias_activation_fusion: bool = True
    use_fused_weighted_squared_relu: bool = False
    bias_dropout_fusion: bool = True
    apply_rope_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    cross_entropy_fusion: options.CrossEntropyFusion = options.CrossEntropyFusion.NONE
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 1
    num_layers_at_end_in_bf16: int = 1
    fp8_dot_product_attention: bool = False
    activation_func_fp8_input_store: bool = False
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    rope_type: options.RopeType = options.RopeType.YARN
    window_size: int | None = None
    window_attn_skip_freq: LayerPattern | None = None
    softmax_type: options.SoftmaxType = options.SoftmaxType.VANILLA
    norm_placement: options.NormPlacement = options.NormPlacement.PRE
    layernorm_zero_centered_gamma: bool = False
    qk_layernorm_across_heads: bool = False
    qk_l2_norm: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    apply_embedding_scaling: bool = False
    no_rope_freq: LayerPattern | None = None
    attention_chunk_size: int | None = None
    global_kv_channels: int | None = None
    num_global_query_groups: int | None = None
    attention_k_eq_v: bool = False
    v_layernorm: bool = False
    layer_scalar: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    hidden_size_per_layer_input: int | None = None
    vocab_size_per_layer_input: int | None = None
    mtp_num_layers: int | None = None
    num_moe_experts: int | None = None
    moe_layer_freq: LayerPattern = EVERY_LAYER
    moe_ffn_hidden_size: int | None = None
    moe_latent_size: int | None = None
    moe_router_topk: int = 2
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: options.ScoreFunction = options.ScoreFunction.SOFTMAX
    moe_router_pre_softmax: bool = False
    moe_router_dtype: options.RouterDType | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_load_balancing_type: options.LoadBalancing = options.LoadBalancing.AUX_LOSS
    moe_aux_loss_coeff: float = 0.0
    moe_z_loss_coeff: float | None = None
    moe_router_fusion: bool = False
    moe_token_dispatcher_type: options.TokenDispatcher = options.TokenDispatcher.ALLGATHER
    moe_flex_dispatcher_backend: options.FlexBackend = options.FlexBackend.DEEPEP
    moe_permute_fusion: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: options.DropPolicy = options.DropPolicy.PROBS
    moe_grouped_gemm: bool = False
    moe_use_legacy_grouped_gemm: bool = False
    moe_apply_probs_on_input: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    moe_separate_norms: bool = False
    attention_output_gate: bool = False
    experimental_attention_variant: options.AttentionVariant | None = None
    dsa_indexer_n_heads: int | None = None
    dsa_indexer_head_dim: int | None = None
    dsa_indexer_topk: int | None = None
    dsa_indexer_loss_coeff: float | None = None
    linear_attention_freq: LayerPattern | None = None
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    hybrid_layer_pattern: str | None = None
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None
    vision: VisionTower | None = None

    @property
    def has_sparse_attention(self) -> bool:
        """Whether an indexer chooses what a token attends to (DSA)."""
        return self.experimental_attention_variant is options.AttentionVariant.DSA

    @property
    def widest_head(self) -> int:
        """Channels of a query head of the kind of layers where they are most."""
        return max(self.kv_channels, self.global_kv_channels or 0)
