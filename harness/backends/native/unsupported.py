"""What the native backend does not run, said before anything is built."""

from collections.abc import Iterator
from typing import Final

from advisor.base.dtypes import Precision
from advisor.base.units import either, nearest_divisors
from advisor.job.layout import check_model_fits_layout
from advisor.job.pipeline_split import pipeline_stages
from advisor.models.options import (
    Activation,
    AttentionBackend,
    LoadBalancing,
    PositionEmbedding,
    RouterDType,
    SoftmaxType,
)
from advisor.models.variants import variants
from harness.backends.native.setting import NativeSetting, parse_native_setting
from harness.backends.refusals import Refusal, refuse, value_of
from harness.trial.trial import Device, Workload

_RECOMPUTE: Final = "--recompute"
_TP: Final = "layout.tensor_model_parallel_size"
_TIED: Final = "model.share_embeddings_and_output_weights"


def check(workload: Workload) -> None:
    """Raise UserError for a workload that this backend does not run."""
    setting = parse_native_setting(workload.recompute)
    check_model_fits_layout(workload.model, workload.layout)
    for refusals in (
        *(_of_layout, _of_pipeline, _of_shards, _of_setting),
        *(_of_model, _of_latent_attention, _of_experts),
    ):
        refuse(workload, refusals(workload, setting))


def is_fully_sharded(workload: Workload) -> bool:
    """Whether FSDP2 shards parameters, gradients and optimizer over the data-parallel ranks."""
    layout = workload.layout
    return layout.use_distributed_optimizer and layout.data_parallel_size > 1


_NOT_SPLIT: Final = (
    "layout.context_parallel_size",
    "layout.expert_model_parallel_size",
    "layout.expert_tensor_parallel_size",
    "layout.virtual_pipeline_model_parallel_size",
)


def _of_layout(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    for field in _NOT_SPLIT:
        yield (
            value_of(workload, field) not in (None, 1),
            field,
            "the native backend does not support this split",
            "use 1, or another backend",
        )
    tp, groups = workload.layout.tensor_model_parallel_size, workload.model.num_query_groups
    yield (
        groups % tp > 0,
        _TP,
        f"must divide num_query_groups = {groups}: the native backend does not share key and "
        "value heads among ranks",
        f"nearest: {nearest_divisors(groups, tp)}",
    )
    uneven = workload.layout.sequence_parallel and workload.seq_length % tp > 0
    yield uneven, "job.seq_length", f"must be divisible by TP = {tp}", ""
    yield (
        setting.policy is not None and tp > 1,
        _RECOMPUTE,
        "operator policies work only without tensor parallelism",
        "use TP 1",
    )


def _of_pipeline(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    pp, microbatches = workload.layout.pipeline_model_parallel_size, workload.num_microbatches
    if pp == 1:
        return
    tied = workload.model.share_embeddings_and_output_weights
    yield tied, _TIED, "the native backend cannot tie weights across pipeline stages", "use PP 1"
    yield (
        is_fully_sharded(workload),
        "layout.use_distributed_optimizer",
        f"the native backend cannot combine FSDP2 with PP {pp}",
        "use layout.use_distributed_optimizer=false",
    )
    plural = "" if microbatches == 1 else "es"
    few = f"gives {microbatches} microbatch{plural}; 1F1B needs at least PP = {pp}"
    yield microbatches < pp, "job.global_batch_size", few, ""


def _of_shards(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    if not is_fully_sharded(workload):
        return
    yield (
        workload.model.share_embeddings_and_output_weights,
        _TIED,
        "the native backend does not shard tied weights",
        "use layout.use_distributed_optimizer=false",
    )
    yield (
        setting.megatron.method == "uniform" and (setting.megatron.num_layers or 1) > 1,
        _RECOMPUTE,
        "under FSDP2 a checkpoint over several layers gathers the weights of each layer twice",
        "use full:uniform:1 or full:block:N",
    )


def _of_setting(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    """A replay that keeps attention does not run its kernel, which on a GPU is what moves the
    random state on: every later dropout of the replay would draw another mask."""
    keeps = setting.policy is not None and setting.policy.keeps_attention
    yield (
        keeps and workload.model.attention_dropout > 0 and workload.device is Device.CUDA,
        "model.attention_dropout",
        f"gives wrong gradients under {workload.recompute}, which keeps attention, on a GPU",
        "use model.attention_dropout=0, or op:save_matmul",
    )


_MISSING: Final = (
    ("mtp_num_layers", None, "multi-token prediction"),
    ("window_size", None, "sliding windows"),
    ("softmax_type", SoftmaxType.VANILLA, "attention sinks"),
    ("attention_output_gate", False, "attention output gate"),
    ("experimental_attention_variant", None, "linear attention"),
    ("hybrid_layer_pattern", None, "hybrid layer patterns"),
)


def _of_model(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    model, longest = workload.model, workload.model.max_position_embeddings
    unfused = model.attention_backend is AttentionBackend.UNFUSED
    flash = "the native backend runs flash attention only"
    yield unfused, "model.attention_backend", flash, ""
    learned = model.position_embedding_type is PositionEmbedding.LEARNED
    above = f"must be at most max_position_embeddings = {longest}"
    yield learned and workload.seq_length > longest, "job.seq_length", above, ""
    for field, default, what in _MISSING:
        yield (
            getattr(model, field) != default,
            f"model.{field}",
            f"the native backend has no {what}",
            "use another model, or another backend",
        )
    for field in variants(model):
        yield True, f"model.{field}", "the native backend has no such layers", "use another model"
    quick = model.activation is Activation.QUICK_GEGLU
    yield quick, "model.activation", "the native backend does not have this activation", ""
    yield (
        workload.precision is not Precision.BF16,
        "job.precision",
        "the native backend computes in bf16",
        "use bf16; backend=megatron_core runs FP8 with Transformer Engine on a GPU",
    )


def _of_latent_attention(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    if not workload.model.multi_latent_attention:
        return
    cut = workload.layout.tensor_model_parallel_size > 1
    yield cut, _TP, "the native backend does not split latent attention", "use TP 1"
    other = setting.policy is not None or bool(setting.megatron.offload_modules)
    yield other, _RECOMPUTE, "operator policies and offload work only without latent attention", ""


_EXPERTS_RUN: Final[tuple[tuple[str, tuple[object, ...], str], ...]] = (
    ("activation", (Activation.SWIGLU,), "computes experts only with SwiGLU"),
    ("add_bias_linear", (False,), "has no biases in experts"),
    (
        "moe_apply_probs_on_input",
        (False,),
        "applies router weights to the experts' activations, not to their input",
    ),
    ("moe_expert_capacity_factor", (None,), "drops no tokens"),
    ("moe_router_dtype", (None, RouterDType.FP32), "does not compute the router in this dtype"),
    ("moe_z_loss_coeff", (None, 0.0), "has no router z-loss"),
    (
        "moe_router_load_balancing_type",
        (LoadBalancing.AUX_LOSS, LoadBalancing.SEQ_AUX_LOSS, LoadBalancing.NONE),
        "does not balance experts this way",
    ),
)
"""Field, what it may be in a model with experts, and why it may be nothing else."""


def _of_experts(workload: Workload, setting: NativeSetting) -> Iterator[Refusal]:
    model, layout = workload.model, workload.layout
    if model.num_moe_experts is None:
        return
    for field, legal, relation in _EXPERTS_RUN:
        yield (
            getattr(model, field) not in legal,
            f"model.{field}",
            f"the native backend {relation}",
            f"use {either('null' if one is None else str(one).lower() for one in legal)}",
        )
    yield (
        model.moe_router_group_topk is not None and not model.moe_router_enable_expert_bias,
        "model.moe_router_group_topk",
        "the native router supports groups only with an expert bias",
        "leave it unset",
    )
    cut = layout.tensor_model_parallel_size > 1
    yield cut, _TP, "the native backend does not split experts", "use TP 1"
    policy = setting.policy is not None
    yield policy, _RECOMPUTE, "operator policies work only in dense models", ""
    kinds = {chunk.layers for stage in pipeline_stages(model, layout) for chunk in stage}
    yield (
        len(kinds) > 1,
        "layout.pipeline_model_parallel_size",
        "the native backend's stages must hold the same kinds of layers",
        "use PP 1",
    )
