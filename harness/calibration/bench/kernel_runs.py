"""Times the kernel of a case, by its kind's clock, on random operands, several sets in turn."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from math import prod
from typing import Any, Final

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.plan.recompute_plan import Segment
from harness.backends.native.modules.kernels import flash_attention
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.backends.native.modules.model import TransformerLayer
from harness.backends.training_rank import causal_attention
from harness.calibration.bench.cases import (
    BANDWIDTH,
    HOST_COPIES,
    HOST_TIMES,
    LATENT_ATTENTION,
    Case,
    CaseKind,
    Sample,
)
from harness.calibration.bench.shapes import host_layer
from harness.calibration.bench.timer import Call, Timing, time_call, time_queueing, time_sustained
from harness.measure.nvml import open_current_gpu
from harness.trial.result import GpuLoad
from harness.trial.trial import Device

HOST_CALLS: Final = {CaseKind.HOST_LAUNCH: 500, CaseKind.HOST_LAYER: 10, CaseKind.HOST_REPLAY: 5}
"""Queued without waiting: launches fewer than the thousand that a GPU's queue holds."""
_DEVIATION: Final = 0.02
_IMPLEMENTATIONS: Final = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


POOL_ELEMENTS: Final = 2**22
_SEED: Final = 1234
_MOST_SETS: Final = 8
_CPU_CACHE_BYTES: Final = 32 * 2**20
FOOTPRINT: Final = 3
"""A case holds its operands, its result, and temporaries of the same size."""


class DeviceRoom(Struct, frozen=True, kw_only=True):
    """What a device allows: bytes a case may hold, bytes of its last cache."""

    memory_bytes: int
    cache_bytes: int


class Inputs:
    """Operands on one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.limits = DeviceRoom(memory_bytes=2 * 2**30, cache_bytes=_CPU_CACHE_BYTES)
        if device is Device.CUDA:
            properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
            free, _ = torch.cuda.mem_get_info()
            cache = getattr(properties, "L2_cache_size", 64 * 2**20)
            self.limits = DeviceRoom(memory_bytes=free // 2, cache_bytes=cache)
        generator = torch.Generator(device.value).manual_seed(_SEED)
        self._pool = torch.randn(
            POOL_ELEMENTS, generator=generator, device=device.value, dtype=torch.float32
        )

    def tensor(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Random normal values, which repeat after a few million: fast, and no kernel profits."""
        flat = torch.empty(prod(shape), device=self.device.value, dtype=dtype)
        whole = len(flat) // POOL_ELEMENTS * POOL_ELEMENTS
        flat[:whole].view(-1, POOL_ELEMENTS).copy_(self._pool)
        flat[whole:].copy_(self._pool[: len(flat) - whole])
        return flat.view(shape)

    def sets(self, case: Case, make: Callable[[], Any]) -> list[Any]:
        """Several sets of operands where one would stay in the cache."""
        wanted = -(-2 * self.limits.cache_bytes // max(1, case.num_bytes))
        room = self.limits.memory_bytes // (FOOTPRINT * max(1, case.num_bytes))
        return [make() for _ in range(max(1, min(wanted, room, _MOST_SETS)))]

    def in_turn(
        self, case: Case, make: Callable[[], tuple[Any, ...]], run: Callable[..., object]
    ) -> Call:
        """`run` on one set of operands after the other."""
        sets = self.sets(case, make)
        return lambda number: run(*sets[number % len(sets)])


def _gemm(inputs: Inputs, case: Case) -> Call:
    """tn: x [m, k] and w [n, k]; nn: dy [m, k] and w [k, n]; nt: dy [k, m] and x [k, n]."""
    m, n, k = case.sizes

    def operands() -> tuple[Tensor, Tensor]:
        left = inputs.tensor(k, m).t() if case.variant == "nt" else inputs.tensor(m, k)
        return left, inputs.tensor(n, k).t() if case.variant == "tn" else inputs.tensor(k, n)

    return inputs.in_turn(case, operands, torch.mm)


def _gemm_fp8(inputs: Inputs, case: Case) -> Call:
    """e4m3 with one scale a tensor; 8-bit tensor cores want both operands along k."""
    m, n, k = case.sizes
    scale, narrow = torch.ones((), device=inputs.device.value), torch.float8_e4m3fn
    multiply: Any = partial(torch._scaled_mm, scale_a=scale, scale_b=scale, use_fast_accum=True)
    return inputs.in_turn(
        case,
        lambda: (inputs.tensor(m, k).to(narrow), inputs.tensor(n, k).to(narrow).t()),
        partial(multiply, out_dtype=torch.bfloat16),
    )


def _grouped_gemm(inputs: Inputs, case: Case) -> Call:
    """Rows [experts x m, k] sorted by expert, weights [experts, n, k]."""
    experts, m, n, k = case.sizes
    ends = m * torch.arange(1, experts + 1, device=inputs.device.value, dtype=torch.int32)

    def at_once(rows: Tensor, weights: Tensor) -> object:
        grouped: Any = torch._grouped_mm
        return grouped(rows, weights.transpose(1, 2), offs=ends)

    def one_by_one(rows: Tensor, weights: Tensor) -> object:
        output = rows.new_empty(experts * m, n)
        parts = zip(torch.split(rows, m), weights, torch.split(output, m), strict=True)
        for part, own, out in parts:
            torch.mm(part, own.t(), out=out)
        return output

    return inputs.in_turn(
        case,
        lambda: (inputs.tensor(experts * m, k), inputs.tensor(experts, n, k)),
        one_by_one if case.variant == "one_by_one" else at_once,
    )


def _heads(inputs: Inputs, case: Case) -> tuple[Tensor, ...]:
    """q, k, v as [batch, heads, sequence, width] views of [sequence, batch, heads, width]; of
    latent attention [batch, sequence, heads, width], as the native backend has them."""
    if case.kind in LATENT_ATTENTION:
        batch, seq, heads, keys, values = case.sizes
        shapes = [(batch, seq, heads, width) for width in (keys, keys, values)]
        return tuple(inputs.tensor(*shape).requires_grad_() for shape in shapes)
    batch, seq, heads, groups, width = case.sizes
    return tuple(
        inputs.tensor(seq, batch, count, width).permute(1, 2, 0, 3).requires_grad_()
        for count in (heads, groups, groups)
    )


def _attend(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """By the implementation of the case, and no other."""
    if case.kind in LATENT_ATTENTION:
        return flash_attention(query, key, value, 0.0)
    known = case.variant in _IMPLEMENTATIONS
    with sdpa_kernel(_IMPLEMENTATIONS[case.variant]) if known else nullcontext():
        return causal_attention(query, key, value)


def _attention_forward(inputs: Inputs, case: Case) -> Call:
    """With a graph recorded, as a training forward has it: the log-sum-exp is written too."""
    return inputs.in_turn(case, lambda: _heads(inputs, case), partial(_attend, case))


def _attention_backward(inputs: Inputs, case: Case) -> Call:
    def recorded() -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        heads = _heads(inputs, case)
        output = _attend(case, *heads)
        return output, heads, output.detach().clone()

    return inputs.in_turn(case, recorded, partial(torch.autograd.grad, retain_graph=True))


def _norm(inputs: Inputs, case: Case) -> Call:
    """LayerNorm, which every torch fuses; RMSNorm moves the same bytes."""
    rows, width = case.sizes
    weight, bias = inputs.tensor(width), inputs.tensor(width)
    return inputs.in_turn(
        case,
        lambda: (inputs.tensor(rows, width),),
        lambda x: functional.layer_norm(x, (width,), weight, bias),
    )


def _add(inputs: Inputs, case: Case) -> Call:
    sizes = case.sizes
    return inputs.in_turn(case, lambda: (inputs.tensor(*sizes), inputs.tensor(*sizes)), torch.add)


def _copy(inputs: Inputs, case: Case) -> Call:
    """The case's size is bytes, of tensors in 16 bits."""
    count, copy = case.sizes[0] // 2, torch.Tensor.copy_
    return inputs.in_turn(case, lambda: (inputs.tensor(count), inputs.tensor(count)), copy)


def _swiglu(inputs: Inputs, case: Case) -> Call:
    rows, width = case.sizes
    return inputs.in_turn(
        case,
        lambda: inputs.tensor(rows, 2 * width).chunk(2, dim=-1),
        lambda gate, value: functional.silu(gate) * value,
    )


def _adam(inputs: Inputs, case: Case) -> Call:
    """One fused AdamW step in fp32: the kernel, without what an Optimizer does around it."""
    steps = [torch.ones((), device=inputs.device.value)]
    fused: Any = torch._fused_adamw_
    options = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}

    def states() -> tuple[list[Tensor], ...]:
        weight, gradient = (inputs.tensor(*case.sizes, dtype=torch.float32) for _ in range(2))
        moments = [inputs.tensor(*case.sizes, dtype=torch.float32).abs_() for _ in range(2)]
        return [weight], [gradient], moments[:1], moments[1:], [], steps

    return inputs.in_turn(case, states, partial(fused, **options, amsgrad=False, maximize=False))


def _host_copy(inputs: Inputs, case: Case) -> Call:
    """Between pinned memory of the host and the device, without waiting."""
    there = inputs.tensor(case.sizes[0] // 2)
    here = there.cpu().pin_memory()
    target, source = (there, here) if case.kind is CaseKind.TO_DEVICE else (here, there)
    return lambda _: target.copy_(source, non_blocking=True)


def _launch(inputs: Inputs, case: Case) -> Call:
    """An addition of a few elements."""
    x = torch.zeros(case.sizes[0], device=inputs.device.value)
    return lambda _: torch.add(x, x)


def _layer(inputs: Inputs, case: Case) -> Call:
    """Forward and backward of one layer, gradients of its input and of all weights; with a replay
    of the whole layer between them where the case is of that kind. A layer this small keeps no GPU
    busy: Python and torch are what takes time, the part of a step that larger kernels hide."""
    tokens, hidden = case.sizes
    where = torch.device(inputs.device.value)
    model, kind = host_layer(case)
    settings = LayerSettings(model=model, seq_length=tokens, dtype=torch.bfloat16, device=where)
    segment = Segment(layers=(kind,), whole=case.kind is CaseKind.HOST_REPLAY)
    module = TransformerLayer(settings, segment, kind, settings.frequencies())
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=_DEVIATION)
    x = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, device=where, requires_grad=True)
    wanted = (x, *module.parameters())
    gradient = torch.ones_like(x)
    return lambda _: torch.autograd.grad(module(x), wanted, gradient, allow_unused=True)


CALLS: Final[dict[CaseKind, Callable[[Inputs, Case], Call]]] = {
    **dict.fromkeys((CaseKind.GEMM, CaseKind.SUSTAINED_GEMM), _gemm),
    CaseKind.GEMM_FP8: _gemm_fp8,
    CaseKind.GROUPED_GEMM: _grouped_gemm,
    CaseKind.ATTENTION_FORWARD: _attention_forward,
    CaseKind.ATTENTION_BACKWARD: _attention_backward,
    CaseKind.LATENT_ATTENTION_FORWARD: _attention_forward,
    CaseKind.LATENT_ATTENTION_BACKWARD: _attention_backward,
    CaseKind.NORM: _norm,
    CaseKind.ADD: _add,
    CaseKind.SWIGLU: _swiglu,
    CaseKind.ADAM: _adam,
    CaseKind.COPY: _copy,
    **dict.fromkeys(HOST_COPIES, _host_copy),
    CaseKind.HOST_LAUNCH: _launch,
    **dict.fromkeys((CaseKind.HOST_LAYER, CaseKind.HOST_REPLAY), _layer),
}
"""What makes the call of a case; collectives have their own."""


_GRAPHED: Final = (CaseKind.GEMM, CaseKind.GEMM_FP8, *BANDWIDTH, CaseKind.COPY)
ON_A_GPU: Final = (
    *HOST_COPIES,
    *HOST_TIMES,
    *LATENT_ATTENTION,
    CaseKind.SUSTAINED_GEMM,
    CaseKind.GROUPED_GEMM,
)
"""A CPU has nothing to copy to or to queue for, and lacks a kernel, or the time, for the others."""
_FP8_CAPABILITY: Final = (8, 9)


class Bench:
    """Kernels of one device; `refused`: why a case gave no sample, by its key."""

    def __init__(
        self, device: Device, *, wanted_seconds: float = 0.1, hold_seconds: float = 5.0
    ) -> None:
        self.device = device
        self.inputs = Inputs(device)
        self.refused: dict[str, str] = {}
        self._wanted_seconds, self._hold_seconds = wanted_seconds, hold_seconds

    def attention_variants(self) -> tuple[str, ...]:
        """Implementations of flash attention that torch has here, the native backend's first."""
        return ("flash", "cudnn") if self.device is Device.CUDA else ("torch",)

    def runs(self, case: Case) -> bool:
        """Whether the device has such a kernel and room for it."""
        if self.device is Device.CPU and case.kind in (*ON_A_GPU, CaseKind.GEMM_FP8):
            return False
        if case.kind is CaseKind.GEMM_FP8:
            capability = torch.cuda.get_device_capability()
            if capability < _FP8_CAPABILITY or not hasattr(torch, "_scaled_mm"):
                return False
        return case.num_bytes * FOOTPRINT <= self.inputs.limits.memory_bytes

    def measure(self, case: Case) -> Sample | None:
        """Time a case; None where torch refuses it (an old version, a head size, no memory).
        Whatever is raised is this case's alone: the others are timed."""
        try:
            timing, load = self._time(case, CALLS[case.kind](self.inputs, case))
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
        if case.kind is CaseKind.SUSTAINED_GEMM:
            gpu = open_current_gpu()
            return time_sustained(call, self.device, hold_seconds=self._hold_seconds, gpu=gpu)
        if case.kind in HOST_TIMES:
            return time_queueing(call, self.device, calls=HOST_CALLS[case.kind]), None
        graph, wanted = case.kind in _GRAPHED, self._wanted_seconds
        return time_call(call, self.device, wanted_seconds=wanted, graph=graph), None
