"""`samples.KEY`: how long the samples are, and how they become microbatches."""

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.rule import Rule, refusals, refuse


class Packing(StrEnum):
    """How samples of several lengths make a microbatch.

    none: all are of seq_length, or padded where lengths are given. padded: each to the longest of
    its microbatch. packed: one after another in a row of seq_length, or up to a budget of tokens.
    """

    NONE = "none"
    PADDED = "padded"
    PACKED = "packed"


class SampleMasks(StrEnum):
    """What keeps the samples of a row apart.

    varlen: the attention kernel is told where each ends (THD, cu_seqlens). dense: a mask [b, 1, s,
    s], of which all pairs are computed (neat_packing's, and transformers' without FlashAttention).
    joined: nothing does; samples attend to those before them.
    """

    VARLEN = "varlen"
    DENSE = "dense"
    JOINED = "joined"


class Samples(Struct, frozen=True, kw_only=True):
    """Lengths of samples, and what a microbatch holds of them.

    Attributes:
        lengths: ``p50=900,p99=9000,max=32768``, or the path of a file with one length a line or a
            histogram (see job.lengths); empty: not known. Longer ones than seq_length are cut.
        packing: see Packing; packed wherever there is a token budget.
        token_budget: most tokens of a microbatch on one GPU (max_tokens_per_gpu,
            ppo_max_token_len_per_gpu): CP ranks share a pack of as many times more. A longer sample
            is a microbatch by itself. None: none.
        masks: see SampleMasks; None: as the framework does it.
        pad_to_multiple_of: tokens of a row are a multiple of it, and of what the layout needs.
        balanced: whether each data-parallel rank gets about as many tokens (verl's balance_batch,
            slime's --balance-data), instead of as many samples.
        image_tokens: of a sequence, those that the tower of a model that sees makes of images;
            None: not known, and text alone is predicted.
        images: of a sequence, that they are made of: patches attend inside an image.
        max_pixels: of an image, where image_tokens are not given: each has as many.
    """

    lengths: str = ""
    packing: Packing = Packing.NONE
    token_budget: int | None = None
    masks: SampleMasks | None = None
    pad_to_multiple_of: int = 1
    balanced: bool = False
    image_tokens: int | None = None
    images: int = 1
    max_pixels: int | None = None

    @property
    def varies(self) -> bool:
        """Whether microbatches are of several sizes, or not of micro_batch_size."""
        return bool(self.lengths) or self.token_budget is not None

    @property
    def packed(self) -> bool:
        """Whether a row holds several samples."""
        return self.packing is Packing.PACKED or self.token_budget is not None

    @property
    def fills_rows(self) -> bool:
        """Whether rows are of seq_length, full of samples."""
        return self.packed and self.token_budget is None

    @property
    def padded(self) -> bool:
        """Whether a row holds one sample, as long as the longest of its microbatch."""
        return not self.packed and (self.packing is Packing.PADDED or bool(self.lengths))

    def __post_init__(self) -> None:
        refuse(_RULES.values(), self)


class _SampleRule(Rule[[Samples]], frozen=True, kw_only=True):
    """A rule on the samples."""

    names: ClassVar[tuple[str, ...]] = ("samples",)


_RULES: Final = refusals(_SampleRule, "samples")
