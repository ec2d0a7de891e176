"""The shape of a GPT-style transformer, in Megatron's names."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import isqrt

from advisor.base.errors import UserError
from advisor.models.attention_kinds import RopeType, SoftmaxType, check_attention
from advisor.models.expert_options import (
    DropPolicy,
    LoadBalancing,
    RouterDType,
    ScoreFunction,
    TokenDispatcher,
    check_experts,
)
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind, Mixer
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern
from advisor.models.mixers import (
    AttentionVariant,
    check_hybrid,
    hybrid_kinds,
    with_linear_attention,
)
from advisor.models.variants import NormPlacement, check_variants


class Normalization(StrEnum):
    """`--normalization` of Megatron."""

    LAYER_NORM = "LayerNorm"
    RMS_NORM = "RMSNorm"


class Activation(StrEnum):
    """Activation between the two linear layers of the MLP; the gated ones double linear_fc1."""

    GELU = "gelu"
    SQUARED_RELU = "squared_relu"
    SWIGLU = "swiglu"
    GEGLU = "geglu"
    QUICK_GEGLU = "quick_geglu"

    @property
    def gated(self) -> bool:
        """Whether linear_fc1 has two halves, gate and value (Megatron's gated_linear_unit)."""
        return self in (Activation.SWIGLU, Activation.GEGLU, Activation.QUICK_GEGLU)


class PositionEmbedding(StrEnum):
    """`--position-embedding-type` of Megatron."""

    ROPE = "rope"
    LEARNED = "learned_absolute"
    NONE = "none"


class TransformerImpl(StrEnum):
    """Which modules a layer is made of: `--transformer-impl` of Megatron, plain torch modules as
    torchtitan writes them, or the modelling code of Hugging Face's transformers."""

    TRANSFORMER_ENGINE = "transformer_engine"
    LOCAL = "local"
    TORCH = "torch"
    TRANSFORMERS = "transformers"

    @property
    def is_megatron(self) -> bool:
        """Whether the modules are Megatron's or Transformer Engine's under Megatron."""
        return self in (TransformerImpl.TRANSFORMER_ENGINE, TransformerImpl.LOCAL)


class AttentionBackend(StrEnum):
    """`--attention-backend` of Megatron; flash and fused keep no attention scores.

    auto is Transformer Engine's choice: fused (cuDNN) from Hopper on, flash before.
    """

    AUTO = "auto"
    FLASH = "flash"
    FUSED = "fused"
    UNFUSED = "unfused"


class CrossEntropyFusion(StrEnum):
    """`--cross-entropy-loss-fusion` with its implementation; `none` is Megatron's default."""

    NONE = "none"
    NATIVE = "native"
    TE = "te"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape and implementation options of one model.

    Names, defaults and meaning are those of megatron-core's ``TransformerConfig`` (0.16.1) and
    Megatron-LM's ``arguments.py``, but for ``activation``, which stands for Megatron's pair
    activation_func and gated_linear_unit, and ``cross_entropy_fusion`` (a pair of flags there).
    ``vocab_size`` is the tokenizer's: Megatron pads it (`padded_vocab_size`).

    Where ``num_moe_experts`` is set, the layers that ``moe_layer_freq`` names have experts of
    ``moe_ffn_hidden_size`` (None: ffn_hidden_size) in place of the dense MLP. Where
    ``multi_latent_attention`` is set, the ranks and head dimensions after it shape attention, and
    ``kv_channels`` means nothing. ``window_size`` is the left half of Megatron's pair: a token
    attends to so many before it, and to itself.

    ``norm_placement`` and what follows it make variants of the block, in the words of Megatron
    Bridge's providers. Layers that ``no_rope_freq`` names (of a number, every Nth) have no rotary
    positions; ``qk_l2_norm`` and ``attention_chunk_size`` act on the others alone (Llama 4).
    ``qk_layernorm_across_heads``: one norm over all heads of q or k, and none of each.

    Where ``linear_attention_freq`` is set, the layers that it names have a gated delta net of the
    ``linear_`` heads in place of softmax attention. ``hybrid_layer_pattern`` (0.16.1:
    hybrid_override_pattern) names the kind of every layer by a letter: each has a mixer alone, or
    a feed-forward part alone; the ``mamba_`` fields shape its Mamba-2 layers.
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
    normalization: Normalization = Normalization.RMS_NORM
    activation: Activation = Activation.SWIGLU
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    share_embeddings_and_output_weights: bool = False
    position_embedding_type: PositionEmbedding = PositionEmbedding.ROPE
    rotary_percent: float = 1.0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    make_vocab_size_divisible_by: int = 128
    transformer_impl: TransformerImpl = TransformerImpl.TRANSFORMER_ENGINE
    attention_backend: AttentionBackend = AttentionBackend.AUTO
    attention_softmax_in_fp32: bool = True
    masked_softmax_fusion: bool = True
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = True
    apply_rope_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    cross_entropy_fusion: CrossEntropyFusion = CrossEntropyFusion.NONE
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
    rope_type: RopeType = RopeType.YARN
    window_size: int | None = None
    window_attn_skip_freq: LayerPattern | None = None
    softmax_type: SoftmaxType = SoftmaxType.VANILLA
    norm_placement: NormPlacement = NormPlacement.PRE
    layernorm_zero_centered_gamma: bool = False
    qk_layernorm_across_heads: bool = False
    qk_l2_norm: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    apply_embedding_scaling: bool = False
    no_rope_freq: LayerPattern | None = None
    attention_chunk_size: int | None = None
    mtp_num_layers: int | None = None
    num_moe_experts: int | None = None
    moe_layer_freq: LayerPattern = EVERY_LAYER
    moe_ffn_hidden_size: int | None = None
    moe_router_topk: int = 2
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_score_function: ScoreFunction = ScoreFunction.SOFTMAX
    moe_router_pre_softmax: bool = False
    moe_router_dtype: RouterDType | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_load_balancing_type: LoadBalancing = LoadBalancing.AUX_LOSS
    moe_aux_loss_coeff: float = 0.0
    moe_z_loss_coeff: float | None = None
    moe_router_fusion: bool = False
    moe_token_dispatcher_type: TokenDispatcher = TokenDispatcher.ALLGATHER
    moe_permute_fusion: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: DropPolicy = DropPolicy.PROBS
    moe_grouped_gemm: bool = False
    moe_use_legacy_grouped_gemm: bool = False
    moe_apply_probs_on_input: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    attention_output_gate: bool = False
    experimental_attention_variant: AttentionVariant | None = None
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

    def __post_init__(self) -> None:
        for field in _POSITIVE:
            value = getattr(self, field)
            if value < 1:
                raise UserError(f"model.{field}", value, "must be at least 1")
            if value > _LARGEST:
                raise UserError(f"model.{field}", value, f"must not exceed {_LARGEST}")
        if self.num_layers > _MOST_LAYERS:
            raise UserError("model.num_layers", self.num_layers, f"exceeds {_MOST_LAYERS}")
        for field in ("hidden_dropout", "attention_dropout"):
            value = getattr(self, field)
            if not 0.0 <= value < 1.0:
                raise UserError(f"model.{field}", value, "must be in [0, 1)")
        if not 0.0 < self.rotary_percent <= 1.0:
            raise UserError("model.rotary_percent", self.rotary_percent, "must be in (0, 1]")
        if self.num_attention_heads % self.num_query_groups:
            raise UserError(
                "model.num_query_groups",
                self.num_query_groups,
                f"must divide num_attention_heads = {self.num_attention_heads}",
                f"nearest: {nearest_divisors(self.num_attention_heads, self.num_query_groups)}",
            )
        check_attention(self)
        check_experts(self)
        check_variants(self)
        self.moe_layer_freq.expand(self.num_layers, "model.moe_layer_freq")
        check_hybrid(self)

    def __hash__(self) -> int:
        """Cheap: models of one name and depth rarely differ."""
        return hash((self.name, self.num_layers, self.hidden_size))

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together: num_attention_heads x kv_channels."""
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_projection_size(self) -> int:
        """Width of all key (or value) heads together: num_query_groups x kv_channels."""
        return self.num_query_groups * self.kv_channels

    @property
    def qk_channels(self) -> int:
        """Width of one query or key head in core attention."""
        if self.multi_latent_attention:
            return self.qk_head_dim + self.qk_pos_emb_head_dim
        return self.kv_channels

    @property
    def v_channels(self) -> int:
        """Width of one value head, and of core attention's output."""
        return self.v_head_dim if self.multi_latent_attention else self.kv_channels

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated."""
        if self.multi_latent_attention:
            return self.qk_pos_emb_head_dim
        return int(self.kv_channels * self.rotary_percent)

    @property
    def fc1_size(self) -> int:
        """Output width of the dense MLP's linear_fc1."""
        return self.fc1_size_of(self.ffn_hidden_size)

    def fc1_size_of(self, ffn_hidden_size: int) -> int:
        """Output width of an MLP's linear_fc1: twice the MLP's where the activation is gated."""
        return ffn_hidden_size * (2 if self.activation.gated else 1)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        if self.hybrid_layer_pattern is not None:
            kinds = hybrid_kinds(self.hybrid_layer_pattern)
        else:
            kinds = _layer_kinds(self.num_layers, self.num_moe_experts, self.moe_layer_freq)
        if self.linear_attention_freq is not None:
            kinds = with_linear_attention(kinds, self.linear_attention_freq)
        if self.window_size is not None:
            kinds = _with_windows(kinds, self.window_attn_skip_freq)
        if self.no_rope_freq is not None:
            kinds = _without_rotary(kinds, self.no_rope_freq)
        if not self.first_last_layers_bf16:
            return kinds
        start = self.num_layers_at_start_in_bf16
        end = self.num_layers - self.num_layers_at_end_in_bf16
        return tuple(
            kind._replace(high_precision=not start <= layer < end)
            for layer, kind in enumerate(kinds)
        )

    @property
    def expert_ffn_hidden_size(self) -> int:
        """Width of one routed expert: moe_ffn_hidden_size, or Megatron's default for it."""
        return self.moe_ffn_hidden_size or self.ffn_hidden_size

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary rounded up as Megatron does (training/tokenizer: vocab_size_with_padding)."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


@lru_cache(maxsize=256)
def _layer_kinds(
    num_layers: int, num_moe_experts: int | None, moe_layer_freq: LayerPattern
) -> tuple[LayerKind, ...]:
    if num_moe_experts is None:
        return (DENSE,) * num_layers
    experts = moe_layer_freq.expand(num_layers, "model.moe_layer_freq")
    moe = LayerKind(feed_forward=FeedForward.MOE)
    return tuple(moe if has_experts else DENSE for has_experts in experts)


@lru_cache(maxsize=256)
def _with_windows(kinds: tuple[LayerKind, ...], skip: LayerPattern | None) -> tuple[LayerKind, ...]:
    """Every layer has a window; of a number, every Nth has none; of a list, the zeros (0.16.1
    transformer/utils.py is_layer_window_attention)."""
    if skip is None:
        windowed = [True] * len(kinds)
    elif skip.isdigit():
        windowed = [not nth for nth in skip.expand_from_one(len(kinds), "")]
    else:
        windowed = list(skip.expand(len(kinds), "model.window_attn_skip_freq"))
    return tuple(
        kind._replace(mixer=Mixer.SLIDING_WINDOW) if window else kind
        for kind, window in zip(kinds, windowed, strict=True)
    )


@lru_cache(maxsize=256)
def _without_rotary(kinds: tuple[LayerKind, ...], pattern: LayerPattern) -> tuple[LayerKind, ...]:
    """Layers that `pattern` names have no rotary positions (0.16.1 transformer_config.py)."""
    bare = pattern.expand_from_one(len(kinds), "model.no_rope_freq")
    return tuple(
        kind._replace(rotary=not without) for kind, without in zip(kinds, bare, strict=True)
    )


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` on both sides of `wanted`, for an error's last words."""
    below = [d for d in divisors(number) if d <= wanted][-1:]
    above = [d for d in divisors(number) if d > wanted][:1]
    return " or ".join(str(d) for d in below + above)


_LARGEST = 10**8
_MOST_LAYERS = 10_000
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "max_position_embeddings",
    "make_vocab_size_divisible_by",
)
