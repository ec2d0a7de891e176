"""Transformer Engine's GEMMs and casts, dense and of experts: bf16, and FP8 (current scaling).

Predicted are kernels alone, see research.probes.rates.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from advisor.base.errors import UserError
from advisor.layers.operators import Gemm
from advisor.time.machine import machine
from advisor.time.roofline import cast_seconds
from research.kernels.timings import Timings
from research.probes.probe_case import Case, Figures
from research.probes.rates import (
    ALONE,
    GPU,
    PASSES,
    PRECISIONS,
    Calls,
    Shape,
    bytes_of,
    case_of,
    expert_gemms,
    name_of,
    rates_of,
    shapes,
)


def cases(tiny: bool) -> tuple[Case, ...]:
    """Dense linear layers, and those of experts."""
    return (
        case_of("dense", "GEMMs and casts of te.Linear", _predict_dense, _dense, tiny=tiny),
        case_of("grouped", "of te.GroupedLinear", _predict_grouped, _grouped, tiny=tiny),
    )


class _Engine:
    """What its layers call (2.20.2 pytorch/module/linear.py, grouped_linear.py)."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UserError("Transformer Engine", None, "needs a GPU")
        try:
            pytorch = import_module("transformer_engine.pytorch")
            extension = import_module("transformer_engine_torch")
        except (ImportError, RuntimeError, OSError) as error:
            raise UserError("Transformer Engine", None, f"cannot be loaded: {error}") from None
        self.gemm: Any = pytorch.cpp_extensions.general_gemm
        self.grouped: Any = pytorch.cpp_extensions.general_grouped_gemm
        self.split: Any = extension.split_quantize
        self.quantizer: Any = partial(
            pytorch.Float8CurrentScalingQuantizer, device=torch.device("cuda")
        )
        self.e4m3, self.e5m2 = pytorch.DType.kFloat8E4M3, pytorch.DType.kFloat8E5M2

    def cast(self, bits: str, dtype: Any) -> Callable[[Tensor], Any]:
        """Both layouts of a tensor in 8 bits; in 16 the tensor itself."""
        return self.quantizer(dtype) if bits == "fp8" else lambda tensor: tensor

    def splits(self, bits: str, dtype: Any, rows: list[int]) -> Callable[[Tensor], list[Any]]:
        """The rows of each expert, cast."""
        if bits == "bf16":
            return lambda tensor: list(torch.split(tensor, rows))
        quantizers = [self.quantizer(dtype) for _ in rows]
        return lambda tensor: list(self.split(tensor, rows, quantizers))


def _predict(name: str, gemm: Gemm) -> dict[str, float]:
    machine_fp8 = machine(GPU, ALONE, PRECISIONS["fp8"])
    found = {f"cast.{name}_seconds": cast_seconds(gemm.m * gemm.k, gemm.kernels, machine_fp8)}
    for bits in PRECISIONS:
        for direction, seconds in PASSES.items():
            found[f"{bits}.{direction}.{name}_seconds"] = seconds(gemm, rates_of(bits))
    return found


def _predict_dense(*, tiny: bool) -> Figures:
    found: dict[str, Any] = {}
    for m, n, k in shapes((), tiny=tiny):
        found |= _predict(name_of("gemm", (m, n, k)), Gemm(m, n, k, main_grad_itemsize=4))
    return found


def _predict_grouped(*, tiny: bool) -> Figures:
    found: dict[str, Any] = {}
    for name, gemm in expert_gemms(tiny=tiny):
        found |= _predict(name, gemm)
    return found


def _dense(timings: Timings, *, tiny: bool) -> None:
    """On ready operands; the weight's gradient is added to a buffer in fp32, and back 8-bit GEMMs
    have split accumulators."""
    engine = _Engine()
    for shape in shapes((), tiny=tiny):
        for bits in PRECISIONS:
            _dense_gemm(timings, engine, bits, shape)


def _dense_gemm(timings: Timings, engine: _Engine, bits: str, shape: Shape) -> None:
    m, n, k = shape
    name, tensor = name_of("gemm", shape), timings.inputs.tensor
    cast, cast_back = engine.cast(bits, engine.e4m3), engine.cast(bits, engine.e5m2)
    back = partial(engine.gemm, grad=True, use_split_accumulator=bits == "fp8")
    added = partial(back, out_dtype=torch.float32, layout="NT", accumulate=True)
    calls: Calls = {
        "forward": (
            lambda: (cast(tensor(n, k)), cast(tensor(m, k))),
            partial(engine.gemm, out_dtype=torch.bfloat16),
        ),
        "input_gradient": (
            lambda: (cast(tensor(n, k)), cast_back(tensor(m, n))),
            partial(back, out_dtype=torch.bfloat16, layout="NN"),
        ),
        "weight_gradient": (
            lambda: (cast(tensor(m, k)), cast_back(tensor(m, n)), _buffer(timings, n, k)),
            lambda x, dy, buffer: added(x, dy, out=buffer),
        ),
    }
    if bits == "fp8":
        timings.time(f"cast.{name}", lambda: (tensor(m, k),), cast, 4 * m * k)
    for direction, (make, run) in calls.items():
        timings.time(f"{bits}.{direction}.{name}", make, run, bytes_of(Gemm(m, n, k)))


def _buffer(timings: Timings, *sizes: int) -> Tensor:
    return torch.zeros(sizes, device=timings.device.value)


def _grouped(timings: Timings, *, tiny: bool) -> None:
    """A GEMM for each expert, on four streams."""
    engine = _Engine()
    for name, gemm in expert_gemms(tiny=tiny):
        for bits in PRECISIONS:
            _grouped_gemm(timings, engine, bits, name, gemm)


def _grouped_gemm(timings: Timings, engine: _Engine, bits: str, name: str, gemm: Gemm) -> None:
    m, n, k, experts = gemm.m, gemm.n, gemm.k, gemm.groups
    tensor, rows = timings.inputs.tensor, [m // experts] * experts
    cast = engine.cast(bits, engine.e4m3)
    split, split_back = (engine.splits(bits, dtype, rows) for dtype in (engine.e4m3, engine.e5m2))
    run = partial(
        engine.grouped,
        quantization_params=[None] * experts,
        out_dtype=torch.bfloat16,
        m_splits=rows,
    )
    back = partial(run, grad=True, use_split_accumulator=bits == "fp8")

    def weights() -> list[Any]:
        return [cast(weight) for weight in tensor(experts, n, k)]

    calls: Calls = {
        "forward": (
            lambda: (weights(), split(tensor(m, k)), [tensor(m, n)]),
            lambda w, x, out: run(w, x, out, single_output=True),
        ),
        "input_gradient": (
            lambda: (weights(), split_back(tensor(m, n)), [tensor(m, k)]),
            lambda w, dy, out: back(w, dy, out, single_output=True, layout="NN"),
        ),
        "weight_gradient": (
            lambda: (
                split(tensor(m, k)),
                split_back(tensor(m, n)),
                list(_buffer(timings, experts, n, k)),
            ),
            lambda x, dy, out: back(x, dy, out, layout="NT", accumulate=True),
        ),
    }
    if bits == "fp8":
        timings.time(f"cast.{name}", lambda: (tensor(m, k),), split, 4 * m * k)
    for direction, (make, call) in calls.items():
        timings.time(f"{bits}.{direction}.{name}", make, call, bytes_of(gemm))
