"""What share of memory bandwidth kernels reach that are bound by it: fused ones, and torch's own.

python -m research.kernels.traffic   print shares by kernel and source, and the fit

Rows: results/published/kernels/traffic.csv. Traffic is counted as advisor.layers does, so that a
share makes up for what a kernel moves beyond that.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

from advisor.base.grouping import grouped
from advisor.hardware.catalogue import load_gpu
from research.rows.row import PUBLISHED

TABLE: Final = PUBLISHED / "kernels" / "traffic.csv"
FUSED, EAGER = "fused", "eager"
STREAMED: Final = ("cross_entropy",)
"""Casts and softmaxes of whole rows, which torch's own kernels stream as well as fused ones do."""

BYTES: Final[Mapping[tuple[str, str], float]] = {
    ("rms_norm", "forward"): 4,
    ("rms_norm", "backward"): 6,
    ("layer_norm", "forward"): 4,
    ("layer_norm", "backward"): 6,
    ("rms_norm_in_python", "forward"): 34,
    ("rms_norm_in_python", "backward"): 90,
    ("rotate_half", "forward"): 20,
    ("rotate_half", "backward"): 28,
    ("cross_entropy", "forward"): 18,
    ("cross_entropy", "backward"): 22,
}
"""Bytes of an element of 16 bits, as layers.eager and layers.transformers count them."""
EAGER_NORM_BACKWARD: Final = 10
"""torch's norms read input and gradient again for the weight's gradient (layers.eager.parts)."""
_KERNELS: Final[Mapping[tuple[str, str], int]] = {
    ("rms_norm_in_python", "forward"): 8,
    ("rms_norm_in_python", "backward"): 20,
    ("rotate_half", "forward"): 10,
    ("rotate_half", "backward"): 18,
    ("cross_entropy", "forward"): 3,
    ("cross_entropy", "backward"): 3,
}
_KERNEL_SECONDS: Final = 4e-6
_LEAST_BYTES: Final = 1e8
"""Traffic below which a kernel's fixed time decides."""


class Moved(Struct, frozen=True, kw_only=True):
    """A kernel, or a chain of torch's, with its traffic and seconds."""

    source: str
    gpu: str
    kernel: str
    implementation: str
    direction: str
    num_bytes: float
    seconds: float

    @property
    def share(self) -> float:
        """Of the datasheet's bandwidth, the kernels' fixed times taken off."""
        fixed = _KERNELS.get((self.kernel, self.direction), 1) * _KERNEL_SECONDS
        return self.num_bytes / max(self.seconds - fixed, _KERNEL_SECONDS) / _bandwidth(self.gpu)


@cache
def _bandwidth(gpu: str) -> float:
    return load_gpu(gpu).memory_bandwidth_bytes_per_second


def moved(path: Path = TABLE) -> tuple[Moved, ...]:
    """Rows of the table with traffic enough to tell a rate."""
    with path.open(encoding="utf-8") as file:
        rows = tuple(_row(row) for row in csv.DictReader(file))
    return tuple(row for row in rows if row.num_bytes >= _LEAST_BYTES)


def _row(row: Mapping[str, str]) -> Moved:
    kernel, direction = row["kernel"], row["direction"]
    each = BYTES[kernel, direction] * int(row["itemsize"]) / 2
    if row["implementation"] == EAGER and direction == "backward" and kernel.endswith("_norm"):
        each *= EAGER_NORM_BACKWARD / BYTES[kernel, direction]
    return Moved(
        source=row["source"],
        gpu=row["gpu"],
        kernel=kernel,
        implementation=row["implementation"],
        direction=direction,
        num_bytes=each * int(row["rows"]) * int(row["width"]),
        seconds=float(row["seconds"]),
    )


def share_of(rows: Iterable[Moved], implementation: str) -> float:
    """Median over kinds of kernels of the median share of each: sources have many norms."""
    kinds = grouped(
        ((row.gpu, row.kernel, row.direction), log(row.share))
        for row in rows
        if row.implementation == implementation and row.kernel not in STREAMED
    )
    return exp(median(median(of_kind) for of_kind in kinds.values()))


def left_out(rows: Sequence[Moved], implementation: str) -> dict[str, float]:
    """By GPU the share that the others' rows tell over its own, less one."""
    off = {}
    for gpu in dict.fromkeys(row.gpu for row in rows if row.implementation == implementation):
        others = share_of([row for row in rows if row.gpu != gpu], implementation)
        own = share_of([row for row in rows if row.gpu == gpu], implementation)
        off[gpu] = others / own - 1
    return off


def constants(rows: Sequence[Moved]) -> dict[str, float]:
    """Calibration's fields, the same for all GPUs."""
    fused = share_of(rows, FUSED)
    return {
        "bandwidth_efficiency": fused,
        "eager_bandwidth_share": share_of(rows, EAGER) / fused,
    }


def main() -> None:
    """Print shares, constants, and what GPUs left out say of them."""
    rows = moved()
    kinds = grouped(
        ((row.gpu, row.kernel, row.implementation, row.direction), row.share) for row in rows
    )
    for kind, shares in kinds.items():
        print(f"{' '.join(kind):<60} {len(shares):3} rows, {median(shares):.2f} of the datasheet")
    for field, value in constants(rows).items():
        print(f"{field}: {value:.3f}")
    for implementation in (FUSED, EAGER):
        for gpu, error in left_out(rows, implementation).items():
            print(f"left out {gpu}, {implementation}: {error:+.1%}")


if __name__ == "__main__":
    main()
