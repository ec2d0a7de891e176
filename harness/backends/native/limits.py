"""What the native backend does not run, said before anything is built."""

from typing import Final

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.job.layout import check_model_fits_layout
from advisor.job.pipeline_split import pipeline_stages
from advisor.models.attention_kinds import SoftmaxType
from advisor.models.expert_options import LoadBalancing, RouterDType
from advisor.models.spec import Activation, AttentionBackend, ModelSpec, PositionEmbedding
from advisor.models.variants import variants
from harness.backends.native.setting import NativeSetting, parse_native_setting
from harness.trial.trial import Device, Workload


def check(workload: Workload, *, transformer_engine: bool) -> None:
    """Raise UserError for a workload that this backend does not run."""
    setting = parse_native_setting(workload.recompute)
    check_model_fits_layout(workload.model, workload.layout)
    _check_degrees(workload)
    _check_tensor_parallel(workload, setting)
    _check_pipeline(workload)
    _check_fully_sharded(workload, setting)
    _check_model(workload)
    _check_policy(workload, setting)
    _check_parts(workload.model)
    if workload.model.multi_latent_attention:
        _check_latent_attention(workload, setting, transformer_engine)
    if workload.model.num_moe_experts is not None:
        _check_experts(workload, setting, transformer_engine)
    if transformer_engine:
        _check_transformer_engine(workload, setting)
    elif workload.precision is not Precision.BF16:
        raise UserError(
            "job.precision",
            workload.precision,
            "plain torch modules compute in bf16; 8 bits need Transformer Engine on "
            "a GPU and model.transformer_impl=transformer_engine",
        )


def _check_parts(model: ModelSpec) -> None:
    for field, default, what in _MISSING:
        if getattr(model, field) != default:
            raise UserError(
                f"model.{field}",
                getattr(model, field),
                f"the native backend has no {what}",
                "use another model, or another backend",
            )
    variant = next(variants(model), None)
    if variant is not None:
        raise UserError(
            f"model.{variant}",
            getattr(model, variant),
            "the native backend has no such layers",
            "use another model",
        )
    if model.activation is Activation.QUICK_GEGLU:
        raise UserError("model.activation", model.activation, "the native backend does not run it")


_MISSING = (
    ("mtp_num_layers", None, "multi-token prediction"),
    ("window_size", None, "sliding windows"),
    ("softmax_type", SoftmaxType.VANILLA, "sinks"),
    ("attention_output_gate", False, "gate of attention's output"),
    ("experimental_attention_variant", None, "linear attention"),
    ("hybrid_layer_pattern", None, "layers of a hybrid pattern"),
)


def _check_degrees(workload: Workload) -> None:
    for field in _NOT_SPLIT:
        degree = getattr(workload.layout, field)
        if degree not in (None, 1):
            raise UserError(
                f"layout.{field}",
                degree,
                "the native backend does not split this way",
                "use 1, or another backend",
            )


_NOT_SPLIT = (
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
)


def _check_tensor_parallel(workload: Workload, setting: NativeSetting) -> None:
    tp, groups = workload.layout.tensor_model_parallel_size, workload.model.num_query_groups
    if groups % tp:
        raise UserError(
            "layout.tensor_model_parallel_size",
            tp,
            "the native backend does not share key and value heads among ranks",
            f"at most num_query_groups = {groups}",
        )
    if workload.layout.sequence_parallel and workload.seq_length % tp:
        raise UserError("job.seq_length", workload.seq_length, f"must be divisible by TP = {tp}")
    if setting.policy is not None and tp > 1:
        raise UserError(
            "--recompute",
            workload.recompute,
            "operator policies run without tensor parallelism only",
            "use TP 1",
        )


def _check_pipeline(workload: Workload) -> None:
    layout, microbatches = workload.layout, workload.num_microbatches
    pp = layout.pipeline_model_parallel_size
    if pp == 1:
        return
    if workload.model.share_embeddings_and_output_weights:
        raise UserError(
            "model.share_embeddings_and_output_weights",
            True,
            "tied weights do not cross pipeline stages here",
            "use PP 1",
        )
    if layout.data_parallel_size > 1 and layout.use_distributed_optimizer:
        raise UserError(
            "layout.use_distributed_optimizer",
            True,
            f"FSDP2 does not go with PP {pp} in the native backend",
            "layout.use_distributed_optimizer=false",
        )
    if microbatches < pp:
        raise UserError(
            "job.global_batch_size",
            workload.global_batch_size,
            f"gives {microbatches} microbatches; 1F1B needs PP = {pp}",
        )


def is_fully_sharded(workload: Workload) -> bool:
    """Whether FSDP2 shards parameters, gradients and optimizer over the data-parallel ranks."""
    layout = workload.layout
    return layout.use_distributed_optimizer and layout.data_parallel_size > 1


def _check_fully_sharded(workload: Workload, setting: NativeSetting) -> None:
    if not is_fully_sharded(workload):
        return
    if workload.model.share_embeddings_and_output_weights:
        raise UserError(
            "model.share_embeddings_and_output_weights",
            True,
            "tied weights are not sharded by the native backend",
            "layout.use_distributed_optimizer=false",
        )
    layers = setting.megatron.num_layers or 1
    if setting.megatron.method == "uniform" and layers > 1:
        raise UserError(
            "--recompute",
            workload.recompute,
            "a checkpoint over several layers would gather each of them twice under FSDP2",
            "full:uniform:1 or full:block:N",
        )


def _check_model(workload: Workload) -> None:
    model = workload.model
    if model.attention_backend is AttentionBackend.UNFUSED:
        raise UserError(
            "model.attention_backend",
            model.attention_backend,
            "the native backend runs flash attention only",
        )
    learned = model.position_embedding_type is PositionEmbedding.LEARNED
    longest = model.max_position_embeddings
    if learned and workload.seq_length > longest:
        raise UserError(
            "job.seq_length", workload.seq_length, f"is above max_position_embeddings = {longest}"
        )


def _check_policy(workload: Workload, setting: NativeSetting) -> None:
    """A replay that keeps attention does not run its kernel, which on a GPU is what moves the
    random state on: every later dropout of the replay would draw another mask."""
    dropout = workload.model.attention_dropout
    keeps = setting.policy is not None and setting.policy.keeps_attention
    if keeps and dropout > 0 and workload.device is Device.CUDA:
        raise UserError(
            "model.attention_dropout",
            dropout,
            f"gives wrong gradients under {workload.recompute}, which keeps attention, on a GPU",
            "model.attention_dropout=0, or op:save_matmul",
        )


def _check_latent_attention(
    workload: Workload, setting: NativeSetting, transformer_engine: bool
) -> None:
    if workload.layout.tensor_model_parallel_size > 1:
        raise UserError(
            "layout.tensor_model_parallel_size",
            workload.layout.tensor_model_parallel_size,
            "the native backend does not cut latent attention",
            "use TP 1",
        )
    if setting.policy is not None or setting.megatron.offload_modules:
        raise UserError(
            "--recompute",
            workload.recompute,
            "policies and offload run without latent attention only",
        )
    if transformer_engine:
        raise UserError(
            "model.transformer_impl",
            workload.model.transformer_impl,
            "latent attention runs on plain torch modules only",
            "model.transformer_impl=local",
        )


def _check_experts(workload: Workload, setting: NativeSetting, transformer_engine: bool) -> None:
    model = workload.model
    for field, legal, relation in _EXPERTS_RUN:
        value = getattr(model, field)
        if value not in legal:
            raise UserError(
                f"model.{field}",
                value,
                f"the native backend {relation}",
                " or ".join(str(one) for one in legal),
            )
    if model.moe_router_group_topk is not None and not model.moe_router_enable_expert_bias:
        raise UserError(
            "model.moe_router_group_topk",
            model.moe_router_group_topk,
            "groups limit the native router under an expert bias only",
            "leave it unset",
        )
    if workload.layout.tensor_model_parallel_size > 1:
        raise UserError(
            "layout.tensor_model_parallel_size",
            workload.layout.tensor_model_parallel_size,
            "the native backend does not cut experts",
            "use TP 1",
        )
    if setting.policy is not None:
        raise UserError(
            "--recompute", workload.recompute, "operator policies run in dense models only"
        )
    if transformer_engine:
        raise UserError(
            "model.transformer_impl",
            model.transformer_impl,
            "experts run on plain torch modules only",
            "model.transformer_impl=local",
        )
    if (
        len({chunk.layers for stage in pipeline_stages(model, workload.layout) for chunk in stage})
        > 1
    ):
        raise UserError(
            "layout.pipeline_model_parallel_size",
            workload.layout.pipeline_model_parallel_size,
            "the native backend's stages must hold the same kinds of layers",
            "use PP 1",
        )


_EXPERTS_RUN: Final[tuple[tuple[str, tuple[object, ...], str], ...]] = (
    ("activation", (Activation.SWIGLU,), "computes experts with SwiGLU alone"),
    ("add_bias_linear", (False,), "has no biases in experts"),
    ("moe_apply_probs_on_input", (False,), "weighs the experts' activations, not their input"),
    ("moe_expert_capacity_factor", (None,), "drops no tokens"),
    ("moe_router_dtype", (None, RouterDType.FP32), "has no such router"),
    ("moe_z_loss_coeff", (None, 0.0), "has no such loss"),
    (
        "moe_router_load_balancing_type",
        (LoadBalancing.AUX_LOSS, LoadBalancing.SEQ_AUX_LOSS, LoadBalancing.NONE),
        "does not balance experts this way",
    ),
)
"""Field, what it may be in a model with experts, and why it may be nothing else."""


def _check_transformer_engine(workload: Workload, setting: NativeSetting) -> None:
    if setting.policy is not None or setting.megatron.offload_modules:
        raise UserError(
            "--recompute",
            workload.recompute,
            "policies and offload run on plain torch modules only",
            "model.transformer_impl=local",
        )
    if setting.megatron.method == "uniform" and (setting.megatron.num_layers or 1) > 1:
        raise UserError(
            "--recompute",
            workload.recompute,
            "Transformer Engine's checkpoints hold one layer each here",
            "full:uniform:1 or full:block:N",
        )
    if workload.layout.tensor_model_parallel_size > 1:
        raise UserError(
            "layout.tensor_model_parallel_size",
            workload.layout.tensor_model_parallel_size,
            "Transformer Engine's modules run without tensor parallelism here",
            "model.transformer_impl=local",
        )
    if workload.precision is Precision.FP16:
        raise UserError(
            "job.precision", workload.precision, "the native backend scales no loss", "use bf16"
        )
