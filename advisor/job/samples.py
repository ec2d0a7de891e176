"""`samples.KEY`: how long the samples are, and how they become microbatches."""

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.rule import Rule, refuse


class Packing(StrEnum):
    """How samples of several lengths make a microbatch.

    none: all are of seq_length. padded: each to the longest of its microbatch. packed: one after
    another in a row of seq_length, or up to a budget of tokens.
    """

    NONE = "none"
    PADDED = "padded"
    PACKED = "packed"


class Samples(Struct, frozen=True, kw_only=True):
    """Lengths of samples, and what a microbatch holds of them.

    Attributes:
        lengths: ``p50=900,p99=9000,max=32768``, or the path of a file with one length a line or a
            histogram; empty: not known.
        packing: see Packing.
        token_budget: most tokens of a microbatch on one GPU (max_tokens_per_gpu,
            ppo_max_token_len_per_gpu); a longer sample is a microbatch by itself. None: none.
        image_tokens: of a sequence, those that the tower of a model that sees makes of images; None:
            not known, and text alone is predicted.
        images: of a sequence, that they are made of: patches attend inside an image.
    """

    lengths: str = ""
    packing: Packing = Packing.NONE
    token_budget: int | None = None
    image_tokens: int | None = None
    images: int = 1

    def __post_init__(self) -> None:
        refuse(_RULES, self)


class _SamplesRule(Rule[[Samples]], frozen=True, kw_only=True):
    """A rule on samples."""

    names: ClassVar[tuple[str, ...]] = ("samples",)


_RULES: Final = (
    _SamplesRule.on(
        "samples.image_tokens",
        lambda samples: samples.image_tokens is not None and samples.image_tokens < 0,
        "must be at least 0",
    ),
    _SamplesRule.on("samples.images", lambda samples: samples.images < 1, "must be at least 1"),
)
