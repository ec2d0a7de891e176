"""What a reader of a calibration must know and no field of it holds."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from msgspec import Struct

from harness.calibration.bench.cases import ATTENTION, LATENT_ATTENTION, Case, CaseKind, Sample
from harness.calibration.bench.shapes import GROUPED_VARIANTS
from harness.calibration.efficiencies import Rates, Resource, fitted_samples, large
from harness.calibration.reference import Reference
from harness.measure.trust import HARMLESS_REASONS
from harness.trial.result import GpuLoad

_LONG: Final = 2048
"""Tokens of a sequence that people train on."""
ATTENTION_WORDS: Final = {
    "flash": "flash attention, as the native backend runs it",
    "torch": "torch's attention on a CPU, as the native backend runs it",
    "cudnn": "cuDNN attention, since flash attention was not timed",
}
_DIRECTIONS: Final = ("forward", "backward")
_NO_CONSTANT: Final = "measured, but not used by the fit"


def remarks(relative_to: Reference, rates: Rates, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Sentences for the head of the file."""
    gpu = relative_to.gpu
    said = [
        f"efficiencies are fractions of the peaks in hardware/{gpu.name}.yaml, measured with plain "
        "torch kernels, as in the native backend; fused kernels and cuDNN attention are faster"
    ]
    if relative_to.measured:
        said.append(
            f"this device has no datasheet: its peaks are the best rates measured here, "
            f"{gpu.bf16_flops / 1e12:.3g} TFLOP/s (bf16 GEMM) and "
            f"{gpu.memory_bandwidth_bytes_per_second / 1e9:.3g} GB/s"
        )
    held = lasting(samples)
    if held is not None:
        said.append(f"{held.words} (a single GEMM; no constant uses it)")
    said += _attention(samples)
    for resource in (Resource.TO_DEVICE, Resource.TO_HOST):
        if resource in rates.of:
            said.append(f"host copies, {resource}: {rates.of[resource].value / 1e9:.1f} GB/s")
    copies = [sample.rate for sample in samples if sample.case.kind is CaseKind.COPY]
    if copies:
        said.append(f"best copy within the device: {max(copies) / 1e9:.0f} GB/s")
    return (*said, *_experts(samples), *_latent(samples), *_host(samples))


def _attention(samples: Sequence[Sample]) -> Iterator[str]:
    """Which implementation is fitted, and how much faster cuDNN's is where both ran."""
    fitted = {s.case.variant for s in fitted_samples(samples) if s.case.kind in ATTENTION}
    for variant in sorted(fitted):
        yield f"attention: {ATTENTION_WORDS.get(variant, variant)}"
    found = [
        f"{name} {median(ratios):.2f} times as fast ({len(ratios)} shapes)"
        for kind, name in zip(ATTENTION, _DIRECTIONS, strict=True)
        if (ratios := _ratios(samples, kind, "cudnn", "flash"))
    ]
    if found:
        yield f"cuDNN attention compared with flash (not in the fit): {', '.join(found)}"


def _ratios(samples: Sequence[Sample], kind: CaseKind, one: str, other: str) -> list[float]:
    """Rates of the variant `one` over those of `other`, of the sizes that both ran."""
    of_kind = [sample for sample in samples if sample.case.kind is kind]
    first, second = (
        {s.case.sizes: s.rate for s in of_kind if s.case.variant == variant}
        for variant in (one, other)
    )
    return [rate / second[sizes] for sizes, rate in first.items() if sizes in second]


def _experts(samples: Sequence[Sample]) -> Iterator[str]:
    parts = [
        f"{variant.replace('_', ' ')} {rate}"
        for variant in GROUPED_VARIANTS
        if (rate := _large_rate(samples, CaseKind.GROUPED_GEMM, variant))
    ]
    if parts:
        yield f"large expert GEMMs: {', '.join(parts)}; {_NO_CONSTANT}"


def _latent(samples: Sequence[Sample]) -> Iterator[str]:
    long = [s for s in samples if s.case.kind in LATENT_ATTENTION and s.case.sizes[1] >= _LONG]
    parts = [
        f"{name} {rate}"
        for kind, name in zip(LATENT_ATTENTION, _DIRECTIONS, strict=True)
        if (rate := _large_rate(long, kind))
    ]
    if parts:
        yield f"latent attention (MLA), large shapes: {', '.join(parts)}; {_NO_CONSTANT}"


def _large_rate(samples: Sequence[Sample], kind: CaseKind, variant: str = "") -> str:
    """Empty where none was timed."""
    found = [s for s in samples if s.case.kind is kind and s.case.variant == variant]
    return f"{median(s.rate for s in large(found)) / 1e12:.3g} TFLOP/s" if found else ""


def _host(samples: Sequence[Sample]) -> Iterator[str]:
    """Seconds that a step cannot be faster than, however small its kernels are."""
    launches = [s.seconds for s in samples if s.case.kind is CaseKind.HOST_LAUNCH]
    parts = [f"{seconds * 1e6:.1f} µs to queue a kernel" for seconds in launches]
    for kind, words in _HOST_LAYERS.items():
        layers = [s for s in samples if s.case.kind is kind]
        if layers:
            each = ", ".join(f"{s.case.variant} {s.seconds * 1e3:.2f} ms" for s in layers)
            parts.append(f"{words}: {each}")
    if parts:
        yield f"host: {'; '.join(parts)}"


_HOST_LAYERS: Final = {
    CaseKind.HOST_LAYER: "forward and backward of a native layer",
    CaseKind.HOST_REPLAY: "with a replay of the whole layer",
}


class Lasting(Struct, frozen=True, kw_only=True):
    """One GEMM held for seconds: its rate over that of its short burst, at most 1, and the load. It
    is printed, and scales nothing: a GEMM alone draws more power than a step. On an H100 of 700 W
    one held for 5 s ran at 1,350 MHz and 0.86 of its burst, dense training steps at 1,545 MHz and
    more; by bursts they are predicted 2 % off, by what was held 13 % (results/measured/h100)."""

    ratio: float
    load: GpuLoad

    @property
    def words(self) -> str:
        """``sustained 0.93 of the burst rate, SM clock 1,755 of 1,980 MHz, 690 W``, as known."""
        load, said = self.load, [f"sustained {self.ratio:.2f} of the burst rate"]
        if load.sm_clock_mhz is not None:
            highest = "" if load.max_sm_clock_mhz is None else f" of {load.max_sm_clock_mhz:,.0f}"
            said.append(f"SM clock {load.sm_clock_mhz:,.0f}{highest} MHz")
        if load.power_watts is not None:
            said.append(f"{load.power_watts:,.0f} W")
        said += [r for r in load.throttle_reasons or () if r not in HARMLESS_REASONS]
        return ", ".join(said)


def lasting(samples: Sequence[Sample]) -> Lasting | None:
    """Out of the held GEMM and the burst of the same one; None where either is missing."""
    by_case = {sample.case: sample for sample in samples}
    for sample in samples:
        case = sample.case
        burst = by_case.get(Case(kind=CaseKind.GEMM, sizes=case.sizes, variant=case.variant))
        if case.kind is CaseKind.SUSTAINED_GEMM and burst is not None:
            return Lasting(
                ratio=min(1.0, burst.seconds / sample.seconds), load=sample.load or GpuLoad()
            )
    return None
