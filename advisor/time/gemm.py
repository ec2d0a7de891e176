"""Seconds of matrix multiplications by their shape: tiles and waves, traffic, power, casts.

A kernel cuts its result into tiles, one a multiprocessor (SM) at a time. What is left over for the
last wave, the fill and drain of every tile, the traffic of thin shapes and the clock that the power
limit allows decide how much of the tensor cores' rate is reached. Constants: Calibration, fitted
in research.kernels.gemm_fit. Left out: which kernel of its many a library picks, operand
layouts, what another kernel leaves in the caches.
"""

from functools import lru_cache
from math import inf

from msgspec import Struct

from advisor.layers.operators import Gemm

_TILES = (
    *((128, 256), (256, 128), (128, 192), (192, 128)),
    *((128, 128), (128, 64), (64, 128), (64, 64)),
)
"""Rows and columns of a tile of the result (cuBLAS, CUTLASS: names of their kernels); on Blackwell
what one of a pair of multiprocessors holds."""
_EXPOSED = 0.3
"""Of a tile's fill and drain, what a multiprocessor cannot hide behind its next tile: the best of
0, 0.15, 0.3, 0.6 and 1 for sources left out of the fit."""
_HIDDEN = 1 - _EXPOSED
_LEAST_SPLIT = 512
"""Of the inner dimension: no part of a split one is shorter."""
_PARTIAL_BYTES = 8
"""Of a split inner dimension: an fp32 sum written and read again, per element and part."""
_SMOOTH = 4
"""Exponent that joins matmul and traffic: 0.84 of the sum's part where both take as long."""
_STREAMS = 4
"""On which Transformer Engine queues the GEMMs of experts (common/gemm, num_cublas_streams)."""
_RESULT_BYTES = 2


class GemmRates(Struct, frozen=True, kw_only=True):
    """What GEMMs of one operand width run at on one GPU.

    flops: dense FLOP/s of all multiprocessors at full clock, within a tile.
    sustained_flops: FLOP/s at the clock that the power limit allows: no GEMM of a step is faster.
    grouped_share: of both, what a GEMM of several experts reaches.
    tile_seconds: fill and drain of a tile.
    operand_bytes: of one element. bytes_per_second: memory.
    """

    flops: float
    sustained_flops: float
    multiprocessors: int
    bytes_per_second: float
    kernel_seconds: float
    operand_bytes: float = 2.0
    tile_seconds: float = 0.0
    grouped_share: float = 1.0


@lru_cache(maxsize=16384)
def forward_gemm_seconds(gemm: Gemm, rates: GemmRates) -> float:
    """[m, k] x [k, n], rows shared evenly by the groups."""
    rows = -(-gemm.m // gemm.groups)
    return matmul_seconds(rates, rows, gemm.n, gemm.k, gemm.groups, gemm.kernels)


@lru_cache(maxsize=16384)
def input_gradient_seconds(gemm: Gemm, rates: GemmRates) -> float:
    """[m, n] x [n, k]."""
    rows = -(-gemm.m // gemm.groups)
    return matmul_seconds(rates, rows, gemm.k, gemm.n, gemm.groups, gemm.kernels)


@lru_cache(maxsize=16384)
def weight_gradient_seconds(gemm: Gemm, rates: GemmRates) -> float:
    """[n, m] x [m, k]: one result a group, deep where there are many tokens; main_grad is read and
    written."""
    rows = -(-gemm.m // gemm.groups)
    written = 2 * gemm.main_grad_itemsize or _RESULT_BYTES
    return matmul_seconds(
        rates, gemm.n, gemm.k, rows, gemm.groups, gemm.kernels, result_bytes=written
    )


def matmul_seconds(
    rates: GemmRates,
    m: int,
    n: int,
    k: int,
    groups: int = 1,
    kernels: int = 1,
    *,
    result_bytes: int = _RESULT_BYTES,
) -> float:
    """`groups` products [m, k] x [k, n], their tiles spread over the multiprocessors together.

    Kernels on several streams fill each other's last waves, so that a kernel an expert differs from
    one for all of them in the fixed time only.
    """
    if not m * n * k:
        return 0.0
    share = rates.grouped_share if groups > 1 else 1.0
    flops = 2.0 * m * n * k * groups
    tensor = max(_tiled(rates, m, n, k, groups), flops / rates.sustained_flops) / share
    moved = (m + n) * k * rates.operand_bytes + m * n * result_bytes
    traffic = groups * moved / rates.bytes_per_second
    both: float = (tensor**_SMOOTH + traffic**_SMOOTH) ** (1 / _SMOOTH)
    return both + rates.kernel_seconds * -(-kernels // _STREAMS)


def _tiled(rates: GemmRates, m: int, n: int, k: int, groups: int) -> float:
    """Seconds at full clock by the best of tiles, and of splits of the inner dimension where there
    are fewer tiles than multiprocessors (split-K)."""
    processors, fill = rates.multiprocessors, rates.tile_seconds
    element = 2.0 * k * processors / rates.flops
    most_parts = k // _LEAST_SPLIT
    each = m * n * groups / processors
    best = inf
    for rows, columns in _TILES:
        area = rows * columns
        if element * each + fill * (_HIDDEN + _EXPOSED * each / area) >= best:
            break  # no smaller tile is better, were all its waves full
        tiles = -(-m // rows) * -(-n // columns) * groups
        tile = element * area
        waves = -(-tiles // processors)
        best = min(best, waves * tile + fill * (_HIDDEN + _EXPOSED * waves))
        parts = min(processors // tiles, most_parts)
        if parts > 1:
            sums = _PARTIAL_BYTES * parts * m * n * groups / rates.bytes_per_second
            best = min(best, tile / parts + 2 * fill + sums)
    return best
