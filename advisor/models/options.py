"""Choices of Megatron's options that shape a model, in its own words.

Sources: megatron-core 0.16.1 transformer/transformer_config.py, Megatron-LM's arguments.py.
"""

from enum import StrEnum


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

    __hash__ = str.__hash__

    @property
    def norms_whole_branches(self) -> bool:
        """Whether there are modules with norms after the branches alone, and across all heads
        (OLMo 2's)."""
        return self is TransformerImpl.TRANSFORMERS

    @property
    def is_eager(self) -> bool:
        """Whether the modules are plain torch, each operator a kernel of its own."""
        return self in (TransformerImpl.TORCH, TransformerImpl.TRANSFORMERS)


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


class RopeType(StrEnum):
    """`--rope-type` of multi-latent attention; only yarn has a fused kernel there."""

    ROPE = "rope"
    YARN = "yarn"


class SoftmaxType(StrEnum):
    """`--softmax-type`: whether the denominator has a sink, and whether it is learnt."""

    VANILLA = "vanilla"
    OFF_BY_ONE = "off-by-one"
    LEARNABLE = "learnable"


class CpCommType(StrEnum):
    """`--cp-comm-type`: how attention reaches across the ranks of context parallelism.

    Keys and values go round a ring, are gathered, or heads are exchanged for positions; a2a+p2p
    exchanges heads within hierarchical_context_parallel_sizes[0] ranks, rings among them.
    """

    P2P = "p2p"
    ALL_GATHER = "all_gather"
    A2A = "a2a"
    A2A_P2P = "a2a+p2p"


class TokenDispatcher(StrEnum):
    """`--moe-token-dispatcher-type`: how tokens reach the ranks of their experts."""

    ALLGATHER = "allgather"
    ALLTOALL = "alltoall"
    FLEX = "flex"


class FlexBackend(StrEnum):
    """`--moe-flex-dispatcher-backend`: whose kernels the flex dispatcher calls."""

    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"


class RouterDType(StrEnum):
    """`--moe-router-dtype`: type of logits and probabilities."""

    FP32 = "fp32"
    FP64 = "fp64"


class ScoreFunction(StrEnum):
    """`--moe-router-score-function`: what turns logits into probabilities."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class LoadBalancing(StrEnum):
    """`--moe-router-load-balancing-type`; Megatron's lists of several are not modelled."""

    AUX_LOSS = "aux_loss"
    SEQ_AUX_LOSS = "seq_aux_loss"
    GLOBAL_AUX_LOSS = "global_aux_loss"
    SINKHORN = "sinkhorn"
    NONE = "none"


class DropPolicy(StrEnum):
    """`--moe-token-drop-policy`: which tokens an expert over its capacity loses."""

    PROBS = "probs"
    POSITION = "position"


class NormPlacement(StrEnum):
    """Norms of a layer: before attention and MLP (Llama), on both sides of each (Gemma 2 and 3), or
    after each alone, ahead of the addition (OLMo 2)."""

    PRE = "pre"
    PRE_AND_POST = "pre_and_post"
    POST = "post"

    @property
    def before(self) -> bool:
        """Whether the inputs of attention and MLP are normalized."""
        return self is not NormPlacement.POST

    @property
    def after(self) -> bool:
        """Whether the outputs of attention and MLP are."""
        return self is not NormPlacement.PRE


class AttentionVariant(StrEnum):
    """`--experimental-attention-variant`, as far as it is modelled."""

    GATED_DELTA_NET = "gated_delta_net"
    DSA = "dsa"
