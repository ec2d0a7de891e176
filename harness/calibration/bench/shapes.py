"""The kernels that the model presets run: read off the advisor's operators, not listed by hand."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, product
from math import prod
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout, check_model_fits_layout
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, head_operators, transformer_layer
from advisor.models import layer_kind, options, spec
from advisor.models.presets import load_model, model_names
from harness.backends.native.host_time import layer_calls
from harness.backends.native.predict import as_native
from harness.calibration.bench.cases import ATTENTION, LATENT_ATTENTION, Case, CaseKind

TENSOR_PARALLEL: Final = (1, 2, 4, 8)
TOKENS: Final = (32, 256, 1024, 4096, 8192)
"""Lengths of one sequence. The presets train at 2048 and more; a CPU can afford the short ones."""

CORE_MODELS: Final = ("llama3_8b", "llama3_70b", "llama3.1_405b")
CORE_TENSOR_PARALLEL: Final = (1, 8)
CORE_TOKENS: Final = 8192
"""What a small budget is spent on first: the kernels that most steps are made of."""
ATTENTION_MODELS: Final = (*CORE_MODELS, "deepseek_v3")
ATTENTION_TOKENS: Final = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Sequences of attention alone, of these models at CORE_TENSOR_PARALLEL."""
COMPARED_TOKENS: Final = (4096, 16384)
_MOST_ATTENTION_FLOPS: Final = 2.5e13
"""Forward: about 50 ms at 500 TFLOP/s. Longer sequences are timed with fewer heads."""
EXPERT_TOKENS: Final = (128, 1024, 4096)
"""Rows of each expert of a grouped GEMM."""
GROUPED_VARIANTS: Final = ("grouped", "one_by_one")
"""torch._grouped_mm, and a GEMM for each expert, as the native backend runs them."""
_EXPERT_PARALLEL: Final = 8
_CONTIGUOUS: Final = 8
"""torch._grouped_mm wants rows of a multiple of 16 bytes."""

SUSTAINED: Final = Case(kind=CaseKind.SUSTAINED_GEMM, sizes=(8192, 28672, 4096), variant="tn")
"""fc1 of Llama 3 8B at 8192 tokens: about 3 ms on an H100."""
BURST: Final = Case(kind=CaseKind.GEMM, sizes=SUSTAINED.sizes, variant=SUSTAINED.variant)
HOST_CASES: Final = (
    Case(kind=CaseKind.HOST_LAUNCH, sizes=(256,)),
    *(
        Case(kind=kind, sizes=(64, 256), variant=made_of)
        for kind in (CaseKind.HOST_LAYER, CaseKind.HOST_REPLAY)
        for made_of in ("dense", "moe", "many_experts", "latent")
    ),
)

_NORMS: Final = (Module.INPUT_LAYERNORM, Module.PRE_MLP_LAYERNORM, Module.FINAL_LAYERNORM)


@cache
def preset_cases() -> tuple[Case, ...]:
    """Every kernel of every preset at TP 1, 2, 4 and 8, once, in the order of their keys. Attention
    has no variant yet (see `with_attention`); collectives carry the full tensor's bytes."""
    presets = [load_model(name) for name in model_names()]
    cases = chain(
        *(_of_shape(shape) for shape in _shapes(presets, TENSOR_PARALLEL, TOKENS)),
        _attention_of_any_length(),
        *map(_grouped, presets),
    )
    found = {case.key: case for case in cases}
    return tuple(found[key] for key in sorted(found))


@cache
def core_cases() -> frozenset[Case]:
    """Of `preset_cases` what a small budget must see: dense models' at CORE_TOKENS."""
    shapes = _shapes(map(load_model, CORE_MODELS), CORE_TENSOR_PARALLEL, (CORE_TOKENS,))
    linear = {case for shape in shapes for case in _of_shape(shape)}
    return frozenset(
        linear.union(case for case in _attention_of_any_length() if case.kind in ATTENTION)
    )


def with_attention(cases: tuple[Case, ...], variants: tuple[str, ...]) -> tuple[Case, ...]:
    """`cases` with attention in the first of `variants`, and at COMPARED_TOKENS in all of them."""
    first, *others = variants
    core = (case for case in core_cases() if case.kind in ATTENTION)
    compared = {case for case in core if case.sizes[1] in COMPARED_TOKENS}
    return tuple(case for case in cases if case.kind not in ATTENTION) + tuple(
        replace(case, variant=variant)
        for case in cases
        if case.kind in ATTENTION
        for variant in (first, *(others if case in compared else ()))
    )


def _shapes(
    models: Iterable[spec.ModelSpec], degrees: Iterable[int], lengths: Iterable[int]
) -> Iterator[RankShape]:
    """Shapes of a rank, of one sequence each, where the model can be cut so."""
    for model, tp, tokens in product(models, degrees, lengths):
        if _fits(model, tp):
            yield RankShape(
                model=model,
                seq_length=tokens,
                micro_batch_size=1,
                tensor_model_parallel_size=tp,
                sequence_parallel=tp > 1,
            )


def _fits(model: spec.ModelSpec, tp: int) -> bool:
    layout = ParallelLayout(tensor_model_parallel_size=tp, sequence_parallel=tp > 1)
    try:
        check_model_fits_layout(model, layout)
    except UserError:
        return False
    return model.attention_backend is not options.AttentionBackend.UNFUSED


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
            yield Case(kind=CaseKind(collective.kind.value), sizes=(collective.num_bytes,))
    hidden = shape.hidden(LAYER_INPUT).num_bytes
    for kind in (CaseKind.COPY, CaseKind.TO_DEVICE, CaseKind.TO_HOST):
        yield Case(kind=kind, sizes=(hidden,))


def _gemms(gemm: Gemm, *, eight_bit: bool) -> Iterator[Case]:
    """Forward, and the gradients of input and weight, with the operands as they lie in memory:
    weights [n, k], so that each of the three reads them otherwise. 8 bits have one layout."""
    m, n, k = gemm.m, gemm.n, gemm.k
    for sizes, variant in (((m, n, k), "tn"), ((m, k, n), "nn"), ((n, k, m), "nt")):
        yield Case(kind=CaseKind.GEMM, sizes=sizes, variant=variant)
        if eight_bit and all(size % 16 == 0 for size in sizes):  # torch._scaled_mm
            yield Case(kind=CaseKind.GEMM_FP8, sizes=sizes)


def _adam(operator: Operator) -> Iterator[Case]:
    for weight in operator.weights:
        if weight.in_linear:
            yield Case(kind=CaseKind.ADAM, sizes=(weight.num_elements,))


def _attention(shape: RankShape) -> Iterator[Case]:
    model, kinds = shape.model, ATTENTION
    widths: tuple[int, int] = (shape.local_groups, model.kv_channels)
    if model.multi_latent_attention:
        kinds, widths = LATENT_ATTENTION, (model.qk_channels, model.v_channels)
    for kind in kinds:
        sizes = (shape.micro_batch_size, shape.local_seq, shape.local_heads, *widths)
        yield Case(kind=kind, sizes=sizes)


def _attention_of_any_length() -> Iterator[Case]:
    """Forward and backward, both left out where the forward is too long."""
    for shape in _shapes(map(load_model, ATTENTION_MODELS), CORE_TENSOR_PARALLEL, ATTENTION_TOKENS):
        both = tuple(_attention(shape))
        if both[0].flops <= _MOST_ATTENTION_FLOPS:
            yield from both


def _grouped(model: spec.ModelSpec) -> Iterator[Case]:
    """fc1 and fc2 of the experts that a rank has at EP 8, or of all where there are 8."""
    if model.num_moe_experts is None:
        return
    ffn, hidden = model.expert_ffn_hidden_size, model.hidden_size
    local = model.num_moe_experts // _EXPERT_PARALLEL
    local = local if local > 1 else model.num_moe_experts
    for rows in EXPERT_TOKENS:
        for n, k in ((model.fc1_size_of(ffn), hidden), (hidden, ffn)):
            if n % _CONTIGUOUS == k % _CONTIGUOUS == 0:
                for variant in GROUPED_VARIANTS:
                    yield Case(
                        kind=CaseKind.GROUPED_GEMM, sizes=(local, rows, n, k), variant=variant
                    )


def _elementwise(operator: Operator) -> Iterator[Case]:
    """The memory-bound operators that torch has one kernel for in any version."""
    *leading, width = operator.outputs[0].shape
    rows = prod(leading)
    if operator.module in _NORMS:
        yield Case(kind=CaseKind.NORM, sizes=(rows, width))
    elif operator.module in (Module.SELF_ATTN_BDA, Module.MLP_BDA):
        yield Case(kind=CaseKind.ADD, sizes=(rows, width))
    elif operator.module is Module.ACTIVATION and operator.inputs[0].shape[-1] == 2 * width:
        yield Case(kind=CaseKind.SWIGLU, sizes=(rows, width))


_HEADS: Final = 4
_EXPERTS: Final = {"moe": 4, "many_experts": 64}


def host_layer(case: Case) -> tuple[spec.ModelSpec, layer_kind.LayerKind]:
    """A layer of the case's variant: dense, moe, many_experts, or latent (as DeepSeek's)."""
    tokens, hidden = case.sizes
    model = spec.ModelSpec(
        name=case.variant,
        num_layers=1,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=_HEADS,
        num_query_groups=_HEADS,
        kv_channels=hidden // _HEADS,
        vocab_size=hidden,
        max_position_embeddings=tokens,
    )
    if case.variant in _EXPERTS:
        model = replace(model, num_moe_experts=_EXPERTS[case.variant], moe_ffn_hidden_size=hidden)
        return model, layer_kind.DENSE._replace(feed_forward=layer_kind.FeedForward.MOE)
    if case.variant == "latent":
        model = replace(
            model,
            multi_latent_attention=True,
            qk_layernorm=True,
            q_lora_rank=hidden // 2,
            kv_lora_rank=hidden // 2,
        )
    return model, layer_kind.DENSE


def host_operations(case: Case) -> int:
    """Operations that the processor queues for its forward and backward, nothing recomputed."""
    model, kind = host_layer(case)
    shape = RankShape(model=as_native(model), seq_length=case.sizes[0], micro_batch_size=1)
    return sum(layer_calls(shape, kind))
