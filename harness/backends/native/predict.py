"""What the advisor expects of the native model: kept bytes and replayed FLOPs of a layer.
Everything comes from advisor.layers and advisor.plan.recompute_plan; torch is not loaded."""

from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.operators import Module, Operator, Tensor, total_bytes
from advisor.layers.parameters import count_parameters
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.models import options
from advisor.models.spec import ModelSpec
from advisor.plan.flops import replayed_flops
from advisor.plan.recompute_plan import RecomputePlan, Segment, kept_tensors, replayed_operators
from advisor.time.optimizer_time import optimizer_traffic
from harness.backends.native.setting import NativeSetting, OpPolicy, parse_native_setting
from harness.backends.native.unsupported import check, is_fully_sharded
from harness.trial.trial import Workload


def as_native(model: ModelSpec) -> ModelSpec:
    """`model` with the options that this backend runs it with. Megatron's local layers with flash
    attention and fused activation; rotary tables, bias and dropout as single operators; logits kept
    as an fp32 softmax; weight gradients as tensors of their own. Experts are one grouped MLP on the
    device that their tokens are on."""
    return replace(
        _with_native_experts(model),
        transformer_impl=options.TransformerImpl.LOCAL,
        attention_backend=options.AttentionBackend.FLASH,
        bias_activation_fusion=True,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=options.CrossEntropyFusion.NONE,
    )


def _with_native_experts(model: ModelSpec) -> ModelSpec:
    if model.num_moe_experts is None:
        return model
    return replace(
        model,
        moe_grouped_gemm=True,
        moe_use_legacy_grouped_gemm=True,
        moe_token_dispatcher_type=options.TokenDispatcher.ALLGATHER,
        moe_permute_fusion=False,
        moe_router_fusion=False,
        moe_shared_expert_overlap=False,
    )


def native_shape(workload: Workload) -> RankShape:
    """Local sizes of one rank of the native model."""
    layout = workload.layout
    return RankShape(
        model=as_native(workload.model),
        seq_length=workload.seq_length,
        micro_batch_size=workload.micro_batch_size,
        precision=workload.precision,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
    )


def native_plan(workload: Workload, setting: NativeSetting) -> RecomputePlan:
    """The advisor's plan of one pipeline stage, which the model follows to the letter. Megatron's
    checkpoint of core attention keeps an attention-mask type; ours takes none."""
    model, layout = as_native(workload.model), workload.layout
    chunk = pipeline_stages(model, layout)[0][0]
    plan = chunk_plan(setting.megatron, model, chunk.layers, layout.sequence_parallel)
    return RecomputePlan(tuple(one for segment in plan.segments for one in _single(segment)))


def _single(segment: Segment) -> list[Segment]:
    """The copies of a segment one by one, whose checkpoints take activations alone."""
    runs = tuple(replace(run, extra_kept_bytes=0) for run in segment.runs)
    return [replace(segment, runs=runs, copies=1)] * segment.copies


@lru_cache(maxsize=256)
def predict_layer(workload: Workload) -> tuple[int, int]:
    """Device bytes kept from forward to backward, and forward FLOPs that the backward runs again
    (attention counts the causal half), of one microbatch: the mean of a stage's layers."""
    check(workload)
    setting = parse_native_setting(workload.recompute)
    shape = native_shape(workload)
    if setting.policy is not None:
        operators = transformer_layer(shape)
        kept = _kept_operators(operators, setting.policy)
        again = sum(one.forward_flops for one in operators if one not in kept)
        return total_bytes(tuple(kept_by_policy(operators, setting.policy).values())), again
    plan = native_plan(workload, setting)
    saved = sum(_segment_bytes(shape, setting, segment) for segment in plan.segments)
    return saved // plan.num_layers, replayed_flops(shape, plan) // plan.num_layers


_ACTIVATION_PASSES: Final = {
    Module.ACTIVATION: (2, 6),
    Module.SHARED_ACTIVATION: (2, 6),
    Module.EXPERT_ACTIVATION: (4, 17),
}
"""Forward and backward passes over a gated activation's output, beyond what one fused kernel moves.
Forward two kernels, of which the second reads and writes the first one's output; backward four
(modules/kernels.py). Probabilities are one more forward, and five more backward
(modules/moe/experts.py)."""
_ACCUMULATION_PASSES: Final = 3  # autograd reads the old gradient and the new one, writes the sum
_OPTIMIZER_BYTES: Final = (2 + 4 + 2) + 28 + 6
"""Of one 16-bit parameter in this backend's step (optimizer.py): its gradient is read, written in
fp32 and zeroed; Adam reads gradient, main parameter and two moments and writes three; the main
parameter is read and the parameter written."""
_AVERAGING_BYTES: Final = 4  # of a gradient that DP ranks have summed: read, divided, written


def optimizer_bytes(workload: Workload) -> int:
    """Memory traffic of one step on one rank around this backend's optimizer, beyond what the
    advisor has for Megatron's; below zero where it is less. UserError for what is not run."""
    check(workload)
    layout = workload.layout
    ranks = layout.tensor_model_parallel_size * layout.pipeline_model_parallel_size
    elements, dp = count_parameters(as_native(workload.model)) // ranks, layout.data_parallel_size
    sharded = is_fully_sharded(workload)
    own = -(-elements // (dp if sharded else 1)) * _OPTIMIZER_BYTES
    if dp > 1 and not sharded:
        own += elements * _AVERAGING_BYTES
    return own - optimizer_traffic(elements, dp if sharded else 1, DType.BF16.itemsize)


def unfused_bytes(workload: Workload) -> int:
    """Memory traffic of one step on one rank that plain modules have and the fused kernels of
    as_native, as the advisor times them, have not: gated activations, forward again in a replay,
    and the sums of gradients. UserError for what this backend does not run."""
    check(workload)
    shape = native_shape(workload)
    traffic = sum(
        count * _unfused_layer_bytes(transformer_layer(shape, kind), segment)
        for segment in native_plan(workload, parse_native_setting(workload.recompute)).segments
        for kind, count in segment.kinds()
    )
    return traffic * workload.num_microbatches


def _unfused_layer_bytes(operators: tuple[Operator, ...], segment: Segment) -> int:
    replayed = replayed_operators(operators, segment.replay)
    weights = sum(weight.num_elements for operator in operators for weight in operator.weights)
    traffic = weights * DType.BF16.itemsize * _ACCUMULATION_PASSES
    for operator in operators:
        gated = operator.inputs[0].num_bytes > operator.outputs[0].num_bytes
        if operator.module in _ACTIVATION_PASSES and gated:
            forward, backward = _ACTIVATION_PASSES[operator.module]
            passes = forward * (1 + (operator in replayed)) + backward
            traffic += passes * operator.outputs[0].num_bytes
    return traffic


def _segment_bytes(shape: RankShape, setting: NativeSetting, segment: Segment) -> int:
    """A checkpoint's input; otherwise what every layer keeps on the device."""
    if segment.whole:
        return _layer_input(transformer_layer(shape, segment.layers[0])).num_bytes
    return sum(
        count * _layer_bytes(transformer_layer(shape, kind), setting, segment)
        for kind, count in segment.kinds()
    )


def _layer_bytes(operators: tuple[Operator, ...], setting: NativeSetting, segment: Segment) -> int:
    on_device = tuple(
        replace(operator, saved=()) if operator.module in setting.offloaded else operator
        for operator in operators
    )
    return total_bytes(tuple(kept_tensors(on_device, segment.runs).values()))


def _layer_input(operators: tuple[Operator, ...]) -> Tensor:
    return next(tensor for tensor in operators[0].inputs if tensor.name == LAYER_INPUT)


def kept_by_policy(operators: tuple[Operator, ...], policy: OpPolicy) -> dict[str, Tensor]:
    """Storages kept of one layer: its input, and all outputs of the kept operators. An operator's
    outputs are what it hands on and what it saves besides its inputs (log-sum-exp)."""
    layer_input = _layer_input(operators)
    kept = {layer_input.name: layer_input}
    for operator in _kept_operators(operators, policy):
        made = [t for t in operator.saved if t.name not in {i.name for i in operator.inputs}]
        kept |= {tensor.storage.name: tensor.storage for tensor in (*operator.outputs, *made)}
    return kept


def _kept_operators(operators: tuple[Operator, ...], policy: OpPolicy) -> tuple[Operator, ...]:
    linear = [operator for operator in operators if operator.gemm is not None]
    return tuple(
        operator
        for operator in operators
        if (operator.attention_flops and policy.keeps_attention)
        or (operator in linear and policy.keeps_matmul(linear.index(operator)))
    )
