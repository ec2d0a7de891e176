"""Fits the constants of advisor.time.attention on benchmarks of attention kernels.

python -m research.kernels.attention   print constants, errors, those of rows left out

Rows: results/published/kernels/attention.csv, and what was timed here (results/measured). They are
of kernels alone: what a training step reaches below them is another constant, of whole steps.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_json_lines
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.layers.operators import AttentionShape
from advisor.time.attention import AttentionRates, Reached, attention_seconds, softmax_flops
from advisor.time.machine import power_ratio
from research.kernels.least_squares import Constant, Errors, Fit, fitted, splits
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
def _power_ratio(name: str) -> float:
    gpu = _gpu(name)
    return power_ratio(gpu, load_calibration(gpu))


@cache
def _gpu(name: str) -> Gpu:
    return load_gpu(name)


def family(row: Timed) -> str:
    """Name of the calibration that a row tells of."""
    return FAMILIES[_gpu(row.gpu).compute_capability]


_WIDE: Final = 10.0
"""Prior of a constant that rows tell well."""
SHARED: Final = tuple(
    Constant(field=field, value=value, unit=unit, sigma=_WIDE)
    for field, value, unit in (
        ("uncovered", 0.9, "of the exponentials' time"),
        ("uncovered_blackwell", 0.6, "of the exponentials' time"),
        ("wide_backward", 0.8, "of the rate at head size 128"),
        ("fused_tail", 0.5, "of FlashAttention-2's tail"),
    )
)
"""What all GPUs have in common."""
OF_FAMILY: Final = tuple(
    Constant(field=field, value=value, unit=unit, sigma=_WIDE)
    for field, value, unit in (
        ("attention_forward_efficiency", 0.4, "of the 16-bit peak"),
        ("attention_backward_efficiency", 0.35, "of the 16-bit peak"),
        ("fused_attention_forward_efficiency", 0.65, "of the 16-bit peak"),
        ("fused_attention_backward_efficiency", 0.55, "of the 16-bit peak"),
        ("attention_half_rate_rows", 2e4, "rows"),
        ("attention_half_rate_tokens", 700.0, "tokens"),
    )
)
"""Fields of a Calibration."""


def constants_of(row: Timed) -> tuple[str, ...]:
    """Fields that a row's time depends on."""
    fused = "fused_" if row.kernel.fused else ""
    direction = "backward" if row.backward else "forward"
    efficiency = f"{fused}attention_{direction}_efficiency"
    return efficiency, "attention_half_rate_rows", "attention_half_rate_tokens"


def predicted(row: Timed, values: Mapping[str, float]) -> float:
    """Seconds of a row by the constants of its family."""
    gpu = _gpu(row.gpu)
    reached = values[constants_of(row)[0]]
    blackwell = "_blackwell" if gpu.compute_capability >= 10 else ""
    rates = AttentionRates(
        peak_flops=gpu.bf16_flops * _power_ratio(row.gpu),
        flash=Reached(reached, reached),
        fused=Reached(reached, reached),
        softmax_flops=softmax_flops(gpu.compute_capability, values[f"uncovered{blackwell}"]),
        narrow_speedup=(gpu.fp8_flops or gpu.bf16_flops) / gpu.bf16_flops,
        half_rate_rows=values["attention_half_rate_rows"],
        half_rate_tokens=values["attention_half_rate_tokens"],
        wide_backward=values["wide_backward"],
        fused_tail=values["fused_tail"],
    )
    seconds = attention_seconds(row.kernel, row.forward_flops, rates, backward=row.backward)
    return seconds + _KERNEL_SECONDS


def fit(rows: Sequence[Timed]) -> Fit:
    """Every source has the same weight."""
    known = dict.fromkeys((family(row), field) for row in rows for field in constants_of(row))
    begin = {one.field: one for one in OF_FAMILY}
    moved = [*SHARED, *(replace(begin[field], family=name) for name, field in known)]
    counts = Counter(row.source for row in rows)
    weights = [1 / sqrt(counts[row.source]) / _FEW for row in rows]

    def misses(tried: Fit) -> Iterator[float]:
        values = {name: tried.values(name) for name, _ in known}
        for row, weight in zip(rows, weights, strict=True):
            yield weight * log(predicted(row, values[family(row)]) / row.seconds)

    return fitted(moved, {}, misses)


def errors(rows: Iterable[Timed], found: Fit) -> list[float]:
    """Predicted over measured, less one."""
    return [predicted(row, found.values(family(row))) / row.seconds - 1 for row in rows]


def left_out(rows: Sequence[Timed]) -> Iterator[tuple[str, Errors]]:
    """By source and GPU the errors of its rows by a fit that has not seen them; those without
    which a constant is not known at all are not left out."""
    for (source, gpu), seen, own in splits(rows, lambda row: (row.source, row.gpu)):
        known = {(family(row), field) for row in seen for field in constants_of(row)}
        unseen = [row for row in own if all((family(row), f) in known for f in constants_of(row))]
        if unseen:
            yield f"{gpu}, {source}", Errors.of(errors(unseen, fit(seen)))


def constants(rows: Sequence[Timed]) -> Iterator[tuple[Constant, float, Errors]]:
    """Every constant with its fitted value, and errors of the rows that it is fitted on."""
    found = fit(rows)
    for one in found.constants:
        of_it = (row for row in rows if one.moves(family(row)))
        if one.family:
            of_it = (row for row in of_it if one.field in constants_of(row))
        yield one, found.values(one.family)[one.field], Errors.of(errors(of_it, found))


def main() -> None:
    """Print the constants and both errors."""
    rows = (*published(), *measured())
    for one, value, error in constants(rows):
        words = f"{one.family or 'shared':<7} {one.field:<36} {value:10.3g} {one.unit}"
        print(f"{words}, {_words(error)}")
    for source, error in left_out(rows):
        print(f"left out {source[:60]}: {_words(error)}")


def _words(error: Errors) -> str:
    return (
        f"{error.count} rows, mean {error.mean:.1%} ({error.bias:+.1%}), "
        f"worst {abs(error.worst):.0%}"
    )


if __name__ == "__main__":
    main()
