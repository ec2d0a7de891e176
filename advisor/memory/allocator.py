"""From allocated to reserved: fragmentation, CUDA context and communicators, each with a spread."""

from functools import lru_cache
from math import erf, sqrt

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.units import MIB
from advisor.job.layout import ParallelLayout
from advisor.memory.resident import NamedBytes

_FRAGMENTATION_OF_DYNAMIC = 0.28
_FRAGMENTATION_OF_ALLOCATED = 0.04
"""Reserved over allocated in results/published/simumax_b200.csv, five classes of ranks: 0.28 of
the memory that comes and goes (least squares through the origin), at most about 4 % of all."""
_EXPANDABLE_SHARE = 0.25
"""Expandable segments leave only part-filled 20 MiB pages; share of the above (not measured)."""
_CONTEXT_BYTES = 751 * MIB
"""Of 44 processes on H100 and H200, torch 2.11 with CUDA 13.0: 750.8 MiB each, 768.8 in the four
where cuDNN's attention ran; of 8 under Transformer Engine 638.8 (results/measured). Older: 0.47 GiB
on A100 (ml-engineering, torch 2.1), 426 MiB on Ada (unsloth-zoo pull 1053)."""
_COMMUNICATOR_BYTES = 900 * 10**6
"""NVIDIA/nccl issue 964: 544 to 688 MB a group (A100, 2023); verl issue 6266: 7 GB for the five of
TP2 PP2 DP2 (H100, NCCL 2.29)."""

_MODEL_ERROR = 0.003
"""Of allocated, one sigma: 51 peaks measured here on H100 and H200 are off by 0.14 % in the root
mean square, worst 0.8 % (tests/published/test_measured_here.py); published ones by 0.3 % at worst
(test_measured_memory.py)."""
_POOLS_MODEL_ERROR = 0.05  # published torchtitan runs: tests/published/test_torchtitan.py
_DERIVED_MODEL_ERROR = 0.05  # a judgement: no measured peak of 4 bits, MXFP8 or linear attention
_EIGHT_BIT_MODEL_ERROR = 0.02
"""A judgement: four peaks of one job with current scaling agree to 0.001 %, after they had shown a
fault of 1 % (results/measured/h200)."""
_FRAGMENTATION_SPREAD = 0.5  # of the term: the same five classes
_CONTEXT_SPREAD = 150 * MIB
_COMMUNICATOR_SPREAD = 300 * 10**6
_CONTEXT = NamedBytes("CUDA context", _CONTEXT_BYTES, "measured on H100 and H200, torch 2.11")


class Reserved(Struct, frozen=True, kw_only=True):
    """Reserved peak of one rank: allocated bytes, fragmentation and fixed terms, whose sum `total`
    is what the card must give; `spread` is one sigma."""

    allocated: int
    total: int
    fragmentation: int
    fixed: tuple[NamedBytes, ...]
    spread: float

    @property
    def terms(self) -> tuple[NamedBytes, ...]:
        """All that is reserved beyond what is allocated."""
        source = "published reserved peaks, B200"
        return (NamedBytes("fragmentation", self.fragmentation, source), *self.fixed)

    def fit_probability(self, budget_bytes: int) -> float:
        """Probability that this rank stays within `budget_bytes`: `total` normally distributed with
        `spread` as one sigma. Of one rank; that others run out as well is left to the caller."""
        return 0.5 * (1.0 + erf((budget_bytes - self.total) / (self.spread * sqrt(2.0))))


@lru_cache(maxsize=4096)
def communicator_names(layout: ParallelLayout) -> tuple[str, ...]:
    """NCCL communicators that a Megatron rank opens, by group; groups of one rank open none.

    Source: megatron-core 0.16.1 parallel_state.py. Those of expert parallelism are left out.
    """
    tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
    pp, dp = layout.pipeline_model_parallel_size, layout.data_parallel_size
    groups = (
        ("world", layout.world_size),
        ("tensor parallel", tp),
        ("context parallel", cp),
        ("data parallel", dp * cp),
        ("pipeline parallel", pp),
        ("model parallel", tp * pp),
    )
    return tuple(name for name, ranks in groups if ranks > 1)


@lru_cache(maxsize=4096)
def _fixed_terms(
    layout: ParallelLayout, pools: tuple[NamedBytes, ...]
) -> tuple[tuple[NamedBytes, ...], int, float]:
    """What does not depend on the peak: terms, their sum, and the variance they add."""
    number = len(communicator_names(layout))
    source = "NVIDIA/nccl issue 964, verl issue 6266"
    joined = NamedBytes(f"{number} NCCL communicators", number * _COMMUNICATOR_BYTES, source)
    terms = (_CONTEXT, joined, *pools)
    variance = _CONTEXT_SPREAD**2 + (_COMMUNICATOR_SPREAD * number) ** 2
    return terms, sum(term.num_bytes for term in terms), variance


def model_error(precision: Precision, *, linear_attention: bool) -> float:
    """How far predicted allocated bytes may be off, one sigma as a fraction of them.

    Source: the comments at the constants; 16 bits are measured, the others are judgements.
    """
    if linear_attention or precision in (Precision.MXFP8, Precision.NVFP4):
        return _DERIVED_MODEL_ERROR
    return _EIGHT_BIT_MODEL_ERROR if precision.is_quantized else _MODEL_ERROR


def reserved_memory(
    allocated: int,
    dynamic: int,
    layout: ParallelLayout,
    *,
    expandable_segments: bool,
    error: float = _MODEL_ERROR,
    pools: tuple[NamedBytes, ...] = (),
    unsure: int = 0,
) -> Reserved:
    """Reserved peak of a rank with `allocated` bytes, of which `dynamic` come and go.

    Fragmentation, the CUDA context, NCCL's buffers and `pools` come to what is allocated, all in
    bytes; other processes on the card are left out. Sources: the comments at the constants.
    error: of allocated bytes, one sigma as a fraction of them (see `model_error`).
    pools: what the allocator caches for other streams than the computing one, free at the peak.
    unsure: bytes by which activations may differ, one sigma.
    """
    fragmentation = min(
        _FRAGMENTATION_OF_DYNAMIC * dynamic, _FRAGMENTATION_OF_ALLOCATED * allocated
    )
    if expandable_segments:
        fragmentation *= _EXPANDABLE_SHARE
    fixed, fixed_bytes, variance = _fixed_terms(layout, pools)
    if pools:
        error = max(error, _POOLS_MODEL_ERROR)
    return Reserved(
        allocated=allocated,
        total=allocated + int(fragmentation) + fixed_bytes,
        fragmentation=int(fragmentation),
        fixed=fixed,
        spread=sqrt(
            (error * allocated) ** 2
            + (_FRAGMENTATION_SPREAD * fragmentation) ** 2
            + variance
            + unsure**2
        ),
    )
