"""What the native backend does not run, said before anything is built."""

from typing import Final

from advisor.base.dtypes import Precision
from advisor.base.rule import refuse
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
from advisor.models.variants import PLAIN
from harness.backends.native.setting import parse_native_setting
from harness.backends.workload_rule import WorkloadRule
from harness.trial.trial import Device, Workload


def check(workload: Workload) -> None:
    """Raise UserError for a workload that this backend does not run."""
    parse_native_setting(workload.recompute)
    check_model_fits_layout(workload.model, workload.layout)
    refuse(_LAYOUT, workload)
    piped = workload.layout.pipeline_model_parallel_size > 1
    if workload.num_microbatches and piped:  # itself a UserError on a batch that does not divide
        refuse(_PIPELINE, workload)
    if is_fully_sharded(workload):
        refuse(_SHARDS, workload)
    refuse(_MODEL, workload)
    if workload.model.multi_latent_attention:
        refuse(_LATENT_ATTENTION, workload)
    if workload.model.num_moe_experts is not None:
        refuse(_EXPERTS, workload)


def is_fully_sharded(workload: Workload) -> bool:
    """Whether FSDP2 shards parameters, gradients and optimizer over the data-parallel ranks."""
    layout = workload.layout
    return layout.use_distributed_optimizer and layout.data_parallel_size > 1


_on, _unlike = WorkloadRule.on, WorkloadRule.unlike
_RECOMPUTE: Final = "--recompute"
_TP: Final = "layout.tensor_model_parallel_size"
_NO_SUCH: Final = "the native backend has no such layers"
_OTHER: Final = "use another model, or another backend"
_WHOLE: Final = "use layout.use_distributed_optimizer=false"
_TIED: Final = "model.share_embeddings_and_output_weights"


def _is_cut(w: Workload) -> bool:
    return w.layout.tensor_model_parallel_size > 1


def _has_policy(w: Workload) -> bool:
    return parse_native_setting(w.recompute).policy is not None


def _keeps_attention(w: Workload) -> bool:
    policy = parse_native_setting(w.recompute).policy
    return policy is not None and policy.keeps_attention


def _gathers_twice(w: Workload) -> bool:
    setting = parse_native_setting(w.recompute).megatron
    return setting.method == "uniform" and (setting.num_layers or 1) > 1


_LAYOUT: Final = (
    *(
        _unlike(
            f"layout.{name}_parallel_size",
            (None, 1),
            "the native backend does not support this split",
            "use 1, or another backend",
        )
        for name in ("context", "expert_model", "expert_tensor", "virtual_pipeline_model")
    ),
    _on(
        _TP,
        lambda w: (
            w.model.num_query_groups % w.layout.tensor_model_parallel_size
            and nearest_divisors(w.model.num_query_groups, w.layout.tensor_model_parallel_size)
        ),
        "must divide num_query_groups = {workload.model.num_query_groups}: the native backend does "
        "not share key and value heads among ranks",
        "nearest: {found}",
    ),
    _on(
        "job.seq_length",
        lambda w: w.seq_length % w.layout.tensor_model_parallel_size,
        "must be divisible by TP = {workload.layout.tensor_model_parallel_size}",
        given=lambda w: w.layout.sequence_parallel,
    ),
    _on(
        _RECOMPUTE,
        _has_policy,
        "operator policies work only without tensor parallelism",
        "use TP 1",
        given=_is_cut,
    ),
)
_PIPELINE: Final = (
    _unlike(
        _TIED, (False,), "the native backend cannot tie weights across pipeline stages", "use PP 1"
    ),
    _on(
        "layout.use_distributed_optimizer",
        is_fully_sharded,
        "the native backend cannot combine FSDP2 with PP "
        "{workload.layout.pipeline_model_parallel_size}",
        _WHOLE,
    ),
    _on(
        "job.global_batch_size",
        lambda w: (
            w.num_microbatches < w.layout.pipeline_model_parallel_size
            and (
                "1 microbatch" if w.num_microbatches == 1 else f"{w.num_microbatches} microbatches"
            )
        ),
        "gives {found}; 1F1B needs at least PP = {workload.layout.pipeline_model_parallel_size}",
    ),
)
_SHARDS: Final = (
    _unlike(_TIED, (False,), "the native backend does not shard tied weights", _WHOLE),
    _on(
        _RECOMPUTE,
        _gathers_twice,
        "under FSDP2 a checkpoint over several layers gathers the weights of each layer twice",
        "use full:uniform:1 or full:block:N",
    ),
)
_MODEL: Final = (
    # A replay that keeps attention does not run its kernel, which on a GPU is what moves the random
    # state on: every later dropout of the replay would draw another mask.
    _on(
        "model.attention_dropout",
        lambda w: w.model.attention_dropout > 0 and w.device is Device.CUDA,
        "gives wrong gradients under {workload.recompute}, which keeps attention, on a GPU",
        "use model.attention_dropout=0, or op:save_matmul",
        given=_keeps_attention,
    ),
    _on(
        "model.attention_backend",
        lambda w: w.model.attention_backend is AttentionBackend.UNFUSED,
        "the native backend runs flash attention only",
    ),
    _on(
        "job.seq_length",
        lambda w: w.seq_length > w.model.max_position_embeddings,
        "must be at most max_position_embeddings = {workload.model.max_position_embeddings}",
        given=lambda w: w.model.position_embedding_type is PositionEmbedding.LEARNED,
    ),
    *(
        _unlike(f"model.{name}", (default,), f"the native backend has no {what}", _OTHER)
        for name, default, what in (
            ("mtp_num_layers", None, "multi-token prediction"),
            ("window_size", None, "sliding windows"),
            ("softmax_type", SoftmaxType.VANILLA, "attention sinks"),
            ("attention_output_gate", False, "attention output gate"),
            ("experimental_attention_variant", None, "linear or sparse attention"),
            ("hybrid_layer_pattern", None, "hybrid layer patterns"),
        )
    ),
    *(_unlike(f"model.{name}", (plain,), _NO_SUCH, "use another model") for name, plain in PLAIN),
    _on(
        "model.activation",
        lambda w: w.model.activation is Activation.QUICK_GEGLU,
        "the native backend does not have this activation",
    ),
    _unlike(
        "job.precision",
        (Precision.BF16,),
        "the native backend computes in bf16",
        "use bf16; backend=megatron_core runs FP8 with Transformer Engine on a GPU",
    ),
)
_LATENT_ATTENTION: Final = (
    _on(_TP, _is_cut, "the native backend does not split latent attention", "use TP 1"),
    _on(
        _RECOMPUTE,
        lambda w: _has_policy(w) or parse_native_setting(w.recompute).megatron.offload_modules,
        "operator policies and offload work only without latent attention",
    ),
)
_RUN_EXPERTS: Final[tuple[tuple[str, tuple[object, ...], str], ...]] = (
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
_EXPERTS: Final = (
    *(
        _unlike(
            f"model.{name}",
            legal,
            f"the native backend {relation}",
            f"use {either('null' if one is None else str(one).lower() for one in legal)}",
        )
        for name, legal, relation in _RUN_EXPERTS
    ),
    _on(
        "model.moe_router_group_topk",
        lambda w: w.model.moe_router_group_topk is not None,
        "the native router supports groups only with an expert bias",
        "leave it unset",
        given=lambda w: not w.model.moe_router_enable_expert_bias,
    ),
    _on(_TP, _is_cut, "the native backend does not split experts", "use TP 1"),
    _on(_RECOMPUTE, _has_policy, "operator policies work only in dense models"),
    _on(
        "layout.pipeline_model_parallel_size",
        lambda w: (
            len({c.layers for stage in pipeline_stages(w.model, w.layout) for c in stage}) > 1
        ),
        "the native backend's stages must hold the same kinds of layers",
        "use PP 1",
    ),
)
