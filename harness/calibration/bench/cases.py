"""One kernel to be timed: what it is, at which size, the work it does; and what was measured."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from advisor.base.documents import read_json_lines
from advisor.base.dtypes import DType
from advisor.base.errors import UserError, show, show_path
from advisor.base.fields import read_record
from advisor.base.limits import LARGEST, LARGEST_FLOAT
from advisor.base.record import as_dict
from harness.trial.files import append_json_line
from harness.trial.result import GpuLoad


class CaseKind(StrEnum):
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
    host_replay: the same, of a layer that is recomputed whole in its backward.
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


ATTENTION: Final = (CaseKind.ATTENTION_FORWARD, CaseKind.ATTENTION_BACKWARD)
LATENT_ATTENTION: Final = (CaseKind.LATENT_ATTENTION_FORWARD, CaseKind.LATENT_ATTENTION_BACKWARD)
HOST_TIMES: Final = (CaseKind.HOST_LAUNCH, CaseKind.HOST_LAYER, CaseKind.HOST_REPLAY)
BANDWIDTH: Final = (CaseKind.NORM, CaseKind.ADD, CaseKind.SWIGLU)
HOST_COPIES: Final = (CaseKind.TO_DEVICE, CaseKind.TO_HOST)
COLLECTIVES: Final = (CaseKind.ALL_GATHER, CaseKind.REDUCE_SCATTER, CaseKind.ALL_REDUCE)

_BF16: Final = DType.BF16.itemsize
_BACKWARD_MATMULS: Final = 2.5  # five matmuls against two (arXiv 2307.08691)
_Work = tuple[float, int]
"""FLOPs and bytes."""


def _matmul(m: int, n: int, k: int, *, experts: int = 1, operand: int = _BF16) -> _Work:
    """The result has 16 bits."""
    moved = operand * (m * k + k * n) + _BF16 * m * n
    return 2.0 * experts * m * n * k, experts * moved


def _attend(batch: int, seq: int, heads: int, groups: int, width: int) -> _Work:
    """Over the causal half. width: of queries and keys plus that of values."""
    return 1.0 * batch * seq * seq * heads * width, _BF16 * batch * seq * (heads + groups) * width


def _attend_latent(batch: int, seq: int, heads: int, query: int, value: int) -> _Work:
    return _attend(batch, seq, heads, heads, query + value)


def _attend_groups(batch: int, seq: int, heads: int, groups: int, head: int) -> _Work:
    return _attend(batch, seq, heads, groups, 2 * head)


def _backward(forward: Callable[..., _Work], *sizes: int) -> _Work:
    """With the scores that it computes again."""
    flops, num_bytes = forward(*sizes)
    return flops * _BACKWARD_MATMULS, 2 * num_bytes


def _moves(num_bytes: int) -> Callable[..., _Work]:
    """So many bytes for each of the product of the sizes."""
    return lambda *sizes: (0.0, num_bytes * prod(sizes))


_WORK: Final[Mapping[CaseKind, Callable[..., _Work]]] = {
    **dict.fromkeys((CaseKind.GEMM, CaseKind.SUSTAINED_GEMM), _matmul),
    CaseKind.GEMM_FP8: partial(_matmul, operand=DType.FLOAT8.itemsize),
    CaseKind.GROUPED_GEMM: lambda experts, *sizes: _matmul(*sizes, experts=experts),
    CaseKind.ATTENTION_FORWARD: _attend_groups,
    CaseKind.ATTENTION_BACKWARD: partial(_backward, _attend_groups),
    CaseKind.LATENT_ATTENTION_FORWARD: _attend_latent,
    CaseKind.LATENT_ATTENTION_BACKWARD: partial(_backward, _attend_latent),
    # tensors of the output's size read and written: SiLU (1 and 1), then the product (2 and 1)
    CaseKind.NORM: _moves(2 * _BF16),
    CaseKind.ADD: _moves(3 * _BF16),
    CaseKind.SWIGLU: _moves(5 * _BF16),
    # reads gradient, parameter, two moments; writes the last three
    CaseKind.ADAM: _moves(7 * DType.FP32.itemsize),
    CaseKind.COPY: _moves(2),
    **dict.fromkeys((*HOST_COPIES, *COLLECTIVES), _moves(1)),
    **dict.fromkeys(HOST_TIMES, _moves(0)),
}


class Case(Struct, frozen=True, kw_only=True):
    """A kernel at one size. `variant`: operand layout, implementation, or kind of layer."""

    kind: CaseKind
    sizes: tuple[int, ...]
    variant: str = ""

    @property
    def key(self) -> str:
        """Name in the journal, e.g. ``gemm:tn:4096x6144x4096``."""
        size = "x".join(str(number) for number in self.sizes)
        return ":".join(part for part in (self.kind.value, self.variant, size) if part)

    @property
    def flops(self) -> float:
        """FLOPs of matmuls, as the advisor counts them; 0 for the rest."""
        return _WORK[self.kind](*self.sizes)[0]

    @property
    def num_bytes(self) -> int:
        """Memory traffic where that bounds the kernel; the operands of a matmul; bytes sent."""
        return _WORK[self.kind](*self.sizes)[1]

    @property
    def work(self) -> float:
        """What its rate is counted in: FLOPs of a matmul, else bytes; of the host's time calls."""
        return self.flops or float(self.num_bytes) or 1.0

    @property
    def kernels(self) -> int:
        """Kernels that are launched."""
        return 2 if self.kind is CaseKind.SWIGLU else 1


class Sample(Struct, frozen=True, kw_only=True):
    """Seconds of one call of a case, IQR over median of `runs` timings; `load` where watched."""

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


_MACHINE: Final = "machine"


class Journal:
    """Samples of one machine as JSON lines: each is on disk before the next is measured, and none
    is measured twice. The first line says which machine. A line cut off by a kill is dropped."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        """Open or begin the journal; UserError where it is of another machine or broken."""
        self.path = path
        self.samples: dict[str, Sample] = {}
        if not self._read(machine):
            append_json_line(path, {_MACHINE: machine})

    def add(self, sample: Sample) -> None:
        """Write one sample; it is on disk when this returns."""
        self.samples[sample.case.key] = sample
        append_json_line(self.path, sample_values(sample))

    def _read(self, machine: dict[str, Any]) -> bool:
        """Take over what is there; whether the journal was begun."""
        if not self.path.exists():
            return False
        lines = read_json_lines(self.path)
        if lines and lines[0].get(_MACHINE) != machine:
            relation = "was started on another machine or with other software"
            hint = "give --out another file, or delete the journal"
            raise UserError("journal", show_path(self.path), relation, hint)
        for values in lines[1:]:
            sample = read_sample(values)
            self.samples[sample.case.key] = sample
        return bool(lines)
