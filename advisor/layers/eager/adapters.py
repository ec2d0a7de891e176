"""Layers of transformers with frozen weights and peft's adapters, as peft executes them.

Source: peft 0.21.2 tuners/lora/layer.py (Linear, ParamWrapper), dora.py, bnb.py, run in
tests/oracles; bitsandbytes 0.50.2 autograd/_functions.py and nn/modules.py, whose GPU kernels are
read. The embedding's output requires a gradient (enable_input_require_grads, which transformers
calls with gradient checkpointing): without, the first layer keeps less, up to its first adapter.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.job.tuning import EMBEDDINGS, OUTPUT_LAYERS, Adapter, StoredAs
from advisor.layers.adapters import frozen, is_target, low_rank_weights
from advisor.layers.eager import parts
from advisor.layers.family import family_of
from advisor.layers.operators import ComputeUnit, Gemm, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.options import PositionEmbedding

_NAMES = {
    "shared_w1": "gate_proj",
    "shared_w3": "up_proj",
    "shared_w2": "down_proj",
    "output": OUTPUT_LAYERS[0],
}
_GPT2S = {"o_proj": "c_proj", "down_proj": "c_proj"}
"""Last names of modules where operators have others."""


def tuned(shape: RankShape, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a layer or an end with what `shape.tuning` freezes and adds."""
    return tuple(made for one in operators for made in _tuned(shape, one))


def _module_name(shape: RankShape, operator: Operator) -> str:
    """The last name by which peft's target_modules and target_parameters find the module."""
    gpt2 = shape.model.position_embedding_type is PositionEmbedding.LEARNED
    return (_NAMES | _GPT2S if gpt2 else _NAMES).get(operator.name, operator.name)


def target_names(shape: RankShape) -> tuple[str, ...]:
    """Of all linear layers that may have an adapter."""
    family = family_of(shape.model)
    parts = [family.layer(shape, kind) for kind in dict.fromkeys(shape.model.layer_kinds)]
    parts += [operators for _, operators in family.head(shape)]
    linear = (one for operators in parts for one in operators if one.gemm and one.weights)
    named = (_module_name(shape, one) for one in linear if one.weights[0].in_linear)
    return tuple(dict.fromkeys(named))


def _tuned(shape: RankShape, operator: Operator) -> Iterator[Operator]:
    tuning, place = shape.tuning, operator.module
    if not operator.weights or _is_trained(shape, operator):
        yield operator
        return
    gone = parts.passing_gradients(shape, operator)
    linear = operator.gemm is not None and operator.weights[0].in_linear
    stays = tuning.base_weights if linear and place is not Module.OUTPUT_LAYER else None
    base = frozen(operator, stays or StoredAs.AS_LOADED)
    base = replace(base, backward_workspace=base.backward_workspace - gone)
    if not linear:
        base = _with_temporaries(base, operator)
    expert = base.weights[0].expert
    if linear and not expert:
        base = _quantized(shape, base)
    in_all = place is not Module.OUTPUT_LAYER and not expert
    name = _module_name(shape, operator)
    if not (linear and is_target(tuning, (name,), of_all=in_all)):
        yield base
    elif expert:
        yield from _of_experts(shape, base, operator)
    elif tuning.adapter is Adapter.DORA:
        yield from _dora(shape, base)
    else:
        yield from _lora(shape, base)


def _is_trained(shape: RankShape, operator: Operator) -> bool:
    """Whether the operator's own weights, or a copy of them, are trained."""
    tuning, place = shape.tuning, operator.module
    if place is Module.EMBEDDING:
        return not tuning.freezes_embedding or tuning.saves(*EMBEDDINGS)
    if place is Module.OUTPUT_LAYER:
        return tuning.trains_output
    return not tuning.has_adapter and (
        place is not Module.FINAL_LAYERNORM or not tuning.trains_parts
    )


def _with_temporaries(base: Operator, before: Operator) -> Operator:
    """`base` with what it no longer saves, and still makes: a norm's workspaces, of either pass,
    are counted next to its normalized tensor."""
    gone = sum(one.num_bytes for one in before.saved if one not in base.saved)
    return replace(
        base,
        forward_workspace=base.forward_workspace + gone,
        backward_workspace=base.backward_workspace + gone,
    )


def _quantized(shape: RankShape, base: Operator) -> Operator:
    """Its weight in bitsandbytes' types: brought to 16 bits in either pass, for as long as a GEMM
    takes. MatMul4Bit keeps nothing; MatMul8bitLt keeps its input, which it brings to fp16 and to
    8 bits, and multiplies into 32."""
    weight, source, output = base.weights[0], base.inputs[0], base.outputs[0]
    wide = weight.num_elements * output.dtype.itemsize
    if weight.stored_as is StoredAs.NF4:
        return replace(
            base,
            forward_workspace=base.forward_workspace + wide,
            backward_workspace=base.backward_workspace + wide,
            extra_forward_bytes=base.extra_forward_bytes + 2 * wide,
            extra_backward_bytes=base.extra_backward_bytes + 2 * wide,
        )
    if weight.stored_as is not StoredAs.INT8:
        return base
    before = source.num_elements * (DType.FP16.itemsize + DType.FLOAT8.itemsize)
    return replace(
        base,
        saved=(*base.saved, source),
        forward_workspace=base.forward_workspace + before + output.num_elements * 4,
        backward_workspace=base.backward_workspace + wide,
        extra_forward_bytes=base.extra_forward_bytes + 2 * before + 8 * output.num_elements,
        extra_backward_bytes=base.extra_backward_bytes + 2 * wide,
    )


class _Adapted:
    """One linear layer with an adapter: what either kind of adapter is made of."""

    def __init__(self, shape: RankShape, base: Operator) -> None:
        tuning, self.base = shape.tuning, base
        self.name, self.place = base.name, base.module
        (self.source,), (self.output,) = base.inputs, base.outputs
        self.dtype = tuning.adapter_dtype or self.output.dtype
        self.cast = self.dtype is DType.FP32 and self.output.dtype is not DType.FP32
        autocasts = self.cast and tuning.autocast
        """fp32 adapters compute in 16 bits."""
        self.computes = self.output.dtype if autocasts else self.dtype
        self.shape = replace(
            shape,
            autocast=autocasts,
            precision=shape.precision if autocasts else Precision.BF16,
            weight_grads_dtype=self.dtype,
        )
        quantized = tuning.base_weights is not StoredAs.AS_LOADED
        self.casts_input = self.dtype is not self.source.dtype and not (quantized and autocasts)
        self.quantized = quantized and base.weights[0].stored_as is not StoredAs.AS_LOADED
        self.held: tuple[Tensor, ...] = (*base.forward_holds, self.source)
        """What variables of the layer and its callers hold until it returns."""

    def tensor(self, name: str, dtype: DType, width: int | None = None) -> Tensor:
        """[..., width], as wide as the layer's output by default."""
        size = (*self.output.shape[:-1], self.output.shape[-1] if width is None else width)
        return Tensor(f"{self.name}.{name}", size, dtype)

    def read(self) -> tuple[Tensor, tuple[Operator, ...]]:
        """The layer's input in the adapter's type, and what dropout leaves of it."""
        read = self.source
        made: tuple[Operator, ...] = ()
        if self.casts_input:
            read = Tensor(f"{self.name}.lora_input", read.shape, self.dtype)
            made = (Operator(f"{self.name}.to", self.place, (self.source,), (read,)),)
            self.held += (read,)
        name = f"{self.name}.lora_dropout"
        kept, dropped = parts.dropout(name, self.place, read, self.shape.tuning.dropout)
        return kept, (*made, *dropped)

    def products(self, read: Tensor) -> tuple[Tensor, tuple[Operator, ...]]:
        """B(A x)."""
        tuning = self.shape.tuning
        inner = self.tensor("lora_A_out", self.computes, tuning.rank)
        output = self.tensor("lora_B_out", self.computes)
        width, depth = self.base.weights[0].shape
        both = low_rank_weights(self.name, depth, width, tuning.rank, self.dtype)
        operators = []
        for letter, weight, one, made in zip(
            "AB", both, (read, inner), (inner, output), strict=True
        ):
            operator = parts.linear(
                self.shape, f"{self.name}.lora_{letter}", self.place, one, made, bias=False
            )
            operators.append(replace(operator, weights=(weight,)))
        return output, tuple(operators)

    def elementwise(self, name: str, *inputs: Tensor, output: Tensor, **fields: object) -> Operator:
        return Operator(f"{self.name}.{name}", self.place, inputs, (output,), **fields)  # type: ignore[arg-type]

    def by_scaling(self, name: str, source: Tensor, output: Tensor) -> Operator:
        """Times a number, which is kept on the processor: up to here a replay has to come."""
        number = Tensor(f"{self.name}.scaling", (0,), DType.FP32)
        return self.elementwise(name, source, output=output, saved=(number,))

    def added(self, left: Tensor, right: Tensor) -> tuple[Operator, ...]:
        """The sum, in the wider type, brought to the layer's own. The input's copy lives in a
        variable until then."""
        wide = left.dtype is not right.dtype
        total = self.tensor("sum", DType.FP32) if wide else self.output
        add = parts.residual(f"{self.name}.add", self.place, right, left, total, self.held)
        if not wide:
            return (add,)
        return add, self.elementwise("cast", total, output=self.output, forward_holds=self.held)


def _started(this: _Adapted) -> tuple[Tensor, Tensor, list[Operator]]:
    """The base layer's result, what the adapter reads, and the operators that make both."""
    result = this.tensor("base", this.output.dtype)
    first = [replace(this.base, outputs=(result,), forward_holds=())]
    if this.quantized and this.base.weights[0].stored_as is StoredAs.NF4:
        whole, result = result, this.tensor("clone", result.dtype)
        first.append(this.elementwise("clone", whole, output=result))
    read, before = this.read()
    return result, read, [*first, *before]


def _lora(shape: RankShape, base: Operator) -> Iterator[Operator]:
    """result + B(A(dropout(x))) * scaling."""
    this = _Adapted(shape, base)
    result, read, before = _started(this)
    delta, products = this.products(read)
    scaled = this.tensor("scaled", delta.dtype)
    yield from (*before, *products, this.by_scaling("scale", delta, scaled))
    if this.quantized and scaled.dtype is not result.dtype:
        narrow = this.tensor("scaled.to", result.dtype)
        yield this.elementwise("scaled.to", scaled, output=narrow)
        scaled = narrow
    yield from this.added(result, scaled)


def _dora(shape: RankShape, base: Operator) -> Iterator[Operator]:
    """result + (m / |W + s B A| - 1) * base + m / |W + s B A| * B(A(x)) * s. `base` is the result
    without its bias, or, of an input with dropout, computed once more."""
    this = _Adapted(shape, base)
    result, read, before = _started(this)
    yield from before
    scale, norm, held = _norm_of_sum(this, read)
    delta, products = this.products(read)
    operators = [norm, *products]
    alone = result
    if shape.tuning.dropout:
        alone = this.tensor("base_again", this.computes if this.cast else read.dtype)
        operators.append(_again(this, read, alone))
    elif len(base.weights) > 1:
        alone = this.tensor("without_bias", result.dtype)
        operators.append(this.elementwise("without_bias", result, output=alone))
    less = replace(scale, name=f"{this.name}.scale_less_1")
    wide = scale.dtype
    first, second, third, both = (
        this.tensor(f"dora.{name}", wide) for name in ("base", "delta", "scaled", "sum")
    )
    operators += [
        this.elementwise("scale_less_1", scale, output=less),
        _scaled(this, less, alone, first),
        _scaled(this, scale, delta, second),
        this.by_scaling("dora.scaled", second, third),
        parts.residual(f"{this.name}.dora.sum", this.place, third, first, both, (delta, alone)),
    ]
    for operator in operators:
        yield replace(operator, forward_workspace=operator.forward_workspace + held)
        if operator.name.endswith(".again"):  # what it keeps is no more than held
            held -= sum(one.num_bytes for one in operator.saved if one.dtype is read.dtype)
    yield from this.added(result, both)


def _norm_of_sum(this: _Adapted, read: Tensor) -> tuple[Tensor, Operator, int]:
    """Magnitude over the norm of each row of W + s B A, which is constant in the backward; and
    bytes that variables hold until the adapter is through: B A, made of a unit matrix that its
    graph keeps, and the weight in the input's type where it has another one."""
    width, depth = this.base.weights[0].shape
    full, size = width * depth, read.dtype.itemsize
    graph = depth * (depth + this.shape.tuning.rank) * this.computes.itemsize
    converted = this.quantized or read.dtype is not this.output.dtype
    held = graph + full * size * (1 + converted)
    eyes = {this.dtype, this.computes}
    made = depth * depth * sum(one.itemsize for one in eyes) + full * this.computes.itemsize
    wide = DType.FP32 if DType.FP32 in (this.dtype, read.dtype) else this.dtype
    scale = Tensor(f"{this.name}.dora_scale", (1, width), wide)
    operator = Operator(
        f"{this.name}.dora_norm",
        this.place,
        (),
        (scale,),
        saved=(Tensor(f"{this.name}.dora_norm", (width,), read.dtype),),
        weights=(Weight(f"{this.name}.lora_magnitude_vector", (width,), dtype=this.dtype),),
        forward_workspace=max(2 * full * size, made - held),
        extra_forward_bytes=full * (6 * size + 2 * this.computes.itemsize),
        forward_kernels=8,
    )
    return scale, parts.with_weight_gradients(this.shape, operator), held


def _again(this: _Adapted, read: Tensor, output: Tensor) -> Operator:
    """The base layer of the input with dropout: keeps its weight, where that is a copy."""
    weight = this.base.weights[0]
    copied = this.quantized or this.cast
    copy = Tensor(f"{this.name}.weight_copy", weight.shape, output.dtype)
    return replace(
        this.base,
        name=f"{this.name}.again",
        inputs=(read,),
        outputs=(output,),
        saved=(copy,) if copied else (),
        weights=(replace(weight, shape=(0,)),),  # the base layer's own
        forward_holds=(),
        forward_workspace=0,
        backward_workspace=0,
    )


def _scaled(this: _Adapted, scale: Tensor, tensor: Tensor, output: Tensor) -> Operator:
    """Rows times `scale` [1, width]: keeps both, whose gradients are products as large as the
    output, before one is summed and the other brought to its type."""
    name, both = output.name.removeprefix(f"{this.name}."), (scale, tensor)
    size = 2 * output.num_bytes - tensor.num_bytes
    return this.elementwise(name, *both, output=output, saved=both, backward_workspace=size)


def _of_experts(shape: RankShape, base: Operator, before: Operator) -> Iterator[Operator]:
    """peft's target_parameters: W + s B A of all experts is a tensor of its own, kept for the
    input's gradient, and has a gradient as large; so the input is kept as well (`before`)."""
    weight, tuning = base.weights[0], shape.tuning
    (width, depth), (output,) = weight.shape, base.outputs
    dtype = tuning.adapter_dtype or output.dtype
    rank, experts = tuning.rank, weight.copies
    total = Tensor(f"{base.name}.with_lora", (experts, width, depth), output.dtype)
    factors = (
        Tensor(f"{base.name}.lora_A.to", (experts, rank, depth), output.dtype),
        Tensor(f"{base.name}.lora_B.to", (experts, width, rank), output.dtype),
    )
    both = low_rank_weights(base.name, depth, width, rank, dtype, experts)
    operator = Operator(
        f"{base.name}.lora",
        base.module,
        (),
        (total,),
        unit=ComputeUnit.GEMM,
        saved=factors if dtype is not output.dtype else (),
        weights=both,
        gemm=Gemm(experts * width, depth, rank, groups=experts),
        extra_forward_bytes=total.num_bytes,
    )
    yield parts.with_weight_gradients(replace(shape, weight_grads_dtype=dtype), operator)
    yield replace(base, inputs=(*base.inputs, total), saved=(*before.saved, total))
