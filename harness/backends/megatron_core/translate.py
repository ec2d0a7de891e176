"""From a workload to Megatron's own names, and to the model as this backend really runs it."""

from importlib.util import find_spec
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.rule import refuse
from advisor.frameworks.megatron.raw import job_values, setting_values
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.megatron.supported_jobs import harness_config
from advisor.job.job import RECIPES_OF_PRECISIONS, Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models import options
from advisor.models.layer_kind import FeedForward, Mixer
from advisor.models.spec import ModelSpec
from harness.backends.megatron_core.case import CoreAttention, MegatronCase
from harness.backends.megatron_core.installed import has_transformer_engine, installed_revision
from harness.backends.workload_rule import backend_rules
from harness.trial.trial import Backend, Device, Workload


def runs_transformer_engine(workload: Workload) -> bool:
    """Whether the layers are Transformer Engine's: asked for, on a GPU, and usable here."""
    wanted = workload.model.transformer_impl is options.TransformerImpl.TRANSFORMER_ENGINE
    return wanted and workload.device is Device.CUDA and has_transformer_engine()


def megatron_model(workload: Workload) -> ModelSpec:
    """The workload's model with the options that it is run with here. Without Transformer Engine
    these are Megatron's own layers, torch's flash kernel, experts one by one, and no fusions and
    dispatchers that need a CUDA extension (DeepEP's flex becomes alltoall)."""
    model = workload.model
    if runs_transformer_engine(workload):
        return _with_installed_kernels(model)
    changes: dict[str, Any] = dict.fromkeys(_LACKING, False)
    if model.attention_backend is not options.AttentionBackend.UNFUSED:
        changes["attention_backend"] = options.AttentionBackend.FLASH
    if model.cross_entropy_fusion is options.CrossEntropyFusion.TE:
        changes["cross_entropy_fusion"] = options.CrossEntropyFusion.NONE
    if model.moe_token_dispatcher_type is options.TokenDispatcher.FLEX:
        changes["moe_token_dispatcher_type"] = options.TokenDispatcher.ALLTOALL
    return replace(model, transformer_impl=options.TransformerImpl.LOCAL, **changes)


_LACKING: Final = (
    *("apply_rope_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion"),
    *("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"),
)


def _with_installed_kernels(model: ModelSpec) -> ModelSpec:
    """Transformer Engine's layers with what is next to it: without the flash-attn package cuDNN's
    attention by name, as left to itself Transformer Engine falls back on unfused attention without
    a word where cuDNN refuses; without DeepEP Megatron's own all-to-all."""
    backend, dispatcher = model.attention_backend, model.moe_token_dispatcher_type
    fused = (options.AttentionBackend.FLASH, options.AttentionBackend.AUTO)
    if backend in fused and find_spec("flash_attn") is None:
        backend = options.AttentionBackend.FUSED
    if dispatcher is options.TokenDispatcher.FLEX and find_spec("deep_ep") is None:
        dispatcher = options.TokenDispatcher.ALLTOALL
    return replace(model, attention_backend=backend, moe_token_dispatcher_type=dispatcher)


def as_megatron_runs(job: Job, workload: Workload) -> Job:
    """`job` with layers, precision, optimizer and batch of `workload` here, see harness_config."""
    types = {name: getattr(workload, name) for name in ("precision", "main_grads_dtype")}
    config = replace(harness_config(job.config), **types)
    layout = replace(job.layout, tp_comm_overlap=_overlaps_tp(workload))
    return replace(job, model=megatron_model(workload), config=config, layout=layout)


def _overlaps_tp(workload: Workload) -> bool:
    """User buffers are shared with the other ranks: a rank alone has none."""
    alone = workload.backend is Backend.REHEARSAL
    return workload.layout.tp_comm_overlap and runs_transformer_engine(workload) and not alone


def megatron_case(workload: Workload) -> MegatronCase:
    """The workload under Megatron's names; UserError for what this backend does not run."""
    refuse(_RULES, workload)
    model, layout = megatron_model(workload), workload.layout
    setting = parse_setting(workload.recompute)
    windows = [int(kind.mixer is Mixer.SLIDING_WINDOW) for kind in model.layer_kinds]
    values: dict[str, Any] = {
        **job_values(_Run(workload, model), installed_revision()),
        **setting_values(setting),
        "recompute_modules": setting.effective_modules or setting.modules,
        "num_microbatches": workload.num_microbatches,
        "data_parallel_size": layout.data_parallel_size,
        "vocab_size": model.padded_vocab_size(layout.tensor_model_parallel_size),
        "activation": model.activation,
        "attention": _attention(model),
        # 1 for each layer with a window, as Megatron reads a list
        "window_attn_skip_freq": None if model.window_size is None else str(windows),
        "tp_comm_overlap": _overlaps_tp(workload),
        **_experts(model, layout),
    }
    return MegatronCase(**values)


class _Run(Struct, frozen=True):
    """A workload as options are read from it (Described), with the model that is run."""

    workload: Workload
    model: ModelSpec

    @property
    def layout(self) -> ParallelLayout:
        return self.workload.layout

    @property
    def config(self) -> JobConfig:
        """Batch and precision; the rest at its default."""
        given = self.workload
        return JobConfig(**given.batch, main_grads_dtype=given.main_grads_dtype)


def _experts(model: ModelSpec, layout: ParallelLayout) -> dict[str, Any]:
    """Options of the experts as this backend writes them out; none for a dense model."""
    if model.num_moe_experts is None:
        return {"expert_tensor_parallel_size": 1}
    layers = [int(kind.feed_forward is FeedForward.MOE) for kind in model.layer_kinds]
    return {
        "moe_ffn_hidden_size": model.expert_ffn_hidden_size,
        "moe_layer_freq": str(layers),
        "expert_tensor_parallel_size": layout.expert_tensor_degree,
    }


def _attention(model: ModelSpec) -> CoreAttention:
    unfused = model.attention_backend is options.AttentionBackend.UNFUSED
    return CoreAttention.UNFUSED if unfused else CoreAttention.FLASH


def _has_kernels(workload: Workload) -> bool:
    """Whether attention knows windows and learned offsets: Transformer Engine's, Megatron's unfused
    one, the flash kernel of fake tensors; not torch's own kernel, which stands in for the first."""
    fake = workload.device is Device.FAKE
    unfused = _attention(workload.model) is CoreAttention.UNFUSED
    return fake or unfused or runs_transformer_engine(workload)


def _other_precision(w: Workload) -> bool:
    recipe = w.precision in RECIPES_OF_PRECISIONS and runs_transformer_engine(w)
    return w.precision is not Precision.BF16 and not recipe


_RULES: Final = backend_rules(
    "megatron_core",
    {
        "other_precision": _other_precision,
        "lacks_kernels": lambda w: not _has_kernels(w),
        "context_parallel": lambda w: w.layout.context_parallel_size > 1,
        "other_setting": lambda w: not w.recompute.startswith(("none", "selective", "full")),
        "without_te": lambda w: not runs_transformer_engine(w),
        "offloads": lambda w: parse_setting(w.recompute).offload_modules,
        "offloads_layers": lambda w: parse_setting(w.recompute).cpu_offloading_num_layers,
        "replays_mlp": lambda w: "mlp" in parse_setting(w.recompute).effective_modules,
        "mlp_biases": lambda w: megatron_model(w).add_bias_linear,
    },
)
