"""`samples.KEY`: how long the samples are, and how they become microbatches."""

from enum import StrEnum

from msgspec import Struct


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
    """

    lengths: str = ""
    packing: Packing = Packing.NONE
    token_budget: int | None = None
