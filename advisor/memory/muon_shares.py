"""Muon's share of a stage on each of its ranks: which weights, what states, how much work.

Megatron's layer-wise distributed optimizer (dist_muon) keeps tensors whole: those of a stage are
sorted by size and dealt to the data-parallel ranks to and fro, the routed experts' to the
expert-data-parallel ranks where EP > 1. Plain muon keeps all of them on every rank.

Source: megatron-core 0.16.1 optimizer/muon.py, optimizer/layer_wise_optimizer.py shard_params;
0.17.1 deals in the same way, and so do 0.18.2 and 0.19.2 without a parameter layout
(_shard_params_ping_pong).
"""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.memory.static import PLAIN_OPTIMIZER_BYTES, stage_weights

_MUON_BYTES = 2 * DType.FP32.itemsize
"""Main parameter and momentum of one element, fp32 each."""
_NEWTON_SCHULZ_STEPS = 5
"""OptimizerConfig.muon_num_ns_steps."""
_OF_ADAM = frozenset({"word_embeddings.weight", "output_layer.weight", "conv1d.weight"})
"""Embedding and output layer, by is_embedding_or_output_parameter; a convolution's weight has a
third dimension of one."""


class MuonShare(Struct, frozen=True, kw_only=True):
    """What the optimizer of one rank updates: parameters, bytes of their states, FLOPs of their
    orthogonalization. received: parameters of the larger of the groups, dense and experts, whose
    ranks gather them one after another; sent: this rank's own among those, 0 and 0 undealt."""

    elements: int = 0
    state_bytes: int = 0
    flops: int = 0
    received: int = 0
    sent: int = 0

    def __add__(self, other: "MuonShare") -> "MuonShare":
        larger = max((self, other), key=lambda share: share.received + share.sent)
        return MuonShare(
            elements=self.elements + other.elements,
            state_bytes=self.state_bytes + other.state_bytes,
            flops=self.flops + other.flops,
            received=larger.received,
            sent=larger.sent,
        )


def is_orthogonalized(weight: Weight) -> bool:
    """Whether Muon updates it: two dimensions, and neither embedding nor output layer."""
    return len(weight.shape) == 2 and weight.name not in _OF_ADAM


def newton_schulz_flops(rows: int, columns: int) -> int:
    """Of one matrix: with m the smaller side and n the larger, each step multiplies X Xt (2 m m n),
    its square (2 m m m) and the sum of both with X (2 m m n).

    Source: Jordan et al. 2024, "Muon"; emerging_optimizers muon_utils.py newton_schulz. Left out:
    Megatron takes query, key and value apart (muon_split_qkv), which costs less."""
    m, n = sorted((rows, columns))
    return _NEWTON_SCHULZ_STEPS * (4 * m * m * n + 2 * m**3)


@lru_cache(maxsize=1024)
def muon_shares(
    shape: RankShape, chunks: tuple[ModelChunk, ...], layout: ParallelLayout, *, dealt: bool
) -> tuple[MuonShare, ...]:
    """Shares of the ranks of the stage that holds `chunks`, in the order of the ranks.

    Ranks count TP first, then CP, then DP; the experts' ETP first, then EP (parallel_state.py).
    With one rank in the data-parallel group nothing is dealt, experts neither. State bytes are fp32
    main parameters and momentum, for Adam's tensors two moments. Held against the real optimizer in
    tests/oracles."""
    ranks = layout.data_parallel_size * layout.context_parallel_size
    dealt = dealt and ranks > 1
    apart = layout.expert_model_parallel_size > 1
    dense: list[tuple[Weight, int]] = []
    experts: list[tuple[Weight, int]] = []
    for weight, layers in stage_weights(shape, chunks):
        (experts if apart and weight.expert else dense).append((weight, layers * weight.copies))
    of_dense = _deal(dense, ranks if dealt else 1)
    of_experts = _deal(experts, layout.expert_data_parallel_size if dealt else 1)
    tp = layout.tensor_model_parallel_size
    cut = layout.expert_model_parallel_size * layout.expert_tensor_degree
    return tuple(
        of_dense[rank // tp % len(of_dense)] + of_experts[rank // cut % len(of_experts)]
        for rank in range(tp * ranks)
    )


def _deal(weights: Iterable[tuple[Weight, int]], ranks: int) -> tuple[MuonShare, ...]:
    """Tensors by ascending size to ranks 0, 1, … n-1, n-1, … 1, 0, 0, 1, …; Muon's come before
    Adam's of the same size."""
    ordered = sorted(weights, key=lambda held: (_size(held[0]), not is_orthogonalized(held[0])))
    turns = [*range(ranks), *reversed(range(ranks))]
    elements, states, flops = [0] * ranks, [0] * ranks, [0] * ranks
    turn = 0
    for weight, count in ordered:
        size, muon = _size(weight), is_orthogonalized(weight)
        each_bytes = size * (_MUON_BYTES if muon else PLAIN_OPTIMIZER_BYTES)
        work = newton_schulz_flops(*weight.shape) if muon else 0
        for _ in range(count):
            rank = turns[turn]
            turn = (turn + 1) % len(turns)
            elements[rank] += size
            states[rank] += each_bytes
            flops[rank] += work
    gathered = sum(elements) if ranks > 1 else 0
    return tuple(
        MuonShare(
            elements=elements[rank],
            state_bytes=states[rank],
            flops=flops[rank],
            received=gathered,
            sent=elements[rank] if gathered else 0,
        )
        for rank in range(ranks)
    )


def _size(weight: Weight) -> int:
    return weight.num_elements // weight.copies


def fullest_share(shares: tuple[MuonShare, ...]) -> MuonShare:
    """The one whose states take most bytes: the rank that runs out of memory first."""
    return max(shares, key=lambda share: share.state_bytes)
