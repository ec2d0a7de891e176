"""Seconds of fused attention kernels by length, head size, mask, direction and kernel.

A block of rows of queries goes over the keys that it sees, and for every pair of a query and a key
does matmuls on the tensor cores and a softmax next to them, of whose time a part stays uncovered.
Fitted by research.kernels.attention; left out: clocks that power limits lower, dropout,
other biases than masks.
"""

from typing import Final

from msgspec import Struct

from advisor.layers.operators import AttentionShape

_CHANNELS: Final = 128
"""Head size that efficiencies are told at."""
_FORWARD_PRODUCTS: Final = 2 * _CHANNELS
_BACKWARD_PRODUCTS: Final = 5 * _CHANNELS
"""Channels of all matmuls of a pair: scores and context; back scores again, three of the width of
queries (their gradient, the keys') and two of the values'."""

_EXPONENTIAL_FLOPS: Final = {8.0: 128, 8.6: 64, 8.9: 64, 9.0: 256, 10.0: 512, 10.3: 256, 12.0: 64}
"""Dense 16-bit FLOPs of an SM in the time of one exponential, by compute capability: 2,048 a clock
(A100), 4,096 (Hopper), 8,192 (Blackwell) over 16 exponentials, 32 on Blackwell Ultra (NVIDIA: CUDA
programming guide, throughput of native arithmetic instructions; Blackwell Ultra's twice that)."""
_LEAST_KNOWN: Final = 128

_UNCOVERED: Final = 0.82
_UNCOVERED_BLACKWELL: Final = 0.72
"""Of the time that the exponentials take, what the matmuls do not cover: fitted. Blackwell has its
accumulators in a memory of their own, so that matmuls go on next to the softmax (arXiv 2603.05451).
"""
_BLACKWELL: Final = 10.0
_CONSUMER_BLACKWELL: Final = 12.0
"""Has no such memory (PTX ISA: tcgen05 is for sm_100, sm_103 and sm_110)."""
_BACKWARD_SOFTMAX: Final = 2.0
"""The backward's over the forward's: scores again, and their gradient."""

_WIDE_BACKWARD: Final = 0.78
"""Rate of the backward's matmuls where keys are wider than 128: its blocks are halved, as registers
and shared memory hold no two gradients of that width. Fitted to MLA (192 and 128), Hopper and
Blackwell."""
_FUSED_TAIL: Final = 0.45
"""How long the last blocks of cuDNN's and FlashAttention-3's kernels work while others have ended,
over FlashAttention-2's, which takes blocks as they come: fitted."""
_BLOCK_KEYS: Final = 128
"""Keys of a block: what a window is rounded up by beyond the diagonal."""


class Reached(Struct, frozen=True):
    """Fractions of the 16-bit peak at head size 128, of endlessly long sequences."""

    forward: float
    backward: float


class AttentionRates(Struct, frozen=True, kw_only=True):
    """What the attention kernels of one GPU reach.

    peak_flops: dense, 16 bits; narrow_speedup: of 8 bits over it. flash: FlashAttention-2; fused:
    kernels written for the architecture. half_rate_rows, half_rate_tokens: Calibration's
    attention_half_rate_rows and attention_half_rate_tokens. softmax_flops: see below.
    """

    peak_flops: float
    flash: Reached
    fused: Reached
    softmax_flops: float = 0.0
    narrow_speedup: float = 1.0
    half_rate_rows: float = 0.0
    half_rate_tokens: float = 0.0
    wide_backward: float = _WIDE_BACKWARD
    fused_tail: float = _FUSED_TAIL


def softmax_flops(compute_capability: float, uncovered: float | None = None) -> float:
    """Dense 16-bit FLOPs that the tensor cores could do while the softmax of one pair holds up the
    forward. uncovered: of the exponentials' time; by default that of the architecture."""
    if uncovered is None:
        tensor_memory = _BLACKWELL <= compute_capability < _CONSUMER_BLACKWELL
        uncovered = _UNCOVERED_BLACKWELL if tensor_memory else _UNCOVERED
    return uncovered * _EXPONENTIAL_FLOPS.get(compute_capability, _LEAST_KNOWN)


def attention_seconds(
    kernel: AttentionShape, forward_flops: int, rates: AttentionRates, *, backward: bool
) -> float:
    """Seconds of the matmuls and the softmax of one kernel, `forward_flops` of which are the
    forward's over the pairs that the mask leaves.

    Every row of queries pays for its block's start and end, and for the part of blocks that lies
    beyond the mask, as if it saw half_rate_tokens / 2 more keys; where few rows are left to fill
    the GPU, the longest of them decides.
    """
    channels = kernel.qk_channels + kernel.v_channels
    keys = forward_flops / (2 * channels * kernel.rows) + kernel.steps * rates.half_rate_tokens / 2
    if kernel.windowed:
        keys += _BLOCK_KEYS / 2
    tail = rates.half_rate_rows / 2 * (rates.fused_tail if kernel.fused else 1.0)
    pairs = kernel.rows * keys + tail * kernel.longest
    return pairs * _flops_of_a_pair(kernel, rates, backward=backward) / rates.peak_flops


def _flops_of_a_pair(kernel: AttentionShape, rates: AttentionRates, *, backward: bool) -> float:
    """FLOPs that the tensor cores could do in the time of one query and one key."""
    reached = rates.fused if kernel.fused else rates.flash
    softmax, qk, v = rates.softmax_flops, kernel.qk_channels, kernel.v_channels
    if backward:
        softmax *= _BACKWARD_SOFTMAX
        wanted = (3 * qk + 2 * v) / _BACKWARD_PRODUCTS
        matmuls = wanted * (2 * _BACKWARD_PRODUCTS / reached.backward - softmax)
        if qk > _CHANNELS:
            matmuls /= rates.wide_backward
    else:
        wanted = (qk + v) / _FORWARD_PRODUCTS
        matmuls = wanted * (2 * _FORWARD_PRODUCTS / reached.forward - softmax)
    if kernel.narrow:
        matmuls /= rates.narrow_speedup
    return matmuls + softmax
