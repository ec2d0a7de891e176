"""One kernel to be timed: what it is, at which size, and the work it does."""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.base.fields import read_record, show
from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.record import as_dict
from harness.trial.result import GpuLoad


class Kind(StrEnum):
    """What is timed; the sizes of a Case mean what stands here.

    gemm, gemm_fp8: m, n, k of [m, k] x [k, n], operands of 16 or 8 bits, a 16-bit result.
    sustained_gemm: the same as gemm, back to back for seconds: the rate under lasting load.
    grouped_gemm: experts, and m, n, k of each: all experts of a rank at once, or one by one.
    attention_forward, attention_backward: batch, sequence, heads, key/value groups, head
        dimension; causal flash attention.
    latent_attention_forward, latent_attention_backward: batch, sequence, heads, width of queries
        and keys, width of values (MLA: 192 and 128), causal.
    norm, add, swiglu: rows, width of what is written; 16 bits; residual addition, SiLU times gate.
    adam: elements, all in fp32.   copy: bytes, within the device's memory.
    to_device, to_host: bytes.     all_gather, reduce_scatter, all_reduce: bytes of the full tensor.
    host_launch: elements of an addition; the host's seconds to queue it.
    host_layer: tokens, hidden size of a layer so small that the host is what takes time: its
        seconds to queue forward and backward.
    host_replay: the same, of a layer that is replayed whole in its backward.
    """

    GEMM = "gemm"
    GEMM_FP8 = "gemm_fp8"
    ATTENTION_FORWARD = "attention_forward"
    ATTENTION_BACKWARD = "attention_backward"
    NORM = "norm"
    ADD = "add"
    SWIGLU = "swiglu"
    ADAM = "adam"
    COPY = "copy"
    TO_DEVICE = "to_device"
    TO_HOST = "to_host"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    SUSTAINED_GEMM = "sustained_gemm"
    GROUPED_GEMM = "grouped_gemm"
    LATENT_ATTENTION_FORWARD = "latent_attention_forward"
    LATENT_ATTENTION_BACKWARD = "latent_attention_backward"
    HOST_LAUNCH = "host_launch"
    HOST_LAYER = "host_layer"
    HOST_REPLAY = "host_replay"


ATTENTION: Final = (Kind.ATTENTION_FORWARD, Kind.ATTENTION_BACKWARD)
LATENT_ATTENTION: Final = (Kind.LATENT_ATTENTION_FORWARD, Kind.LATENT_ATTENTION_BACKWARD)
HOST_TIMES: Final = (Kind.HOST_LAUNCH, Kind.HOST_LAYER, Kind.HOST_REPLAY)
BANDWIDTH: Final = (Kind.NORM, Kind.ADD, Kind.SWIGLU)
HOST_COPIES: Final = (Kind.TO_DEVICE, Kind.TO_HOST)
COLLECTIVES: Final = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)

_TENSORS_MOVED: Final = {Kind.NORM: 2, Kind.ADD: 3, Kind.SWIGLU: 5}
"""Tensors of the output's size read and written: SiLU (1 and 1), then the product (2 and 1)."""
_ADAM_TENSORS: Final = 7  # reads gradient, parameter, two moments; writes the last three
_BACKWARD_MATMULS: Final = 2.5  # five matmuls against two (arXiv 2307.08691)
_BACKWARDS: Final = (Kind.ATTENTION_BACKWARD, Kind.LATENT_ATTENTION_BACKWARD)
_SINGLE_GEMMS: Final = (Kind.GEMM, Kind.GEMM_FP8, Kind.SUSTAINED_GEMM)


class Case(Struct, frozen=True, kw_only=True):
    """A kernel at one size. `variant`: a GEMM's operand layout, the implementation of attention or
    of grouped GEMMs, what a layer is made of."""

    kind: Kind
    sizes: tuple[int, ...]
    variant: str = ""

    @property
    def key(self) -> str:
        """Name in the journal, e.g. ``gemm:tn:4096x6144x4096``."""
        size = "x".join(str(number) for number in self.sizes)
        return ":".join(part for part in (self.kind.value, self.variant, size) if part)

    @property
    def flops(self) -> float:
        """FLOPs of matmuls, as the advisor counts them: attention over the causal half, the
        backward's replayed scores included; 0 for the rest."""
        if self.kind in _SINGLE_GEMMS:
            m, n, k = self.sizes
            return 2.0 * m * n * k
        if self.kind is Kind.GROUPED_GEMM:
            experts, m, n, k = self.sizes
            return 2.0 * experts * m * n * k
        if self.kind in (*ATTENTION, *LATENT_ATTENTION):
            batch, seq, heads, *_ = self.sizes
            forward = 1.0 * batch * seq * seq * heads * sum(self._widths)
            return forward * (_BACKWARD_MATMULS if self.kind in _BACKWARDS else 1)
        return 0.0

    @property
    def _widths(self) -> tuple[int, int]:
        """Of attention: channels of a query head, and of a value head."""
        *_, query, value = self.sizes
        return (query, value) if self.kind in LATENT_ATTENTION else (value, value)

    @property
    def num_bytes(self) -> int:
        """Memory traffic where that bounds the kernel; the operands of a matmul; bytes sent."""
        if self.kind in HOST_TIMES:
            return 0
        if self.kind is Kind.GROUPED_GEMM:
            experts, m, n, k = self.sizes
            return DType.BF16.itemsize * experts * (m * k + k * n + m * n)
        if self.kind in _SINGLE_GEMMS:
            m, n, k = self.sizes
            operand = (DType.FLOAT8 if self.kind is Kind.GEMM_FP8 else DType.BF16).itemsize
            return operand * (m * k + k * n) + DType.BF16.itemsize * m * n
        if self.kind in (*ATTENTION, *LATENT_ATTENTION):
            batch, seq, heads, *_ = self.sizes
            groups = self.sizes[3] if self.kind in ATTENTION else heads
            passes = 2 if self.kind in _BACKWARDS else 1
            channels = (heads + groups) * sum(self._widths)
            return passes * DType.BF16.itemsize * batch * seq * channels
        if self.kind in _TENSORS_MOVED:
            rows, width = self.sizes
            return _TENSORS_MOVED[self.kind] * DType.BF16.itemsize * rows * width
        if self.kind is Kind.ADAM:
            return _ADAM_TENSORS * DType.FP32.itemsize * self.sizes[0]
        return self.sizes[0] * (2 if self.kind is Kind.COPY else 1)

    @property
    def work(self) -> float:
        """What its rate is counted in: FLOPs of a matmul, else bytes; of the host's time calls."""
        return self.flops or float(self.num_bytes) or 1.0

    @property
    def kernels(self) -> int:
        """Kernels that are launched."""
        return 2 if self.kind is Kind.SWIGLU else 1


class Sample(Struct, frozen=True, kw_only=True):
    """Seconds of one call of a case (see timer.Timing), and IQR over median of `runs` timings;
    `load` where the device was watched meanwhile."""

    case: Case
    seconds: float
    spread: float = 0.0
    runs: int = 1
    load: GpuLoad | None = None

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.case.work / self.seconds


def sample_values(sample: Sample) -> dict[str, Any]:
    """A sample as a JSON object."""
    values = as_dict(sample)
    load = values.pop("load")
    return {**values.pop("case"), **values, **({} if load is None else {"load": load})}


def read_sample(values: dict[str, Any]) -> Sample:
    """A sample from its JSON object; UserError where it is none."""
    rest = dict(values)
    case = {name: rest.pop(name, None) for name in ("kind", "variant", "sizes")}
    try:
        sample = read_record(Sample, {**rest, "case": case}, "journal line")
        plausible = 0 < sample.seconds <= LARGEST and min(sample.case.sizes) > 0
        if not (plausible and 0 < sample.rate <= LARGEST_FLOAT):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UserError("journal line", show(values), "is not a sample") from None
    return sample
