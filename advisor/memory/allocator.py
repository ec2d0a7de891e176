"""From allocated to reserved: fragmentation, CUDA context and communicators, each with a spread."""

from functools import lru_cache
from math import erf, hypot, sqrt

from msgspec import Struct

from advisor.base.dtypes import Precision
from advisor.base.units import MIB
from advisor.job.layout import ParallelLayout
from advisor.memory.imbalance import EVEN, Unevenness
from advisor.memory.static import NamedBytes

_USUAL = 0.039, 0.034
_USUAL_EXPANDABLE = 0.005, 0.008
"""Share of allocated bytes that 496 simulations (memory/simulation.py) of ranks of published
recipes leave unused, mean and standard deviation, without and with expandable segments: what stands
for a rank that is not simulated."""
_USUAL_EAGER = 0.124, 0.162
_USUAL_EAGER_EXPANDABLE = 0.036, 0.045
"""The same of torch's own layers: 405 simulations of settings of eight models in four
frameworks."""
_BEYOND_SIMULATION, _BEYOND_SIMULATION_SPREAD = 0.0038, 0.0055
"""What was measured beyond the simulation, as a share of allocated bytes, mean and standard
deviation: 44 ranks of plain torch modules and of Megatron's own layers (results/measured), all with
expandable segments; 96 more that torch's own allocator ran without a GPU agree (0.0042, 0.0055:
tests/oracles/data/native_peaks.csv)."""
_BEYOND_SEGMENTS, _BEYOND_SEGMENTS_SPREAD = 0.0014, 0.026
"""The same without expandable segments, where the order of every request counts: 87 of those
ranks."""
_BEYOND_ENGINE, _BEYOND_ENGINE_SPREAD = 0.0075, 0.011
"""The same under Transformer Engine: 8 ranks of results/measured and 32 of
results/published/simumax_b200.csv, where ranks of one stage differ by 2.7 %, as frees wait for
another stream; both families weigh the same. tests/published/test_reserved.py leaves each of the
families out in turn."""
CONTEXT_BYTES = 751 * MIB
"""Of 44 processes on H100 and H200, torch 2.11 with CUDA 13.0: 750.8 MiB each, 768.8 in the four
where cuDNN's attention ran; of 8 under Transformer Engine 638.8 (results/measured). Older: 0.47 GiB
on A100 (ml-engineering, torch 2.1), 426 MiB on Ada (unsloth-zoo pull 1053)."""
COMMUNICATOR_BYTES = 900 * 10**6
"""NVIDIA/nccl issue 964: 544 to 688 MB a group (A100, 2023); verl issue 6266: 7 GB for the five of
TP2 PP2 DP2 (H100, NCCL 2.29)."""

_MODEL_ERROR = 0.003
"""Of allocated, one sigma: 51 peaks measured here on H100 and H200 are off by 0.14 % in the root
mean square, worst 0.8 % (tests/published/test_measured_here.py); published ones by 0.3 % at worst
(test_measured_memory.py)."""
_DERIVED_MODEL_ERROR = 0.05  # a judgement: no measured peak of 4 bits, MXFP8 or derived layers
_EIGHT_BIT_MODEL_ERROR = 0.02
"""A judgement: four peaks of one job with current scaling agree to 0.001 %, after they had shown a
fault of 1 % (results/measured/h200)."""
_CONTEXT_RANKS_SPREAD = 0.08
"""Of allocated, one sigma where a sequence is cut over ranks: the one published run of which this
is known (CP 8, all-to-all) reserved so much more than was predicted."""
_CONTEXT_RANKS_MOST = 0.949
"""And the most that such a job is said to be likely to fit: one run measures no spread, so that
nobody is promised 19 in 20."""
_POOLS_SPREAD = 0.5  # of them, a judgement: the rest of two published runs of torchtitan
_CONTEXT_SPREAD = 150 * MIB
_COMMUNICATOR_SPREAD = 300 * 10**6
_CONTEXT = NamedBytes("CUDA context", CONTEXT_BYTES, "measured on H100 and H200, torch 2.11")


_ONE_IN_TWENTY, _ONE_IN_TEN = 1.645, 1.2816
"""Standard deviations above the mean that a normal variable exceeds one time in so many."""


class Reserved(Struct, frozen=True, kw_only=True):
    """Reserved peak of one rank: allocated bytes, fragmentation and fixed terms, whose sum `total`
    is what the card must give; `spread` is one sigma. uneven: what the busiest rank adds where
    routing is not balanced: its `stated` bytes are allocated ones, what fits goes by its mean.
    unused: what a simulation of the allocator by so many requests leaves unused; None where it is
    the usual share; returnable: of it, what goes back to the driver of a card that is full.
    most_likely: the highest probability to fit, where the spread was not measured."""

    allocated: int
    total: int
    fragmentation: int
    fixed: tuple[NamedBytes, ...]
    spread: float
    uneven: Unevenness = EVEN
    unused: int | None = None
    returnable: int = 0
    requests: int = 0
    spreads: tuple[float, float, float] = (0.0, 0.0, 0.0)
    measured_more: int = 0
    most_likely: float = 1.0

    @property
    def at_most(self) -> float:
        """Bytes that it stays within 19 times out of 20."""
        mean, sigma = self.need
        return mean + _ONE_IN_TWENTY * sigma

    @property
    def terms(self) -> tuple[NamedBytes, ...]:
        """All that is reserved beyond what is allocated."""
        source = (
            "simulation of torch's caching allocator"
            if self.unused is not None
            else "usual share in simulations of torch's caching allocator"
        )
        return (NamedBytes("fragmentation", self.fragmentation, source), *self.fixed)

    def fit_probability(self, budget_bytes: int) -> float:
        """Probability that this rank stays within `budget_bytes`: what it needs is normally
        distributed. Of one rank; that others run out as well is left to the caller."""
        mean, sigma = self.need
        found = 0.5 * (1.0 + erf((budget_bytes - mean) / (sigma * sqrt(2.0))))
        return min(self.most_likely, found)

    @property
    def need(self) -> tuple[float, float]:
        """Bytes that it must be given: mean and standard deviation."""
        more = self.uneven.mean - self.uneven.stated - self.returnable
        return self.total + more, hypot(self.spread, self.uneven.spread)

    def room(self, budget_bytes: int) -> float:
        """Bytes that uneven routing may add for a rank that stays within `budget_bytes` 9 times out
        of 10."""
        least = self.total - self.uneven.stated - self.returnable
        return budget_bytes - least - _ONE_IN_TEN * self.spread


@lru_cache(maxsize=4096)
def communicator_names(layout: ParallelLayout) -> tuple[str, ...]:
    """NCCL communicators that a Megatron rank opens, by group; groups of one rank open none, nor do
    those that nothing is sent in.

    Experts cut by EP are reduced over a group of their own, their dispatcher counts tokens over
    tensor and expert ranks. Chunks that overlap their sends (VPP > 1) send to each neighbour on a
    communicator of the two (p2p_communication.py, not batched; torch ProcessGroupNCCL.cpp).
    Source: megatron-core 0.16.1 parallel_state.py, moe/token_dispatcher.py."""
    tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
    pp, dp = layout.pipeline_model_parallel_size, layout.data_parallel_size
    ep = layout.expert_model_parallel_size
    etp = layout.expert_tensor_degree if ep > 1 else 1
    one_by_one = layout.virtual_pipeline_model_parallel_size > 1
    pairs = ("previous stage", "next stage")[: pp - 1] if one_by_one else ("pipeline parallel",)
    groups = (
        ("world", layout.world_size),
        ("tensor parallel", tp),
        ("context parallel", cp),
        ("data parallel", dp * cp),
        ("replicas of shards", layout.data_parallel_replicate_size),
        *((pair, pp) for pair in pairs),
        ("model parallel", tp * pp),
        ("expert parallel", ep),
        ("expert tensor parallel", etp),
        ("expert tensor and model parallel", ep * etp if ep > 1 else 1),
        ("expert data parallel", layout.expert_data_parallel_size if ep > 1 else 1),
    )
    return tuple(name for name, ranks in groups if ranks > 1)


@lru_cache(maxsize=4096)
def _fixed_terms(
    layout: ParallelLayout, pools: tuple[NamedBytes, ...]
) -> tuple[tuple[NamedBytes, ...], int, float]:
    """What does not depend on the peak: terms, their sum, and the variance they add."""
    number = len(communicator_names(layout))
    source = "NVIDIA/nccl issue 964, verl issue 6266"
    joined = NamedBytes(f"{number} NCCL communicators", number * COMMUNICATOR_BYTES, source)
    terms = (_CONTEXT, joined, *pools)
    variance = _CONTEXT_SPREAD**2 + (_COMMUNICATOR_SPREAD * number) ** 2
    variance += int(sum((_POOLS_SPREAD * pool.num_bytes) ** 2 for pool in pools))
    return terms, sum(term.num_bytes for term in terms), variance


def model_error(precision: Precision, *, derived: bool) -> float:
    """How far predicted allocated bytes may be off, one sigma as a fraction of them. Source: the
    comments at the constants; 16 bits are measured, the others are judgements."""
    if derived or precision in (Precision.MXFP8, Precision.NVFP4):
        return _DERIVED_MODEL_ERROR
    return _EIGHT_BIT_MODEL_ERROR if precision.is_quantized else _MODEL_ERROR


def _usual(*, expandable_segments: bool, eager: bool) -> tuple[float, float]:
    """Share of allocated bytes that stays unused, mean and standard deviation."""
    if eager:
        return _USUAL_EAGER_EXPANDABLE if expandable_segments else _USUAL_EAGER
    return _USUAL_EXPANDABLE if expandable_segments else _USUAL


def _beyond_simulation(*, expandable_segments: bool, engine: bool) -> tuple[float, float]:
    """Share of allocated bytes that is reserved beyond a simulation, mean and standard
    deviation."""
    if engine:
        return _BEYOND_ENGINE, _BEYOND_ENGINE_SPREAD
    if expandable_segments:
        return _BEYOND_SIMULATION, _BEYOND_SIMULATION_SPREAD
    return _BEYOND_SEGMENTS, _BEYOND_SEGMENTS_SPREAD


def most_likely(layout: ParallelLayout) -> float:
    """The highest probability to fit that a rank of `layout` is given."""
    return _CONTEXT_RANKS_MOST if layout.context_parallel_size > 1 else 1.0


def reserved_memory(
    allocated: int,
    layout: ParallelLayout,
    *,
    expandable_segments: bool,
    error: float = _MODEL_ERROR,
    pools: tuple[NamedBytes, ...] = (),
    unsure: int = 0,
    unused: int | None = None,
    engine: bool = False,
    eager: bool = False,
    uneven: Unevenness = EVEN,
    others: tuple[NamedBytes, ...] = (),
) -> Reserved:
    """Reserved peak of a rank with `allocated` bytes.

    Fragmentation, the CUDA context, NCCL's buffers and `pools` come to what is allocated, all in
    bytes. Sources: the comments at the constants.
    error: of allocated bytes, one sigma as a fraction of them (see `model_error`).
    pools: what the allocator caches for other streams than the computing one, free at the peak.
    unsure: bytes by which activations may differ, one sigma.
    unused: bytes that the allocator holds beyond what is allocated at the peak, by a simulation.
    engine: whether the layers are Transformer Engine's; eager: torch's own kernels.
    others: what other processes hold of the card, to the byte."""
    beyond, share = _beyond_simulation(expandable_segments=expandable_segments, engine=engine)
    spread = share * allocated
    if unused is None:
        usual, usual_spread = _usual(expandable_segments=expandable_segments, eager=eager)
        fragmentation = usual * allocated
        spread = hypot(spread, usual_spread * allocated)
    else:
        fragmentation = float(unused)
    fragmentation += beyond * allocated
    if layout.context_parallel_size > 1:
        spread = hypot(spread, _CONTEXT_RANKS_SPREAD * allocated)
    fixed, fixed_bytes, variance = _fixed_terms(layout, pools)
    fixed, fixed_bytes = (*fixed, *others), fixed_bytes + sum(term.num_bytes for term in others)
    return Reserved(
        allocated=allocated,
        total=allocated + int(fragmentation) + fixed_bytes,
        fragmentation=int(fragmentation),
        fixed=fixed,
        spread=sqrt((error * allocated) ** 2 + spread**2 + variance + unsure**2),
        spreads=(error * allocated, spread, sqrt(variance)),
        uneven=uneven,
        unused=unused,
        most_likely=most_likely(layout),
    )
