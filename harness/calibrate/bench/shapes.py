"""The kernels that the model presets run: read off the advisor's operators, not listed by hand."""

from collections.abc import Iterator
from functools import cache
from typing import Final

from advisor.errors import UserError
from advisor.layers.ends import head_operators
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.layout import ParallelLayout, check_model_fits_layout
from advisor.models.presets import load_model, model_names
from advisor.models.spec import AttentionBackend, ModelSpec
from harness.calibrate.bench.cases import ATTENTION, Case, Kind

TENSOR_PARALLEL: Final = (1, 2, 4, 8)
TOKENS: Final = (32, 256, 1024, 4096, 8192)
"""Sequence lengths, one sequence each. The presets train at 2048 and more; the short ones tell the
fixed cost of a kernel, and are what a CPU can afford."""

_ADDITIONS: Final = (Module.SELF_ATTN_BDA, Module.MLP_BDA)
_NORMS: Final = (Module.INPUT_LAYERNORM, Module.PRE_MLP_LAYERNORM, Module.FINAL_LAYERNORM)


@cache
def preset_cases() -> tuple[Case, ...]:
    """Every kernel of every preset at TP 1, 2, 4 and 8, each once, in the order of their keys.

    Attention has no variant yet (see `with_attention`); collectives carry the full tensor's bytes.
    """
    found = {case.key: case for shape in _rank_shapes() for case in _of_shape(shape)}
    return tuple(found[key] for key in sorted(found))


def with_attention(cases: tuple[Case, ...], variants: tuple[str, ...]) -> tuple[Case, ...]:
    """`cases` with every attention once for each implementation."""
    plain = tuple(case for case in cases if case.kind not in ATTENTION)
    return plain + tuple(
        Case(kind=case.kind, sizes=case.sizes, variant=variant)
        for case in cases
        if case.kind in ATTENTION
        for variant in variants
    )


def _rank_shapes() -> Iterator[RankShape]:
    for name in model_names():
        model = load_model(name)
        for tp in TENSOR_PARALLEL:
            if not _fits(model, tp):
                continue
            for tokens in TOKENS:
                yield RankShape(
                    model=model,
                    seq_length=tokens,
                    micro_batch_size=1,
                    tensor_model_parallel_size=tp,
                    sequence_parallel=tp > 1,
                )


def _fits(model: ModelSpec, tp: int) -> bool:
    layout = ParallelLayout(tensor_model_parallel_size=tp, sequence_parallel=tp > 1)
    try:
        check_model_fits_layout(model, layout)
    except UserError:
        return False
    return model.attention_backend is not AttentionBackend.UNFUSED


def _of_shape(shape: RankShape) -> Iterator[Case]:
    for operator in (*transformer_layer(shape), *head_operators(shape)):
        if operator.gemm is not None:
            yield from _gemms(operator.gemm, eight_bit=operator.module is not Module.OUTPUT_LAYER)
            yield from _adam(operator)
        elif operator.unit is ComputeUnit.ATTENTION:
            yield from _attention(shape)
        else:
            yield from _elementwise(operator)
        for collective in (*operator.forward_collectives, *operator.backward_collectives):
            yield Case(kind=Kind(collective.kind.value), sizes=(collective.num_bytes,))
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    for kind in (Kind.COPY, Kind.TO_DEVICE, Kind.TO_HOST):
        yield Case(kind=kind, sizes=(hidden,))


def _gemms(gemm: Gemm, *, eight_bit: bool) -> Iterator[Case]:
    """Forward, and the gradients of input and weight, with the operands as they lie in memory:
    weights [n, k], so that each of the three reads them otherwise. 8 bits have one layout."""
    m, n, k = gemm.m, gemm.n, gemm.k
    for sizes, variant in (((m, n, k), "tn"), ((m, k, n), "nn"), ((n, k, m), "nt")):
        yield Case(kind=Kind.GEMM, sizes=sizes, variant=variant)
        if eight_bit and all(size % 16 == 0 for size in sizes):  # torch._scaled_mm
            yield Case(kind=Kind.GEMM_FP8, sizes=sizes)


def _adam(operator: Operator) -> Iterator[Case]:
    for weight in operator.weights:
        if weight.in_linear:
            yield Case(kind=Kind.ADAM, sizes=(weight.num_elements,))


def _attention(shape: RankShape) -> Iterator[Case]:
    model = shape.model
    sizes = (
        shape.micro_batch_size, shape.local_seq, shape.local_heads, shape.local_groups,
        model.kv_channels,
    )  # fmt: skip
    for kind in ATTENTION:
        yield Case(kind=kind, sizes=sizes)


def _elementwise(operator: Operator) -> Iterator[Case]:
    """The memory-bound operators that torch has one kernel for in any version."""
    *leading, width = operator.outputs[0].shape
    rows = 1
    for size in leading:
        rows *= size
    if operator.module in _NORMS:
        yield Case(kind=Kind.NORM, sizes=(rows, width))
    elif operator.module in _ADDITIONS:
        yield Case(kind=Kind.ADD, sizes=(rows, width))
    elif operator.module is Module.ACTIVATION and operator.inputs[0].shape[-1] == 2 * width:
        yield Case(kind=Kind.SWIGLU, sizes=(rows, width))
