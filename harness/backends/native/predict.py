"""What the advisor expects of the native model: kept bytes and replayed FLOPs of a layer.

Everything comes from advisor.layers and advisor.recompute; torch is not loaded.
"""

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec

from advisor.cost.flops import replayed_flops
from advisor.frameworks.megatron.plan import chunk_plan
from advisor.layers.operators import Operator, Tensor, total_bytes
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT, transformer_layer
from advisor.models.spec import (
    AttentionBackend,
    CrossEntropyFusion,
    ModelSpec,
    TransformerImpl,
)
from advisor.recompute import RecomputePlan, Segment, kept_tensors
from harness.backends.native.limits import check
from harness.backends.native.setting import NativeSetting, OpPolicy, parse_native_setting
from harness.trial import Device, Workload


def runs_transformer_engine(workload: Workload) -> bool:
    """Whether the layers are Transformer Engine's: asked for, on a GPU, and installed here."""
    wanted = workload.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    return wanted and workload.device is Device.CUDA and find_spec("transformer_engine") is not None


def native_model(workload: Workload) -> ModelSpec:
    """The workload's model with the options that this backend runs it with.

    Megatron's local layers with flash attention and fused activation, or Transformer Engine's;
    rotary tables, bias and dropout as single operators; logits kept as an fp32 softmax; weight
    gradients as tensors of their own.
    """
    engine = runs_transformer_engine(workload)
    return replace(
        workload.model,
        transformer_impl=TransformerImpl.TRANSFORMER_ENGINE if engine else TransformerImpl.LOCAL,
        attention_backend=AttentionBackend.FLASH,
        bias_activation_fusion=True,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=CrossEntropyFusion.NONE,
    )


def native_shape(workload: Workload) -> RankShape:
    """Local sizes of one rank of the native model."""
    layout = workload.layout
    return RankShape(
        model=native_model(workload),
        seq_length=workload.seq_length,
        micro_batch_size=workload.micro_batch_size,
        precision=workload.precision,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
    )


def native_plan(workload: Workload, setting: NativeSetting) -> RecomputePlan:
    """The advisor's plan of one pipeline stage, which the model follows to the letter.

    Megatron's checkpoint of core attention keeps an attention-mask type; ours takes none.
    """
    layout = workload.layout
    plan = chunk_plan(
        setting.megatron,
        native_model(workload),
        layout.layers_per_chunk(workload.model.num_layers),
        layout.sequence_parallel,
    )
    return RecomputePlan(tuple(one for segment in plan.segments for one in _single(segment)))


def _single(segment: Segment) -> list[Segment]:
    """The copies of a segment one by one, whose checkpoints take activations alone."""
    runs = tuple(replace(run, extra_kept_bytes=0) for run in segment.runs)
    return [replace(segment, runs=runs, copies=1)] * segment.copies


def predict_saved_bytes_per_layer(workload: Workload) -> int:
    """Device bytes from forward to backward, one microbatch: the mean of a stage's layers."""
    return _predict(workload)[0]


def predict_replayed_flops_per_layer(workload: Workload) -> int:
    """Forward FLOPs that the backward runs again, one microbatch: the mean of a stage's layers.

    Attention counts the causal half, as everywhere in the advisor.
    """
    return _predict(workload)[1]


@lru_cache(maxsize=256)
def _predict(workload: Workload) -> tuple[int, int]:
    check(workload, transformer_engine=runs_transformer_engine(workload))
    setting = parse_native_setting(workload.recompute)
    operators = transformer_layer(native_shape(workload))
    if setting.policy is not None:
        return (
            total_bytes(tuple(kept_by_policy(operators, setting.policy).values())),
            flops_by_policy(operators, setting.policy),
        )
    plan = native_plan(workload, setting)
    saved = sum(_segment_bytes(operators, setting, segment) for segment in plan.segments)
    return saved // plan.num_layers, replayed_flops(operators, plan) // plan.num_layers


def _segment_bytes(
    operators: tuple[Operator, ...], setting: NativeSetting, segment: Segment
) -> int:
    """A checkpoint's input; otherwise what every layer keeps on the device."""
    if segment.whole:
        return _layer_input(operators).num_bytes
    on_device = tuple(
        replace(operator, saved=()) if operator.module in setting.offloaded else operator
        for operator in operators
    )
    return segment.num_layers * total_bytes(tuple(kept_tensors(on_device, segment.runs).values()))


def _layer_input(operators: tuple[Operator, ...]) -> Tensor:
    return next(tensor for tensor in operators[0].inputs if tensor.name == LAYER_INPUT)


def kept_by_policy(operators: tuple[Operator, ...], policy: OpPolicy) -> dict[str, Tensor]:
    """Storages kept of one layer: its input, and all outputs of the kept operators.

    An operator's outputs are what it hands on and what it saves beside its inputs (log-sum-exp).
    """
    layer_input = _layer_input(operators)
    kept = {layer_input.name: layer_input}
    for operator in _kept_operators(operators, policy):
        made = [t for t in operator.saved if t.name not in {i.name for i in operator.inputs}]
        kept |= {tensor.storage.name: tensor.storage for tensor in (*operator.outputs, *made)}
    return kept


def flops_by_policy(operators: tuple[Operator, ...], policy: OpPolicy) -> int:
    """Forward FLOPs of the operators of one layer whose outputs are not kept."""
    kept = _kept_operators(operators, policy)
    return sum(operator.forward_flops for operator in operators if operator not in kept)


def _kept_operators(operators: tuple[Operator, ...], policy: OpPolicy) -> tuple[Operator, ...]:
    linear = [operator for operator in operators if operator.gemm is not None]
    return tuple(
        operator
        for operator in operators
        if (operator.attention_flops and policy.keeps_attention)
        or (operator in linear and policy.keeps_matmul(linear.index(operator)))
    )
