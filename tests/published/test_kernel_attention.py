"""Attention kernels next to published benchmarks and our own samples: advisor.time.attention with
the shipped constants, and what is known to be off.

Rows scatter by clocks: the same kernel at 32,768 tokens is up to 10 % slower than at 16,384, and
two readings of cuDNN's on Hopper lie 10 % apart. GB300 is up to 20 % faster than GB200,
which has the same peak: one calibration serves both, between them.
"""

from collections import defaultdict
from functools import cache
from statistics import mean

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.time.attention import attention_seconds
from advisor.time.machine import machine
from research.kernels.attention import Timed, family, measured, published

ROWS = (*published(), *measured())
SHIPPED = {"a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "b200": "B200-SXM-180GB"}


@cache
def calibration(name: str) -> Calibration:
    return load_calibration(load_gpu(SHIPPED[name]))


@cache
def gpu(name: str) -> Gpu:
    return load_gpu(name)


def off(row: Timed) -> float:
    """Predicted over measured, less one, by the shipped calibration of the row's family."""
    constants = calibration(family(row))
    rates = machine(gpu(row.gpu), constants, Precision.BF16).attention
    seconds = attention_seconds(row.kernel, row.forward_flops, rates, backward=row.backward)
    return (seconds + constants.kernel_seconds) / row.seconds - 1


def errors(**wanted: object) -> list[float]:
    """Of rows whose kernels have these values."""
    rows = [row for row in ROWS if family(row) in SHIPPED]
    return [
        off(row)
        for row in rows
        if all(getattr(row.kernel, name) == value for name, value in wanted.items())
    ]


def sizes(found: list[float]) -> list[float]:
    return [abs(error) for error in found]


def test_rows_of_every_kernel_are_there() -> None:
    counts: dict[str, int] = defaultdict(int)
    for row in ROWS:
        counts[family(row)] += 1
    assert dict(counts) == {"a100": 3, "h100": 309, "b200": 218}


def test_whole_causal_kernels() -> None:
    found = sizes(errors(windowed=False))
    assert mean(found) < 0.09
    assert max(found) < 0.35


def test_head_sizes() -> None:
    """The mean over each head size is no more than 12 % off."""
    for width in (64, 128, 192, 256):
        assert abs(mean(errors(windowed=False, qk_channels=width))) < 0.12


def test_eight_bits_forward() -> None:
    found = errors(narrow=True)
    assert mean(sizes(found)) < 0.10


def test_windows() -> None:
    """Of 1,024 on Hopper, and of 128 on Blackwell, where the forward takes up to twice as long as
    it should: blocks of few keys."""
    hopper = [off(row) for row in ROWS if row.kernel.windowed and family(row) == "h100"]
    assert max(sizes(hopper)) < 0.15
    blackwell = [off(row) for row in ROWS if row.kernel.windowed and family(row) == "b200"]
    assert max(sizes(blackwell)) < 0.57
