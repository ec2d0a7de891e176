"""Reached rates and the fixed cost of a kernel out of measured samples, and how well they hold. The
model is the advisor's own (advisor.time.roofline): work over a rate, and a fixed cost a kernel."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import product
from math import log
from statistics import harmonic_mean, median, pvariance, quantiles
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.grouping import grouped
from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.time.gemm import matmul_seconds
from advisor.time.machine import gemm_rates
from harness.calibration.bench.cases import (
    ATTENTION,
    BANDWIDTH,
    COLLECTIVES,
    HOST_COPIES,
    Case,
    CaseKind,
    Sample,
)
from harness.calibration.bench.shapes import host_operations


class Resource(StrEnum):
    """What a rate is of."""

    GEMM = "gemm"
    GEMM_FP8 = "gemm_fp8"
    ATTENTION_FORWARD = "attention_forward"
    ATTENTION_BACKWARD = "attention_backward"
    BANDWIDTH = "bandwidth"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "collective"
    TO_DEVICE = "to_device"
    TO_HOST = "to_host"


RESOURCES: Final = {
    **{kind: Resource(kind) for kind in (CaseKind.GEMM, CaseKind.GEMM_FP8, *ATTENTION)},
    **{kind: Resource(kind) for kind in HOST_COPIES},
    CaseKind.ADAM: Resource.OPTIMIZER,
    **dict.fromkeys(BANDWIDTH, Resource.BANDWIDTH),
    **dict.fromkeys(COLLECTIVES, Resource.COLLECTIVE),
}
"""A plain copy has no resource: it is a ceiling, and no kernel of a training step. Nor have grouped
GEMMs and latent attention, of which a calibration has no constant, and the host's times."""

FITTED_ATTENTION: Final = ("flash", "torch")
"""What the native backend runs: flash attention on a GPU, torch's own on a CPU. Megatron's backend
and Transformer Engine may take cuDNN's, whose samples are in the journal for another fit."""
_HALF_RATES: Final = tuple(product(range(0, 2**17, 2**12), range(0, 2**12, 2**8)))
"""What is tried: rows of queries, and tokens, at which attention reaches half its rate."""
_LEAST_ATTENTION: Final = 6
"""Samples of each direction below which there is no telling."""
_LEAST_TOKENS: Final = 2048
"""Of a sequence that people train on: the ramp is fitted to these."""

_TRAFFIC: Final = {CaseKind.NORM: 2 * 2.0, CaseKind.ADD: 2 * 3.0, CaseKind.SWIGLU: 5 * 3.5}
"""Weights of kinds that share a rate: tensors of hidden size that each moves in a layer with two
norms, two additions and ffn_hidden_size 3.5 times hidden_size (Llama 3). Others weigh the same."""
_SHORT: Final = (CaseKind.GEMM, CaseKind.NORM, CaseKind.ADD, CaseKind.SWIGLU)
_SHORT_WORK_SECONDS: Final = 20e-6
_SHORT_COLLECTIVE_SECONDS: Final = 100e-6
_LEAST_SHORT: Final = 3
_LARGE: Final = 20
"""Work of a large kernel, in fixed costs: rates are fitted where these hide the other."""
_BARELY_LARGE: Final = 2
_LARGEST_PART: Final = 3
_PARTS: Final = 5


class Rate(Struct, frozen=True, kw_only=True):
    """Work per second over large shapes (see `_rate`), the quartiles of all, and how many."""

    value: float
    low: float
    high: float
    count: int


class Ramp(Struct, frozen=True, kw_only=True):
    """Calibration's attention_half_rate_rows and _tokens: where flash reaches half its rate."""

    rows: float = 0.0
    tokens: float = 0.0

    def of(self, case: Case) -> float:
        """How much longer a case takes than at the rate of endlessly many of both."""
        if case.kind not in ATTENTION:
            return 1.0
        batch, seq, heads, *_ = case.sizes
        return 1.0 + self.rows / (batch * seq * heads) + self.tokens / seq


class Rates(Struct, frozen=True, kw_only=True):
    """What a machine reaches. kernel_seconds and collective_seconds are None where too few short
    ones were timed, host_native_call_seconds where no layer was queued."""

    of: dict[Resource, Rate] = field(default_factory=dict)
    kernel_seconds: float | None = None
    collective_seconds: float | None = None
    ramp: Ramp = Ramp()
    host_native_call_seconds: float | None = None

    def seconds(self, case: Case, ranks: int = 1) -> float | None:
        """Predicted seconds of a case; None where its resource has no rate."""
        resource = RESOURCES.get(case.kind)
        if resource is None or resource not in self.of:
            return None
        return work(case, ranks) * self.ramp.of(case) / self.of[resource].value + self.fixed(case)

    def fixed(self, case: Case) -> float:
        """Seconds of a case that do not depend on its size."""
        if case.kind in COLLECTIVES:
            return self.collective_seconds or 0.0
        return case.kernels * (self.kernel_seconds or 0.0)


def work(case: Case, ranks: int = 1) -> float:
    """FLOPs or bytes; of a collective the bytes that pass one rank's link in a ring."""
    if case.kind not in COLLECTIVES:
        return case.work
    return (2 if case.kind is CaseKind.ALL_REDUCE else 1) * case.work * (ranks - 1) / ranks


def fit(samples: Sequence[Sample], ranks: int = 1) -> Rates:
    """Rates of everything that was timed, see `fitted_samples`."""
    chosen = fitted_samples(samples)
    kernel = _intercept([s for s in chosen if s.case.kind in _SHORT], ranks)
    collective = _intercept([s for s in chosen if s.case.kind in COLLECTIVES], ranks)
    # over the layers what the processor takes for each of their operations
    layers = [sample for sample in chosen if sample.case.kind is CaseKind.HOST_LAYER]
    calls = [sample.seconds / host_operations(sample.case) for sample in layers]
    costs = Rates(
        kernel_seconds=kernel,
        collective_seconds=collective,
        ramp=_ramp(chosen, kernel or 0.0),
        host_native_call_seconds=median(calls) if calls else None,
    )
    found = {one: _rate(_of_resource(chosen, one), ranks, costs) for one in Resource}
    return replace(costs, of={one: rate for one, rate in found.items() if rate is not None})


def _of_resource(samples: Iterable[Sample], resource: Resource) -> list[Sample]:
    return [sample for sample in samples if RESOURCES.get(sample.case.kind) is resource]


def _ramp(samples: Sequence[Sample], kernel: float) -> Ramp:
    """The ramp that brings the rates of each attention kind closest together (least squares of
    their logarithms), one for both; none where too few were timed."""
    by_kind = [
        [s for s in samples if s.case.kind is kind and s.case.sizes[1] >= _LEAST_TOKENS]
        for kind in ATTENTION
    ]
    if any(len(of_kind) < _LEAST_ATTENTION for of_kind in by_kind):
        return Ramp()
    tried = (Ramp(rows=float(r), tokens=float(t)) for r, t in _HALF_RATES)
    return min(tried, key=lambda ramp: sum(_scatter(one, kernel, ramp) for one in by_kind))


def _scatter(samples: Sequence[Sample], kernel: float, ramp: Ramp) -> float:
    """Sum of squared distances of the logarithms of the rates from their mean."""
    logs = [log(ramp.of(s.case) * s.case.work / (s.seconds - kernel)) for s in samples]
    return pvariance(logs) * len(logs)


def fitted_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Samples with one implementation of each attention kind, FITTED_ATTENTION's or by name."""
    samples = list(samples)
    kept = [s for s in samples if s.case.kind not in ATTENTION]
    for kind in ATTENTION:
        timed = {s.case.variant for s in samples if s.case.kind is kind}
        order = [variant for variant in (*FITTED_ATTENTION, *sorted(timed)) if variant in timed]
        kept += [s for s in samples if s.case.kind is kind and s.case.variant == order[0]]
    return kept


def _intercept(samples: Sequence[Sample], ranks: int) -> float | None:
    """Median of what short kernels take beyond their work, at the rate that large ones reach once
    their own fixed cost is taken off (hence twice)."""
    fixed: float | None = 0.0
    for _ in range(2):
        fixed = _left_over(samples, ranks, fixed or 0.0)
    return fixed


def _left_over(samples: Sequence[Sample], ranks: int, fixed: float) -> float | None:
    found = []
    for kind in {sample.case.kind for sample in samples}:
        short = _SHORT_COLLECTIVE_SECONDS if kind in COLLECTIVES else _SHORT_WORK_SECONDS
        large_ones = _largest(samples, kind, ranks)
        rate = median(work(s.case, ranks) / max(s.seconds - fixed, fixed) for s in large_ones)
        for sample in (s for s in samples if s.case.kind is kind):
            seconds = work(sample.case, ranks) / rate
            if seconds < short:
                found.append(max(0.0, sample.seconds - seconds) / sample.case.kernels)
    return median(found) if len(found) >= _LEAST_SHORT else None


def _rate(samples: Sequence[Sample], ranks: int, costs: Rates) -> Rate | None:
    """Work over what is left of the time without the fixed cost, over large shapes: of each kind
    the median, and of several kinds the harmonic mean, as times add up (see _TRAFFIC)."""

    def reached(sample: Sample) -> float:
        seconds = sample.seconds - costs.fixed(sample.case)
        return costs.ramp.of(sample.case) * work(sample.case, ranks) / seconds

    chosen = large(samples, ranks, costs)
    by_kind = grouped((sample.case.kind, reached(sample)) for sample in chosen)
    rates = [rate for of_kind in by_kind.values() for rate in of_kind]
    if not rates:
        return None
    value = harmonic_mean(
        [median(of_kind) for of_kind in by_kind.values()],
        [_TRAFFIC.get(kind, 1.0) for kind in by_kind],
    )
    low, _, high = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
    return Rate(value=value, low=low, high=high, count=len(rates))


def large(samples: Sequence[Sample], ranks: int = 1, costs: Rates | None = None) -> list[Sample]:
    """Of each kind the third with the most work, which is what a step is made of, among those that
    take many times their fixed cost; where none does, among those that take twice as long."""
    costs = costs or Rates()
    for least in (_LARGE, _BARELY_LARGE):
        enough = [one for one in samples if one.seconds > least * costs.fixed(one.case)]
        if enough:
            return [s for kind in CaseKind for s in _largest(enough, kind, ranks)]
    return []


def _largest(samples: Sequence[Sample], kind: CaseKind, ranks: int) -> list[Sample]:
    """The third of a kind with the most work."""
    of_kind = [sample for sample in samples if sample.case.kind is kind]
    of_kind.sort(key=lambda sample: work(sample.case, ranks), reverse=True)
    return of_kind[: -(-len(of_kind) // _LARGEST_PART)]


def left_out_errors(samples: Sequence[Sample], ranks: int = 1) -> tuple[float, ...]:
    """Predicted over measured, less one, of large shapes, each fifth left out in turn."""
    chosen = sorted(fitted_samples(samples), key=lambda sample: sample.case.key)
    costs = fit(chosen, ranks)
    watched = {
        sample.case.key
        for resource in Resource
        for sample in large(_of_resource(chosen, resource), ranks, costs)
    }
    errors = []
    for part in range(_PARTS):
        rates = fit([s for i, s in enumerate(chosen) if i % _PARTS != part], ranks)
        for sample in chosen[part::_PARTS]:
            seconds = rates.seconds(sample.case, ranks)
            if seconds is not None and sample.case.key in watched:
                errors.append(seconds / sample.seconds - 1)
    return tuple(errors)


_GEMM_FIELDS: Final = {
    "gemm_efficiency": (CaseKind.GEMM, Precision.BF16),
    "fp8_gemm_efficiency": (CaseKind.GEMM_FP8, Precision.FP8_CURRENT),
}
_GEMM_ROUNDS: Final = 5
"""Times are nearly inverse to an efficiency: a round leaves a tenth of the median's error."""


def by_shape(
    calibration: Calibration, gpu: Gpu, samples: Sequence[Sample], costs: Rates | None = None
) -> dict[str, float]:
    """Efficiencies by field at which half of the large GEMMs of `samples` are predicted to take
    longer than measured, and half shorter; nothing of what was not timed. What tiles, waves and
    traffic take is no part of an efficiency: advisor.time.gemm adds it by shape. costs:
    fixed ones of a kernel, next to which large ones are large."""
    found = {}
    for name, (kind, precision) in _GEMM_FIELDS.items():
        timed = large([sample for sample in samples if sample.case.kind is kind], costs=costs)
        if timed:
            found[name] = _efficiency(calibration, gpu, timed, name, precision)
    return found


def _efficiency(
    calibration: Calibration, gpu: Gpu, timed: Sequence[Sample], name: str, precision: Precision
) -> float:
    alone = replace(calibration, gemm_training_share=1.0)
    value: float = getattr(alone, name)
    for _ in range(_GEMM_ROUNDS):
        rates = gemm_rates(gpu, replace(alone, **{name: value}), precision)
        longer = [matmul_seconds(rates, *one.case.sizes) / one.seconds for one in timed]
        value = min(1.0, value * median(longer))
    return value
