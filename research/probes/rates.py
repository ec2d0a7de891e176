"""torch's GEMMs beyond those that `harness calibrate` times: in 8 bits at published shapes, with
either accumulator, a scale for each row, and held under load; of experts in all three passes.

Predicted are kernels alone (gemm_training_share is 1) with the shipped calibration of an H200.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch import Tensor

from advisor.base.dtypes import Precision
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.layers.operators import Gemm, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.time.gemm import (
    GemmRates,
    forward_gemm_seconds,
    input_gradient_seconds,
    weight_gradient_seconds,
)
from advisor.time.machine import gemm_rates
from research.kernels.gemm_rows import family_of, published_rows
from research.kernels.timings import Operands, Timings, timed
from research.probes.probe_case import Case, Figures

GPU: Final = load_gpu("H200")
ALONE: Final = replace(load_calibration(GPU), gemm_training_share=1.0)
EXPERTS: Final = {"qwen3_30b_a3b": 1, "mixtral_8x7b": 1, "deepseek_v3": 8}
"""Models with experts, and the ranks that these are spread over."""
PASSES: Final[Mapping[str, Callable[[Gemm, GemmRates], float]]] = {
    "forward": forward_gemm_seconds,
    "input_gradient": input_gradient_seconds,
    "weight_gradient": weight_gradient_seconds,
}
PRECISIONS: Final = {"bf16": Precision.BF16, "fp8": Precision.FP8_CURRENT}
_TOKENS: Final = 8192
EXPERT_TOKENS: Final = 4096
_LEAST_FLOPS, _MOST_FLOPS = 2**33, 2**43
HELD: Final = (
    *((8192, 28672, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (6144, 12288, 12288)),
    (16384, 16384, 16384),
)
TINY: Final = ((64, 64, 64), (32, 96, 64))

Shape = tuple[int, ...]
"""m, n, k of [m, k] x [k, n]."""


Calls = Mapping[str, tuple[Callable[[], Operands], Callable[..., object]]]
"""Of each pass: what makes its operands, and what runs on them."""


def cases(tiny: bool) -> tuple[Case, ...]:
    """Dense GEMMs, and those of experts."""
    return (
        case_of("gemms", "bf16 and FP8, to 16,384 wide", _predict_gemms, _gemms, tiny=tiny),
        case_of("grouped", "GEMMs of experts at once", _predict_grouped, _grouped, tiny=tiny),
    )


def case_of(
    name: str,
    why: str,
    predict: Callable[..., Figures],
    measure: Callable[..., None],
    *,
    tiny: bool,
) -> Case:
    """A case whose figures `timed` gathers."""
    return Case(
        name=name,
        why=why,
        predict=partial(predict, tiny=tiny),
        measure=partial(timed, partial(measure, tiny=tiny), tiny=tiny),
        seconds=60,
    )


def layer(model: ModelSpec, tokens: int, *, tp: int = 1, ep: int = 1) -> tuple[Operator, ...]:
    """Operators of the last layer on one rank, one sequence."""
    shape = RankShape(
        model=model,
        seq_length=tokens,
        micro_batch_size=1,
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        expert_model_parallel_size=ep,
    )
    return transformer_layer(shape, model.layer_kinds[-1])


def _of_layers() -> Iterator[Shape]:
    """Linear layers of Llama 3 8B, 70B on TP 4, and DeepSeek-V3 (without its experts)."""
    for name, tp in (("llama3_8b", 1), ("llama3_70b", 4), ("deepseek_v3", 1)):
        for operator in layer(load_model(name), _TOKENS, tp=tp):
            if operator.gemm is not None and operator.gemm.groups == 1:
                yield operator.gemm.m, operator.gemm.n, operator.gemm.k


def _published() -> Iterator[tuple[str, Shape, dict[str, Any]]]:
    """Single dense GEMMs on Hopper: name of the figure, shape, and the row."""
    for row in published_rows():
        (gemm, *more) = row.gemms
        if family_of(row.gpu) == "h100" and row.passes == "forward" and not (more or row.grouped):
            shape = gemm.m, gemm.n, gemm.k
            name = name_of("fp8" if row.precision.is_fp8 else "bf16", shape, held=row.sustained)
            tflops = round(gemm.flops / row.seconds / 1e12, 1)
            yield name, shape, {"tflops": tflops, "gpu": row.gpu.name, "source": row.source}


def shapes(more: Iterable[Shape], *, tiny: bool) -> tuple[Shape, ...]:
    """Those that are held, of layers, and `more`, where 8 bits take them."""
    if tiny:
        return TINY
    return tuple(
        (m, n, k)
        for m, n, k in dict.fromkeys((*HELD, *_of_layers(), *more))
        if _LEAST_FLOPS <= 2 * m * n * k <= _MOST_FLOPS and not (m % 16 or n % 16 or k % 16)
    )


def _dense_shapes(*, tiny: bool) -> tuple[Shape, ...]:
    published = (shape for name, shape, _ in _published() if name.startswith("fp8"))
    return shapes(published, tiny=tiny)


def name_of(kind: str, shape: Shape, *, held: bool = False) -> str:
    """Of a figure, e.g. ``fp8_held_4096x4096x4096``."""
    return f"{kind}{'_held' if held else ''}_{'x'.join(map(str, shape))}"


def rates_of(bits: str, *, held: bool = False, share: float = 1.0) -> GemmRates:
    """In a burst the power limit holds nothing back."""
    rates = replace(gemm_rates(GPU, ALONE, PRECISIONS[bits]), grouped_share=share)
    return rates if held else replace(rates, sustained_flops=rates.flops)


def _predict_gemms(*, tiny: bool) -> Figures:
    shapes = _dense_shapes(tiny=tiny)
    published: dict[str, Any] = {}
    for name, shape, row in _published():
        if shape in shapes:
            published.setdefault(name, []).append(row)
    found: dict[str, Any] = {"published_tflops": published}
    for bits in PRECISIONS:
        for held, of in ((False, shapes), (True, TINY if tiny else HELD)):
            for m, n, k in of:
                name = name_of(bits, (m, n, k), held=held)
                seconds = forward_gemm_seconds(Gemm(m, n, k), rates_of(bits, held=held))
                found[f"{name}_seconds"] = seconds
    return found


def _gemms(timings: Timings, *, tiny: bool) -> None:
    """torch.mm, and torch._scaled_mm with a scale for each tensor. fp8_exact: sums in fp32, where
    the tensor core's own have fewer bits; fp8_rowwise: with a scale for each row."""
    for shape in _dense_shapes(tiny=tiny):
        for kind in ("bf16", "fp8", "fp8_exact", "fp8_rowwise"):
            _gemm(timings, kind, shape)
    for shape in TINY if tiny else HELD:
        for kind in ("fp8", "bf16"):
            _gemm(timings, kind, shape, held=True)


def _gemm(timings: Timings, kind: str, shape: Shape, *, held: bool = False) -> None:
    m, n, k = shape
    tensor, narrow, where = timings.inputs.tensor, torch.float8_e4m3fn, timings.device.value
    sizes = ((m, 1), (1, n)) if kind == "fp8_rowwise" else ((), ())
    of_x, of_w = (torch.ones(size, device=where) for size in sizes)

    def wide() -> tuple[Tensor, Tensor]:
        return tensor(m, k), tensor(n, k).t()

    def cast() -> tuple[Tensor, Tensor]:
        return tensor(m, k).to(narrow), tensor(n, k).to(narrow).t()

    def scaled(x: Tensor, w: Tensor) -> object:
        multiply: Any = torch._scaled_mm
        fast = kind != "fp8_exact"
        return multiply(x, w, of_x, of_w, out_dtype=torch.bfloat16, use_fast_accum=fast)

    make, run, itemsize = (wide, torch.mm, 2) if kind == "bf16" else (cast, scaled, 1)
    num_bytes = itemsize * (m + n) * k + 2 * m * n
    timings.time(name_of(kind, shape, held=held), make, run, num_bytes, graph=True, held=held)


def expert_gemms(*, tiny: bool) -> Iterator[tuple[str, Gemm]]:
    """fc1 and fc2 of each model's experts on one rank, tokens spread evenly."""
    for name, ep in EXPERTS.items():
        model = load_model(name)
        if tiny:
            model = replace(model, hidden_size=64, moe_ffn_hidden_size=32, num_moe_experts=8 * ep)
        for operator in layer(model, 64 if tiny else EXPERT_TOKENS, ep=ep):
            if operator.gemm is not None and operator.gemm.groups > 1:
                yield f"{name}.{operator.name.rpartition('_')[2]}", operator.gemm


def _predict_grouped(*, tiny: bool) -> Figures:
    rates = rates_of("bf16", share=ALONE.grouped_gemm_share)
    return {
        f"{name}.{direction}_seconds": seconds(
            replace(gemm, kernels=1, main_grad_itemsize=0), rates
        )
        for name, gemm in expert_gemms(tiny=tiny)
        for direction, seconds in PASSES.items()
    }


def _grouped(timings: Timings, *, tiny: bool) -> None:
    """torch._grouped_mm over rows sorted by expert."""
    for name, gemm in expert_gemms(tiny=tiny):
        _grouped_gemm(timings, name, gemm)


def bytes_of(gemm: Gemm) -> int:
    """Of its three matrices in 16 bits."""
    return 2 * (gemm.m * (gemm.n + gemm.k) + gemm.groups * gemm.n * gemm.k)


def _grouped_gemm(timings: Timings, name: str, gemm: Gemm) -> None:
    m, n, k, experts = gemm.m, gemm.n, gemm.k, gemm.groups
    tensor, grouped = timings.inputs.tensor, torch._grouped_mm
    where: Any = {"device": timings.device.value, "dtype": torch.int32}
    ends = m // experts * torch.arange(1, experts + 1, **where)
    calls: Calls = {
        "forward": (
            lambda: (tensor(m, k), tensor(experts, n, k)),
            lambda x, w: grouped(x, w.transpose(1, 2), offs=ends),
        ),
        "input_gradient": (
            lambda: (tensor(m, n), tensor(experts, n, k)),
            lambda dy, w: grouped(dy, w, offs=ends),
        ),
        "weight_gradient": (
            lambda: (tensor(m, n), tensor(m, k)),
            lambda dy, x: grouped(dy.t(), x, offs=ends),
        ),
    }
    for direction, (make, run) in calls.items():
        timings.time(f"{name}.{direction}", make, run, bytes_of(gemm))
