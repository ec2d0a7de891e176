"""Fits the constants of advisor.time.attention on benchmarks of attention kernels.

python -m research.kernels.attention   print constants, errors, those of rows left out

Rows: results/published/kernels/attention.csv, and what was timed here (results/measured). They are
of kernels alone: what a training step reaches below them is another constant, of whole steps.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean
from typing import Any, Final

from msgspec import Struct
from scipy.optimize import least_squares

from advisor.base.documents import read_json_lines
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.layers.operators import AttentionShape
from advisor.time.attention import AttentionRates, Reached, attention_seconds, softmax_flops
from research.rows.row import MEASURED, PUBLISHED

TABLE: Final = PUBLISHED / "kernels" / "attention.csv"
_GPUS: Final = {"h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB"}
FAMILIES: Final = {8.0: "a100", 9.0: "h100", 10.0: "b200", 10.3: "b200"}
"""Calibration by compute capability."""

_LEAST_TOKENS: Final = 2048
"""Of sequences that people train on."""
_LEAST_SECONDS: Final = 2e-4
"""Of our own samples: shorter ones are as long as the host takes to queue them."""
_KERNEL_SECONDS: Final = 4e-6
_FEW: Final = 0.05
"""Errors beyond this weigh less than their squares: some rows are of throttled GPUs."""


class Timed(Struct, frozen=True, kw_only=True):
    """One kernel with its seconds."""

    source: str
    gpu: str
    backward: bool
    kernel: AttentionShape
    forward_flops: int
    seconds: float


class Constant(Struct, frozen=True, kw_only=True):
    """A fitted constant; `field` is Calibration's, or names a shared one of advisor.time.attention.
    mean_error, worst_error: of the rows it was fitted on."""

    family: str
    field: str
    value: float
    unit: str
    rows: int
    mean_error: float
    worst_error: float


def published(path: Path = TABLE) -> tuple[Timed, ...]:
    """Rows of the table that the model is meant for: deterministic kernels only where there are no
    others, 8 bits only forward (cuDNN's backward has slow paths there), no short sequences."""
    with path.open(encoding="utf-8") as file:
        rows = [_published_row(row) for row in csv.DictReader(file) if _is_meant(row)]
    return tuple(rows)


def _is_meant(row: Mapping[str, str]) -> bool:
    if int(row["seq_length"]) < _LEAST_TOKENS or row["precision"] == "mxfp8":
        return False
    eight, backward = row["precision"] == "fp8", row["direction"] == "backward"
    if eight and (backward or row["window"] != "0" or row["gpu"].startswith("H100")):
        return False
    return row["deterministic"] == "0" or row["gpu"].startswith("H200")


def _published_row(row: Mapping[str, str]) -> Timed:
    qk, v = int(row["qk_channels"]), int(row["v_channels"])
    batch, seq, heads = (int(row[name]) for name in ("batch", "seq_length", "heads"))
    window, causal = int(row["window"]), row["causal"] == "1"
    flops = _flops(batch * heads, seq, qk + v, window, causal=causal)
    backward = row["direction"] == "backward"
    wanted = flops * (3 * qk + 2 * v) / (qk + v) if backward else flops
    return Timed(
        source=row["source"],
        gpu=row["gpu"],
        backward=backward,
        kernel=AttentionShape(
            rows=batch * heads * seq,
            longest=window or seq,
            qk_channels=qk,
            v_channels=v,
            windowed=window > 0,
            fused=row["kernel"] != "fa2",
            narrow=row["precision"] == "fp8",
        ),
        forward_flops=flops,
        seconds=wanted / (float(row["tflops"]) * 1e12),
    )


def _flops(sequences: int, seq: int, channels: int, window: int, *, causal: bool) -> int:
    """Of the forward, over the pairs that the mask leaves."""
    pairs = seq * seq // 2 if causal else seq * seq
    if window:
        pairs = window * (2 * seq - window) // 2
    return 2 * sequences * pairs * channels


def measured() -> tuple[Timed, ...]:
    """Samples of causal attention that were taken here, long enough to tell the device's time."""
    found = []
    for name, gpu in _GPUS.items():
        journal = MEASURED / name / "calibrated" / "calibration" / f"{name}.jsonl"
        for line in read_json_lines(journal) or ():
            kind = str(line.get("kind", ""))
            if "attention" in kind and line["seconds"] >= _LEAST_SECONDS:
                found.append(_measured_row(name, gpu, kind, line))
    return tuple(row for row in found if row.kernel.longest >= _LEAST_TOKENS)


def _measured_row(name: str, gpu: str, kind: str, line: Mapping[str, Any]) -> Timed:
    batch, seq, heads, width, v = line["sizes"]
    qk = width if kind.startswith("latent") else v
    return Timed(
        source=f"results/measured/{name}",
        gpu=gpu,
        backward=kind.endswith("backward"),
        kernel=AttentionShape(
            rows=batch * heads * seq,
            longest=seq,
            qk_channels=qk,
            v_channels=v,
            fused=line["variant"] != "flash",
        ),
        forward_flops=_flops(batch * heads, seq, qk + v, 0, causal=True),
        seconds=line["seconds"],
    )


@cache
def _gpu(name: str) -> Gpu:
    return load_gpu(name)


def family(row: Timed) -> str:
    """Name of the calibration that a row tells of."""
    return FAMILIES[_gpu(row.gpu).compute_capability]


SHARED: Final = {
    "uncovered": (0.9, "of the exponentials' time"),
    "uncovered_blackwell": (0.6, "of the exponentials' time"),
    "wide_backward": (0.8, "of the rate at head size 128"),
    "fused_tail": (0.5, "of FlashAttention-2's tail"),
}
"""Names, where the fit begins, and units of what all GPUs have in common."""
FIELDS: Final = {
    "attention_forward_efficiency": (0.4, "of the 16-bit peak"),
    "attention_backward_efficiency": (0.35, "of the 16-bit peak"),
    "fused_attention_forward_efficiency": (0.65, "of the 16-bit peak"),
    "fused_attention_backward_efficiency": (0.55, "of the 16-bit peak"),
    "attention_half_rate_rows": (2e4, "rows"),
    "attention_half_rate_tokens": (700.0, "tokens"),
}
"""The same of a Calibration's fields."""


def constants_of(row: Timed) -> tuple[str, ...]:
    """Fields that a row's time depends on."""
    fused = "fused_" if row.kernel.fused else ""
    direction = "backward" if row.backward else "forward"
    efficiency = f"{fused}attention_{direction}_efficiency"
    return efficiency, "attention_half_rate_rows", "attention_half_rate_tokens"


def predicted(row: Timed, values: Mapping[tuple[str, str], float]) -> float:
    """Seconds of a row by constants under (family, field); shared ones have no family."""
    gpu, name = _gpu(row.gpu), family(row)
    efficiency, *_ = constants_of(row)
    reached = values[name, efficiency]
    blackwell = "_blackwell" if gpu.compute_capability >= 10 else ""
    rates = AttentionRates(
        peak_flops=gpu.bf16_flops,
        flash=Reached(reached, reached),
        fused=Reached(reached, reached),
        softmax_flops=softmax_flops(gpu.compute_capability, values["", f"uncovered{blackwell}"]),
        narrow_speedup=(gpu.fp8_flops or gpu.bf16_flops) / gpu.bf16_flops,
        half_rate_rows=values[name, "attention_half_rate_rows"],
        half_rate_tokens=values[name, "attention_half_rate_tokens"],
        wide_backward=values["", "wide_backward"],
        fused_tail=values["", "fused_tail"],
    )
    seconds = attention_seconds(row.kernel, row.forward_flops, rates, backward=row.backward)
    return seconds + _KERNEL_SECONDS


def fit(rows: Sequence[Timed]) -> dict[tuple[str, str], float]:
    """Least squares of the logarithms, every source with the same weight."""
    begin: dict[tuple[str, str], float] = {("", name): at for name, (at, _) in SHARED.items()}
    for row in rows:
        begin |= {(family(row), field): FIELDS[field][0] for field in constants_of(row)}
    keys, sources = list(begin), [row.source for row in rows]
    weights = [1 / sqrt(sources.count(source)) for source in sources]

    def values(shifts: Sequence[float]) -> dict[tuple[str, str], float]:
        return {
            key: begin[key] * exp(float(shift)) for key, shift in zip(keys, shifts, strict=True)
        }

    def residuals(shifts: Sequence[float]) -> list[float]:
        constants = values(shifts)
        misses = [
            weight * log(predicted(row, constants) / row.seconds) / _FEW
            for row, weight in zip(rows, weights, strict=True)
        ]
        return [*misses, *(0.1 * shift for shift in shifts)]

    return values(least_squares(residuals, [0.0] * len(keys), loss="soft_l1").x)


def errors(rows: Sequence[Timed], values: Mapping[tuple[str, str], float]) -> list[float]:
    """Predicted over measured, less one."""
    return [predicted(row, values) / row.seconds - 1 for row in rows]


def left_out(rows: Sequence[Timed]) -> dict[str, list[float]]:
    """By source and GPU the errors of its rows under a fit that has not seen them; those without
    which a constant is not known at all are not left out."""
    found = {}
    for source, gpu in dict.fromkeys((row.source, row.gpu) for row in rows):
        unseen = [row for row in rows if (row.source, row.gpu) == (source, gpu)]
        seen = [row for row in rows if (row.source, row.gpu) != (source, gpu)]
        known = {(family(row), field) for row in seen for field in constants_of(row)}
        unseen = [
            row for row in unseen if all((family(row), f) in known for f in constants_of(row))
        ]
        if unseen:
            found[f"{gpu}, {source}"] = errors(unseen, fit(seen))
    return found


def constants(rows: Sequence[Timed]) -> tuple[Constant, ...]:
    """Every constant with its value, unit, rows and their errors."""
    values = fit(rows)
    made = []
    for (name, field), value in values.items():
        of_it = [
            row for row in rows if not name or (family(row) == name and field in constants_of(row))
        ]
        off = [abs(error) for error in errors(of_it, values)]
        made.append(
            Constant(
                family=name or "shared",
                field=field,
                value=value,
                unit=(FIELDS if name else SHARED)[field][1],
                rows=len(of_it),
                mean_error=mean(off),
                worst_error=max(off),
            )
        )
    return tuple(made)


def main() -> None:
    """Print the constants and both errors."""
    rows = (*published(), *measured())
    for one in constants(rows):
        value = f"{one.family:<7} {one.field:<36} {one.value:10.3g} {one.unit}"
        print(f"{value}, {one.rows} rows, mean {one.mean_error:.1%}, worst {one.worst_error:.0%}")
    for source, off in left_out(rows).items():
        sizes = [abs(error) for error in off]
        error = f"mean {mean(sizes):.1%} ({mean(off):+.1%}), worst {max(sizes):.0%}"
        print(f"left out {source[:60]}: {len(off)} rows, {error}")


if __name__ == "__main__":
    main()
