"""The shape of a dense GPT-style transformer, in Megatron's names."""

from dataclasses import dataclass
from enum import StrEnum
from math import isqrt

from advisor.errors import UserError


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

    @property
    def gated(self) -> bool:
        """Whether linear_fc1 has two halves, gate and value (Megatron's gated_linear_unit)."""
        return self in (Activation.SWIGLU, Activation.GEGLU)


class PositionEmbedding(StrEnum):
    """`--position-embedding-type` of Megatron."""

    ROPE = "rope"
    LEARNED = "learned_absolute"
    NONE = "none"


class TransformerImpl(StrEnum):
    """`--transformer-impl` of Megatron: which modules a layer is made of."""

    TRANSFORMER_ENGINE = "transformer_engine"
    LOCAL = "local"


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
                "model.num_query_groups", self.num_query_groups,
                f"must divide num_attention_heads = {self.num_attention_heads}",
                f"nearest: {nearest_divisors(self.num_attention_heads, self.num_query_groups)}",
            )  # fmt: skip

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
    def fc1_size(self) -> int:
        """Output width of linear_fc1: twice ffn_hidden_size where the activation is gated."""
        return self.ffn_hidden_size * (2 if self.activation.gated else 1)

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary rounded up as Megatron does (training/tokenizer: vocab_size_with_padding)."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


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
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "vocab_size", "max_position_embeddings", "make_vocab_size_divisible_by",
)  # fmt: skip
