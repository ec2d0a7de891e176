"""From a workload to Megatron's own names, and to the model as this backend really runs it."""

from dataclasses import fields, replace
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting, parse_setting
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.attention_kinds import CpCommType, SoftmaxType
from advisor.models.expert_options import TokenDispatcher
from advisor.models.layer_kind import FeedForward, Mixer
from advisor.models.spec import (
    AttentionBackend,
    CrossEntropyFusion,
    ModelSpec,
    TransformerImpl,
)
from advisor.models.variants import variants
from harness.backends.megatron_core.case import Activation, CoreAttention, MegatronCase
from harness.backends.megatron_core.expert_case import Experts
from harness.backends.megatron_core.installed import has_transformer_engine
from harness.trial.trial import Backend, Device, Workload

_CASE_FIELDS: Final = {field.name for field in fields(MegatronCase)}


def runs_transformer_engine(workload: Workload) -> bool:
    """Whether the layers are Transformer Engine's: asked for, on a GPU, and usable here."""
    wanted = workload.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    return wanted and workload.device is Device.CUDA and has_transformer_engine()


def megatron_model(workload: Workload) -> ModelSpec:
    """The workload's model with the options that it is run with here.

    Without Transformer Engine these are Megatron's own layers, a flash kernel of torch's for the
    attention, experts one by one, and none of the fusions and dispatchers that need a CUDA
    extension (DeepEP's flex dispatcher becomes alltoall).
    """
    model = workload.model
    if runs_transformer_engine(workload):
        return _with_installed_kernels(model)
    unfused = model.attention_backend is AttentionBackend.UNFUSED
    te_loss = model.cross_entropy_fusion is CrossEntropyFusion.TE
    flex = model.moe_token_dispatcher_type is TokenDispatcher.FLEX
    return replace(
        model,
        transformer_impl=TransformerImpl.LOCAL,
        attention_backend=AttentionBackend.UNFUSED if unfused else AttentionBackend.FLASH,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=CrossEntropyFusion.NONE if te_loss else model.cross_entropy_fusion,
        moe_token_dispatcher_type=TokenDispatcher.ALLTOALL
        if flex
        else model.moe_token_dispatcher_type,
        moe_grouped_gemm=False,
        moe_permute_fusion=False,
        moe_router_fusion=False,
    )


def _with_installed_kernels(model: ModelSpec) -> ModelSpec:
    """Transformer Engine's layers with what is beside it: without the flash-attn package cuDNN's
    attention by name, as left to itself Transformer Engine falls back on unfused attention without
    a word where cuDNN refuses; without DeepEP Megatron's own all-to-all."""
    backend, dispatcher = model.attention_backend, model.moe_token_dispatcher_type
    fused = (AttentionBackend.FLASH, AttentionBackend.AUTO)
    if backend in fused and find_spec("flash_attn") is None:
        backend = AttentionBackend.FUSED
    if dispatcher is TokenDispatcher.FLEX and find_spec("deep_ep") is None:
        dispatcher = TokenDispatcher.ALLTOALL
    return replace(model, attention_backend=backend, moe_token_dispatcher_type=dispatcher)


def as_megatron_runs(job: Job, workload: Workload) -> Job:
    """`job` with the layers, precision, optimizer and batch of `workload` on this backend: its mock
    data has no mask, experts get equal shares, nothing is captured in CUDA graphs, optimizer states
    are fp32 and not on the host."""
    plain: dict[str, Any] = {name: _CONFIG_DEFAULTS[name] for name in _PLAIN_FIELDS}
    config = replace(job.config, create_attention_mask=False, precision=workload.precision, **plain)
    layout = replace(job.layout, tp_comm_overlap=_overlaps_tp(workload))
    return replace(job, model=megatron_model(workload), config=config, layout=layout)


def _overlaps_tp(workload: Workload) -> bool:
    """User buffers are shared with the other ranks: a rank alone has none."""
    alone = workload.backend is Backend.REHEARSAL
    return workload.layout.tp_comm_overlap and runs_transformer_engine(workload) and not alone


_PLAIN_FIELDS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "fp8_param_gather",
    "use_precision_aware_optimizer",
    "optimizer",
    "optimizer_cpu_offload",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "moe_load_imbalance",
)
_CONFIG_DEFAULTS: Final = {field.name: field.default for field in fields(JobConfig)}


def megatron_case(workload: Workload) -> MegatronCase:
    """The workload under Megatron's names; UserError for what this backend does not run."""
    _check(workload)
    model, layout = megatron_model(workload), workload.layout
    setting = parse_setting(workload.recompute)
    fusion = model.cross_entropy_fusion
    values: dict[str, Any] = {
        **_shared(model),
        **_shared(layout),
        **_recompute(setting),
        "seq_length": workload.seq_length,
        "micro_batch_size": workload.micro_batch_size,
        "num_microbatches": workload.num_microbatches,
        "vocab_size": model.padded_vocab_size(layout.tensor_model_parallel_size),
        "activation": Activation(model.activation),
        "normalization": str(model.normalization),
        "position_embedding_type": str(model.position_embedding_type),
        "transformer_impl": str(model.transformer_impl),
        "attention": _attention(model),
        "attention_backend": str(model.attention_backend),
        "window_size": None if model.window_size is None else (model.window_size, 0),
        "window_attn_skip_freq": _windows(model),
        "softmax_type": str(model.softmax_type),
        "cross_entropy_loss_fusion": fusion is not CrossEntropyFusion.NONE,
        "cross_entropy_fusion_impl": "te" if fusion is CrossEntropyFusion.TE else "native",
        "virtual_pipeline_model_parallel_size": _virtual(workload),
        "pipeline_model_parallel_layout": layout.pipeline_model_parallel_layout or None,
        "grad_reduce_in_fp32": workload.main_grads_dtype is DType.FP32,
        "tp_comm_overlap": _overlaps_tp(workload),
        **_eight_bits(workload.precision),
        "experts": _experts(model, layout),
    }
    return MegatronCase(**values)


def _eight_bits(precision: Precision) -> dict[str, str]:
    """`--fp8-format` and `--fp8-recipe`; nothing in bf16."""
    if precision not in _FP8_RECIPES:
        return {}
    return {"fp8": "hybrid", "fp8_recipe": _FP8_RECIPES[precision]}


_FP8_RECIPES: Final = {
    Precision.FP8_DELAYED: "delayed",
    Precision.FP8_CURRENT: "tensorwise",
    Precision.FP8_BLOCKWISE: "blockwise",
    Precision.MXFP8: "mxfp8",
}


def _windows(model: ModelSpec) -> tuple[int, ...] | None:
    """1 for each layer with a window, as Megatron reads a list."""
    if model.window_size is None:
        return None
    return tuple(int(kind.mixer is Mixer.SLIDING_WINDOW) for kind in model.layer_kinds)


def _experts(model: ModelSpec, layout: ParallelLayout) -> Experts | None:
    """Options of the experts, their routing forced to be balanced; None for a dense model."""
    if model.num_moe_experts is None:
        return None
    known = {field.name for field in fields(Experts)} - {"moe_layer_freq"}
    values: dict[str, Any] = {
        field.name: value if not isinstance(value, StrEnum) else str(value)
        for given in (model, layout)
        for field in fields(given)
        if field.name in known and (value := getattr(given, field.name)) is not None
    }
    layers = tuple(kind.feed_forward is FeedForward.MOE for kind in model.layer_kinds)
    return Experts(
        **{
            **values,
            "moe_ffn_hidden_size": model.expert_ffn_hidden_size,
            "moe_layer_freq": tuple(map(int, layers)),
            "expert_tensor_parallel_size": layout.expert_tensor_degree,
        }
    )


def _shared(given: Any) -> dict[str, Any]:
    """Fields that the case has under the same name."""
    return {f.name: getattr(given, f.name) for f in fields(given) if f.name in _CASE_FIELDS}


def _attention(model: ModelSpec) -> CoreAttention:
    unfused = model.attention_backend is AttentionBackend.UNFUSED
    return CoreAttention.UNFUSED if unfused else CoreAttention.FLASH


def _virtual(workload: Workload) -> int | None:
    chunks = workload.layout.virtual_pipeline_model_parallel_size
    return chunks if chunks > 1 else None


def _recompute(setting: RecomputeSetting) -> dict[str, Any]:
    """The recompute and offload settings as fields of TransformerConfig."""
    granularity = setting.granularity
    return {
        "recompute_granularity": None if granularity is Granularity.NONE else str(granularity),
        "recompute_method": None if setting.method is None else str(setting.method),
        "recompute_num_layers": setting.num_layers,
        "recompute_modules": setting.effective_modules or setting.modules,
        "distribute_saved_activations": setting.distribute_saved_activations,
        "fine_grained_activation_offloading": bool(setting.offload_modules),
        "offload_modules": setting.offload_modules,
        "cpu_offloading": bool(setting.cpu_offloading_num_layers),
        "cpu_offloading_num_layers": setting.cpu_offloading_num_layers,
    }


_NOT_RUN: Final = (("experimental_attention_variant", None), ("hybrid_layer_pattern", None))
_OF_KERNELS: Final = (("window_size", None), ("softmax_type", SoftmaxType.VANILLA))
"""What torch's own attention kernel lacks, which stands in for Transformer Engine's."""


def _check(workload: Workload) -> None:
    eight_bits = workload.precision in _FP8_RECIPES and runs_transformer_engine(workload)
    if workload.precision is not Precision.BF16 and not eight_bits:
        raise UserError(
            "job.precision",
            workload.precision,
            "the megatron_core backend runs bf16, and with Transformer Engine on a GPU FP8",
            "use bf16",
        )
    model = workload.model
    lacking = (*_NOT_RUN, *(() if _has_kernels(workload) else _OF_KERNELS))
    others = [field for field, default in lacking if getattr(model, field) != default]
    for field in (*others, *variants(model)):
        raise UserError(
            f"model.{field}",
            getattr(workload.model, field),
            "is not run by the megatron_core backend so far",
        )
    layout = workload.layout
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.P2P:
        raise UserError(
            "layout.cp_comm_type",
            layout.cp_comm_type,
            "is not run by the megatron_core backend so far",
            "use p2p",
        )
    if not workload.recompute.startswith(("none", "selective", "full")):
        raise UserError(
            "recompute",
            workload.recompute,
            "is not a setting of Megatron's",
            "write none, selective:… or full:…",
        )
    setting = parse_setting(workload.recompute)
    if not runs_transformer_engine(workload):
        _check_offload(workload, setting)
    if workload.model.add_bias_linear and "mlp" in setting.effective_modules:
        raise UserError(
            "recompute",
            workload.recompute,
            "Megatron's MLP with biases hands its bias parameter through the "
            "checkpoint, and its replay never ends",
            "leave mlp out",
        )


def _has_kernels(workload: Workload) -> bool:
    """Whether attention knows windows and learned offsets: Transformer Engine's, Megatron's unfused
    one, and the flash kernel that fake tensors go through."""
    fake = workload.device is Device.FAKE
    unfused = _attention(workload.model) is CoreAttention.UNFUSED
    return fake or unfused or runs_transformer_engine(workload)


def _check_offload(workload: Workload, setting: RecomputeSetting) -> None:
    """Neither kind of activation offload is to be had without Transformer Engine on a GPU."""
    if setting.offload_modules:
        raise UserError(
            "recompute",
            workload.recompute,
            "fine-grained offload copies to pinned memory on CUDA streams: it runs "
            "with Transformer Engine on a GPU only",
            "leave +offload out",
        )
    if setting.cpu_offloading_num_layers:
        raise UserError(
            "recompute",
            workload.recompute,
            "cpu_offloading is Transformer Engine's, and runs on a GPU only",
            "leave +cpu_offloading out",
        )
