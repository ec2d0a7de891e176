"""The kernel of each kind of case as a call on random operands."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.backends.native.modules.attention import flash_attention
from harness.backends.sdpa import causal_attention
from harness.calibration.bench import host
from harness.calibration.bench.cases import LATENT_ATTENTION, Case, Kind
from harness.calibration.bench.kernel_inputs import Inputs
from harness.calibration.bench.timer import Call

_IMPLEMENTATIONS: Final = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def _gemm(inputs: Inputs, case: Case) -> Call:
    """tn: x [m, k] and w [n, k]; nn: dy [m, k] and w [k, n]; nt: dy [k, m] and x [k, n]."""
    m, n, k = case.sizes

    def operands() -> tuple[Tensor, Tensor]:
        left = inputs.tensor(k, m).t() if case.variant == "nt" else inputs.tensor(m, k)
        right = inputs.tensor(n, k).t() if case.variant == "tn" else inputs.tensor(k, n)
        return left, right

    return inputs.in_turn(case, operands, torch.mm)


def _gemm_fp8(inputs: Inputs, case: Case) -> Call:
    """e4m3 with one scale a tensor; 8-bit tensor cores want both operands along k."""
    m, n, k = case.sizes
    scale, narrow = torch.ones((), device=inputs.device.value), torch.float8_e4m3fn
    multiply: Any = torch._scaled_mm
    return inputs.in_turn(
        case,
        lambda: (inputs.tensor(m, k).to(narrow), inputs.tensor(n, k).to(narrow).t()),
        partial(
            multiply, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
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
        for part, own, out in zip(
            torch.split(rows, m), weights, torch.split(output, m), strict=True
        ):
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
    return inputs.in_turn(
        case, lambda: (inputs.tensor(*case.sizes), inputs.tensor(*case.sizes)), torch.add
    )


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


def _copy(inputs: Inputs, case: Case) -> Call:
    count = case.sizes[0] // 2
    return inputs.in_turn(
        case, lambda: (inputs.tensor(count), inputs.tensor(count)), torch.Tensor.copy_
    )


def _host_copy(inputs: Inputs, case: Case) -> Call:
    """Between pinned memory of the host and the device, without waiting."""
    there = inputs.tensor(case.sizes[0] // 2)
    here = there.cpu().pin_memory()
    target, source = (there, here) if case.kind is Kind.TO_DEVICE else (here, there)
    return lambda _: target.copy_(source, non_blocking=True)


CALLS: Final[dict[Kind, Callable[[Inputs, Case], Call]]] = {
    Kind.GEMM: _gemm,
    Kind.GEMM_FP8: _gemm_fp8,
    Kind.SUSTAINED_GEMM: _gemm,
    Kind.GROUPED_GEMM: _grouped_gemm,
    Kind.ATTENTION_FORWARD: _attention_forward,
    Kind.ATTENTION_BACKWARD: _attention_backward,
    Kind.LATENT_ATTENTION_FORWARD: _attention_forward,
    Kind.LATENT_ATTENTION_BACKWARD: _attention_backward,
    Kind.NORM: _norm,
    Kind.ADD: _add,
    Kind.SWIGLU: _swiglu,
    Kind.ADAM: _adam,
    Kind.COPY: _copy,
    Kind.TO_DEVICE: _host_copy,
    Kind.TO_HOST: _host_copy,
    Kind.HOST_LAUNCH: lambda inputs, case: host.launch(case, inputs.device),
    Kind.HOST_LAYER: lambda inputs, case: host.layer(case, inputs.device),
    Kind.HOST_REPLAY: lambda inputs, case: host.layer(case, inputs.device),
}
"""What makes the call of a case; collectives have their own."""
