"""`head.KEY`: how cross entropy, log-probabilities and entropy are computed from the last hidden
states."""

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.rule import Rule, refusals, refuse


class HeadImplementation(StrEnum):
    """Whose code computes it; ``default`` is the framework's own for pre-training.

    transformers: logits, their fp32 copy, log_softmax. liger: output layer and loss in chunks
    (liger_grpo, liger_preference: its losses of reinforcement learning and of pairs). trl: TRL's
    fused head in tiles; trl_logits: its kernel on whole logits. verl: whole logits and
    flash-attention's cross entropy; verl_fused: chunks in torch; verl_triton: its fused kernel.
    prime_rl: chunks of tokens and vocabulary; prime_rl_vocabulary: of the vocabulary alone, whose
    rows are then the chunk (before June 2026); prime_rl_logits: whole logits (its "disabled");
    prime_rl_cross_entropy: the same in supervised training.
    openrlhf; automodel_chunked; cut_cross_entropy: no logits at all; torchtitan_chunked.
    verl_megatron, slime, nemo_rl, nemo_rl_fused: on a vocabulary cut by TP.
    """

    DEFAULT = "default"
    TRANSFORMERS = "transformers"
    LIGER = "liger"
    LIGER_GRPO = "liger_grpo"
    LIGER_PREFERENCE = "liger_preference"
    TRL = "trl"
    TRL_LOGITS = "trl_logits"
    VERL = "verl"
    VERL_FUSED = "verl_fused"
    VERL_TRITON = "verl_triton"
    VERL_MEGATRON = "verl_megatron"
    PRIME_RL = "prime_rl"
    PRIME_RL_VOCABULARY = "prime_rl_vocabulary"
    PRIME_RL_LOGITS = "prime_rl_logits"
    PRIME_RL_CROSS_ENTROPY = "prime_rl_cross_entropy"
    OPENRLHF = "openrlhf"
    AUTOMODEL_CHUNKED = "automodel_chunked"
    CUT_CROSS_ENTROPY = "cut_cross_entropy"
    TORCHTITAN_CHUNKED = "torchtitan_chunked"
    SLIME = "slime"
    NEMO_RL = "nemo_rl"
    NEMO_RL_FUSED = "nemo_rl_fused"


class RouterAuxLoss(StrEnum):
    """The auxiliary loss of experts in transformers (output_router_logits): by_layer takes one
    layer after the other, stacked all at once, as releases before 5.16 do."""

    NONE = "none"
    BY_LAYER = "by_layer"
    STACKED = "stacked"


class LossHead(Struct, frozen=True, kw_only=True):
    """How the output layer and what comes after it run.

    Attributes:
        implementation: whose code it is.
        chunk_size: tokens of one chunk; None: as the implementation has it.
        temperature: by which logits are divided, in some into a tensor of its own.
        entropy: whether the entropy of each token is a term of the loss, with its gradient.
        logits_to_keep: positions of a sample, the last ones, that have logits; None: all.
        router_aux_loss: see RouterAuxLoss.
    """

    implementation: HeadImplementation = HeadImplementation.DEFAULT
    chunk_size: int | None = None
    temperature: float = 1.0
    entropy: bool = False
    logits_to_keep: int | None = None
    router_aux_loss: RouterAuxLoss = RouterAuxLoss.NONE

    @property
    def is_of_another_package(self) -> bool:
        """Whether it is not the loss that models of all stacks have in pre-training."""
        own = (HeadImplementation.DEFAULT, HeadImplementation.TRANSFORMERS)
        return self.implementation not in own or self.logits_to_keep is not None

    @property
    def words(self) -> str:
        """``trl, chunks of 4096 tokens, temperature 0.7``; empty for the default."""
        said = {
            str(self.implementation): self.implementation is not HeadImplementation.DEFAULT,
            f"chunks of {self.chunk_size} tokens": self.chunk_size is not None,
            f"temperature {self.temperature}": self.temperature != 1.0,
            "entropy": self.entropy,
            f"{self.logits_to_keep} positions": self.logits_to_keep is not None,
        }
        return ", ".join(words for words, on in said.items() if on)

    def __post_init__(self) -> None:
        refuse(_RULES.values(), self)


class _HeadRule(Rule[[LossHead]], frozen=True, kw_only=True):
    """A rule on the head."""

    names: ClassVar[tuple[str, ...]] = ("head",)


_RULES: Final = refusals(_HeadRule, "head")
