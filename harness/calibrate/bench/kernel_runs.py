"""Runs the kernel of a case on random data, rotating among inputs so that caches do not help."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from harness.backends.native.modules.attention import flash_attention
from harness.calibrate.bench import host
from harness.calibrate.bench.cases import (
    BANDWIDTH,
    HOST_COPIES,
    HOST_TIMES,
    LATENT_ATTENTION,
    Case,
    Kind,
    Sample,
)
from harness.calibrate.bench.sustained import time_sustained
from harness.calibrate.bench.timer import Call, Timing, time_call, time_queueing
from harness.measure.nvml import open_current_gpu
from harness.trial.result import GpuLoad
from harness.trial.trial import Device

_POOL_ELEMENTS: Final = 2**22
_MOST_INPUTS: Final = 8
_CPU_CACHE_BYTES: Final = 32 * 2**20
_GRAPHED: Final = (Kind.GEMM, Kind.GEMM_FP8, Kind.NORM, Kind.ADD, Kind.SWIGLU, Kind.COPY)
_ON_A_GPU: Final = (
    *HOST_COPIES,
    *HOST_TIMES,
    *LATENT_ATTENTION,
    Kind.SUSTAINED_GEMM,
    Kind.GROUPED_GEMM,
)
"""On a CPU there is nothing to copy to or to queue for, its attention has no kernel for values of
another width, and experts take it minutes."""
_FP8_CAPABILITY: Final = (8, 9)
_FOOTPRINT: Final = 3
"""A case holds its operands, its result, and temporaries of the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a device allows: bytes a case may hold, bytes of its last cache."""

    memory_bytes: int
    cache_bytes: int


class Bench:
    """Kernels of one device; `refused`: why a case gave no sample, by its key."""

    def __init__(
        self,
        device: Device,
        *,
        wanted_seconds: float = 0.1,
        hold_seconds: float = 5.0,
        seed: int = 1234,
    ) -> None:
        self.device = device
        self.limits = _limits(device)
        self.refused: dict[str, str] = {}
        self._wanted_seconds, self._hold_seconds = wanted_seconds, hold_seconds
        generator = torch.Generator(device.value).manual_seed(seed)
        self._pool = torch.randn(
            _POOL_ELEMENTS, generator=generator, device=device.value, dtype=torch.float32
        )

    def attention_variants(self) -> tuple[str, ...]:
        """Implementations of flash attention that torch has here, the native backend's first."""
        return ("flash", "cudnn") if self.device is Device.CUDA else ("torch",)

    def runs(self, case: Case) -> bool:
        """Whether the device has such a kernel and room for it."""
        if case.kind is Kind.GEMM_FP8 and not _has_fp8(self.device):
            return False
        if case.kind in _ON_A_GPU and self.device is Device.CPU:
            return False
        return case.num_bytes * _FOOTPRINT <= self.limits.memory_bytes

    def measure(self, case: Case) -> Sample | None:
        """Time a case; None where torch refuses it (an old version, a head size, no memory).

        Whatever is raised is this case's alone: the others are timed.
        """
        try:
            timing, load = self._time(case, _BUILDERS[case.kind](self, case))
        except Exception as error:
            self.refused[case.key] = f"{type(error).__name__}: {error}".splitlines()[0]
            if self.device is Device.CUDA:
                with suppress(RuntimeError):
                    torch.cuda.empty_cache()
            return None
        return Sample(
            case=case, seconds=timing.seconds, spread=timing.spread, runs=timing.runs, load=load
        )

    def _time(self, case: Case, call: Call) -> tuple[Timing, GpuLoad | None]:
        """By the clock that the case's kind is timed with."""
        if case.kind is Kind.SUSTAINED_GEMM:
            gpu = open_current_gpu()
            return time_sustained(call, self.device, hold_seconds=self._hold_seconds, gpu=gpu)
        if case.kind in HOST_TIMES:
            return time_queueing(call, self.device, calls=host.CALLS[case.kind]), None
        graph = case.kind in _GRAPHED
        wanted = self._wanted_seconds
        return time_call(call, self.device, wanted_seconds=wanted, graph=graph), None

    def tensor(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Random normal values. They repeat after a few million, which no kernel profits from;
        drawing all of them would take longer than the kernel."""
        flat = torch.empty(_product(shape), device=self.device.value, dtype=dtype)
        whole = len(flat) // _POOL_ELEMENTS * _POOL_ELEMENTS
        flat[:whole].view(-1, _POOL_ELEMENTS).copy_(self._pool)
        flat[whole:].copy_(self._pool[: len(flat) - whole])
        return flat.view(shape)

    def inputs(self, case: Case, make: Callable[[], Any]) -> list[Any]:
        """Several sets of inputs where one would stay in the cache."""
        wanted = -(-2 * self.limits.cache_bytes // max(1, case.num_bytes))
        room = self.limits.memory_bytes // (_FOOTPRINT * max(1, case.num_bytes))
        return [make() for _ in range(max(1, min(wanted, room, _MOST_INPUTS)))]


def _limits(device: Device) -> Limits:
    if device is Device.CPU:
        return Limits(memory_bytes=2 * 2**30, cache_bytes=_CPU_CACHE_BYTES)
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    return Limits(
        memory_bytes=free // 2, cache_bytes=getattr(properties, "L2_cache_size", 64 * 2**20)
    )


def _has_fp8(device: Device) -> bool:
    if device is Device.CPU or not hasattr(torch, "_scaled_mm"):
        return False
    return torch.cuda.get_device_capability() >= _FP8_CAPABILITY


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _gemm(bench: Bench, case: Case) -> Call:
    """tn: x [m, k] and w [n, k]; nn: dy [m, k] and w [k, n]; nt: dy [k, m] and x [k, n]."""
    m, n, k = case.sizes

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        left = bench.tensor(k, m).t() if case.variant == "nt" else bench.tensor(m, k)
        right = bench.tensor(n, k).t() if case.variant == "tn" else bench.tensor(k, n)
        return left, right

    sets = bench.inputs(case, operands)
    return lambda number: torch.mm(*sets[number % len(sets)])


def _gemm_fp8(bench: Bench, case: Case) -> Call:
    """e4m3 with one scale a tensor; 8-bit tensor cores want both operands along k."""
    m, n, k = case.sizes
    scale = torch.ones((), device=bench.device.value)

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        narrow = torch.float8_e4m3fn
        return bench.tensor(m, k).to(narrow), bench.tensor(n, k).to(narrow).t()

    sets = bench.inputs(case, operands)
    multiply: Any = torch._scaled_mm

    def call(number: int) -> object:
        left, right = sets[number % len(sets)]
        return multiply(
            left,
            right,
            scale_a=scale,
            scale_b=scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return call


def _grouped_gemm(bench: Bench, case: Case) -> Call:
    """Rows [experts x m, k] sorted by expert, weights [experts, n, k]."""
    experts, m, n, k = case.sizes
    sets = bench.inputs(case, lambda: (bench.tensor(experts * m, k), bench.tensor(experts, n, k)))
    ends = m * torch.arange(1, experts + 1, device=bench.device.value, dtype=torch.int32)

    def at_once(number: int) -> object:
        rows, weights = sets[number % len(sets)]
        grouped: Any = torch._grouped_mm
        return grouped(rows, weights.transpose(1, 2), offs=ends)

    def one_by_one(number: int) -> object:
        rows, weights = sets[number % len(sets)]
        output = rows.new_empty(experts * m, n)
        for part, own, out in zip(rows.split(m), weights, output.split(m), strict=True):
            torch.mm(part, own.t(), out=out)
        return output

    return one_by_one if case.variant == "one_by_one" else at_once


def _heads(bench: Bench, case: Case) -> tuple[torch.Tensor, ...]:
    """q, k, v as [batch, heads, sequence, width] views of [sequence, batch, heads, width]; of
    latent attention [batch, sequence, heads, width], as the native backend has them."""
    if case.kind in LATENT_ATTENTION:
        batch, seq, heads, keys, values = case.sizes
        return tuple(bench.tensor(batch, seq, heads, width) for width in (keys, keys, values))
    batch, seq, heads, groups, width = case.sizes
    return tuple(
        bench.tensor(seq, batch, count, width).permute(1, 2, 0, 3)
        for count in (heads, groups, groups)
    )


def _implementation(case: Case) -> Any:
    """Context in which torch takes the implementation of the case, and no other."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    return sdpa_kernel(backends[case.variant]) if case.variant in backends else nullcontext()


def _attend(case: Case, heads: tuple[torch.Tensor, ...]) -> torch.Tensor:
    query, key, value = heads
    if case.kind in LATENT_ATTENTION:
        return flash_attention(query, key, value, 0.0)
    with _implementation(case):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=case.sizes[2] != case.sizes[3]
        )


def _attention_forward(bench: Bench, case: Case) -> Call:
    """With a graph recorded, as a training forward has it: the log-sum-exp is written too."""
    sets = bench.inputs(case, lambda: tuple(head.requires_grad_() for head in _heads(bench, case)))
    return lambda number: _attend(case, sets[number % len(sets)])


def _attention_backward(bench: Bench, case: Case) -> Call:
    def recorded() -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
        heads = tuple(head.requires_grad_() for head in _heads(bench, case))
        output = _attend(case, heads)
        return output, heads, output.detach().clone()

    sets = bench.inputs(case, recorded)

    def call(number: int) -> object:
        output, heads, gradient = sets[number % len(sets)]
        return torch.autograd.grad(output, heads, gradient, retain_graph=True)

    return call


def _norm(bench: Bench, case: Case) -> Call:
    """LayerNorm, which every torch fuses; RMSNorm moves the same bytes."""
    rows, width = case.sizes
    weight, bias = bench.tensor(width), bench.tensor(width)
    sets = bench.inputs(case, lambda: bench.tensor(rows, width))
    return lambda i: functional.layer_norm(sets[i % len(sets)], (width,), weight, bias)


def _add(bench: Bench, case: Case) -> Call:
    sets = bench.inputs(case, lambda: (bench.tensor(*case.sizes), bench.tensor(*case.sizes)))
    return lambda number: torch.add(*sets[number % len(sets)])


def _swiglu(bench: Bench, case: Case) -> Call:
    rows, width = case.sizes
    sets = bench.inputs(case, lambda: bench.tensor(rows, 2 * width).chunk(2, dim=-1))

    def call(number: int) -> object:
        gate, value = sets[number % len(sets)]
        return functional.silu(gate) * value

    return call


def _adam(bench: Bench, case: Case) -> Call:
    """One fused AdamW step in fp32: the kernel, without what an Optimizer does around it."""
    number_of_step = torch.ones((), device=bench.device.value)
    fused: Any = torch._fused_adamw_

    def states() -> tuple[list[torch.Tensor], ...]:
        moments = [bench.tensor(*case.sizes, dtype=torch.float32).abs_() for _ in range(2)]
        weight, gradient = (bench.tensor(*case.sizes, dtype=torch.float32) for _ in range(2))
        return [weight], [gradient], moments[:1], moments[1:]

    sets = bench.inputs(case, states)

    def call(number: int) -> object:
        return fused(
            *sets[number % len(sets)],
            [],
            [number_of_step],
            lr=1e-4,
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.1,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return call


def _copy(bench: Bench, case: Case) -> Call:
    count = case.sizes[0] // 2
    sets = bench.inputs(case, lambda: (bench.tensor(count), bench.tensor(count)))
    return lambda number: torch.Tensor.copy_(*sets[number % len(sets)])


def _host_copy(bench: Bench, case: Case) -> Call:
    """Between pinned memory of the host and the device, without waiting."""
    count = case.sizes[0] // 2
    there = bench.tensor(count)
    here = there.cpu().pin_memory()
    target, source = (there, here) if case.kind is Kind.TO_DEVICE else (here, there)
    return lambda _: target.copy_(source, non_blocking=True)


_BUILDERS: Final[dict[Kind, Callable[[Bench, Case], Call]]] = {
    Kind.GEMM: _gemm,
    Kind.GEMM_FP8: _gemm_fp8,
    Kind.ATTENTION_FORWARD: _attention_forward,
    Kind.ATTENTION_BACKWARD: _attention_backward,
    Kind.NORM: _norm,
    Kind.ADD: _add,
    Kind.SWIGLU: _swiglu,
    Kind.ADAM: _adam,
    Kind.COPY: _copy,
    Kind.TO_DEVICE: _host_copy,
    Kind.TO_HOST: _host_copy,
    Kind.SUSTAINED_GEMM: _gemm,
    Kind.GROUPED_GEMM: _grouped_gemm,
    Kind.LATENT_ATTENTION_FORWARD: _attention_forward,
    Kind.LATENT_ATTENTION_BACKWARD: _attention_backward,
    Kind.HOST_LAUNCH: lambda bench, case: host.launch(case, bench.device),
    Kind.HOST_LAYER: lambda bench, case: host.layer(case, bench.device),
}
assert set(BANDWIDTH) <= set(_BUILDERS)
