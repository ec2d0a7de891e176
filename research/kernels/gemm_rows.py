"""Times of GEMMs by shape: published ones (results/published/kernels) and those measured here."""

import csv
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Final

from msgspec import Struct

from advisor.base.documents import read_json_lines
from advisor.base.dtypes import Precision
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.layers.operators import Gemm
from harness.calibration.bench.cases import CaseKind, read_sample
from research.rows.row import MEASURED, PUBLISHED

KERNELS: Final = PUBLISHED / "kernels"

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3}
_PRECISIONS: Final = {
    "bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "fp8": Precision.FP8_CURRENT,
    "fp8_current": Precision.FP8_CURRENT,
    "fp8_delayed": Precision.FP8_DELAYED,
    "mxfp8": Precision.MXFP8,
    "nvfp4": Precision.NVFP4,
}
_LEAST_FLOPS: Final = 2**30
"""Smaller GEMMs take a kernel's fixed time, whatever their shape."""
_LASTING_SECONDS: Final = 4e-3
"""A kernel of this length is measured under the power limit: within one as long the clock follows
the load (our own samples of 4 ms and more lie at the sustained one's rate; a judgement)."""


class GemmRow(Struct, frozen=True, kw_only=True):
    """Seconds of GEMMs that ran one after another: `passes` of each of `gemms`.

    sustained: under lasting load, the clock lowered by the power limit. family: of GPUs.
    """

    gpu: Gpu
    precision: Precision
    gemms: tuple[Gemm, ...]
    passes: str
    sustained: bool
    seconds: float
    source: str

    @property
    def family(self) -> str:
        """Calibration that serves the GPU."""
        return family_of(self.gpu)

    @property
    def grouped(self) -> bool:
        """Whether experts share the rows."""
        return any(gemm.groups > 1 for gemm in self.gemms)

    @property
    def group(self) -> str:
        """Rows that are reported together."""
        bits = "16" if not self.precision.is_quantized else "8" if self.precision.is_fp8 else "4"
        kind = " grouped" if self.grouped else ""
        return f"{self.source.split(' ')[0]}, {self.gpu.name}, {bits} bits{kind}"


def family_of(gpu: Gpu) -> str:
    """Ampere, Hopper or Blackwell, by the calibration that they share."""
    return {8: "a100", 9: "h100", 10: "b200"}[int(gpu.compute_capability)]


def published_rows(name: str = "gemm") -> tuple[GemmRow, ...]:
    """The rows of a table of results/published/kernels."""
    with (KERNELS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_published(row) for row in csv.DictReader(file))


def _published(row: dict[str, str]) -> GemmRow:
    groups = int(row["groups"])
    shapes = [tuple(map(int, shape.split("x"))) for shape in row["shapes"].split("+")]
    gemms = tuple(Gemm(m, n, k, groups=groups) for m, n, k in shapes)
    value, unit = float(row["value"]), row["unit"]
    if unit == "TFLOP/s":
        (gemm,) = gemms
        seconds = gemm.flops / value / 1e12
    else:
        seconds = value * _SECONDS[unit]
    return GemmRow(
        gpu=load_gpu(row["gpu"]),
        precision=_PRECISIONS[row["precision"]],
        gemms=gemms,
        passes=row["pass"],
        sustained=row["load"] == "sustained",
        seconds=seconds,
        source=row["source"],
    )


def measured_rows(folder: Path = MEASURED) -> tuple[GemmRow, ...]:
    """GEMMs of the calibrations of our own H100 and H200, torch.mm and torch._grouped_mm."""
    return tuple(
        row
        for name in ("h100", "h200")
        for row in _measured(folder / name / "calibrated" / "calibration" / f"{name}.jsonl")
    )


def _measured(path: Path) -> Iterator[GemmRow]:
    for values in read_json_lines(path)[1:]:
        sample = read_sample(values)
        case = sample.case
        if case.kind is CaseKind.GROUPED_GEMM and case.variant == "grouped":
            experts, m, n, k = case.sizes
            gemm = Gemm(experts * m, n, k, groups=experts)
        elif case.kind in (CaseKind.GEMM, CaseKind.GEMM_FP8, CaseKind.SUSTAINED_GEMM):
            m, n, k = case.sizes
            gemm = Gemm(m, n, k)
        else:
            continue
        if 2 * prod((gemm.m, gemm.n, gemm.k)) >= _LEAST_FLOPS:
            yield GemmRow(
                gpu=load_gpu(path.stem),
                precision=Precision.FP8_CURRENT
                if case.kind is CaseKind.GEMM_FP8
                else Precision.BF16,
                gemms=(gemm,),
                passes="forward",
                sustained=case.kind is CaseKind.SUSTAINED_GEMM or sample.seconds > _LASTING_SECONDS,
                seconds=sample.seconds,
                source=f"results/measured/{path.stem}",
            )
