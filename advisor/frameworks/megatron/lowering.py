"""What Megatron's configuration gets to see of a ranked setting and its job."""

from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, NamedTuple

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job.job import CudaGraphImpl, Job, Optimizer
from advisor.models.attention_kinds import CpCommType
from advisor.models.mixers import AttentionVariant
from advisor.models.spec import ModelSpec


class JobFacts(NamedTuple):
    """The part of a job that rules read; a tuple because its hash is what a search pays for."""

    model: ModelSpec
    tensor_model_parallel_size: int
    sequence_parallel: bool
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    pipeline_model_parallel_layout: str
    context_parallel_size: int
    cp_comm_type: CpCommType
    hierarchical_context_parallel_sizes: tuple[int, ...] | None
    packed_sequences: bool
    transformer_engine_version: str
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int | None
    precision: Precision
    cuda_graph_impl: CudaGraphImpl
    cuda_graph_modules: tuple[str, ...]
    expandable_segments: bool
    optimizer: Optimizer
    overlap_grad_reduce: bool


def job_facts(job: Job) -> JobFacts:
    """The facts of `job` that decide whether a setting is legal."""
    layout, config = job.layout, job.config
    return JobFacts(
        job.model,
        layout.tensor_model_parallel_size,
        layout.sequence_parallel,
        layout.pipeline_model_parallel_size,
        layout.virtual_pipeline_model_parallel_size,
        layout.pipeline_model_parallel_layout,
        layout.context_parallel_size,
        layout.cp_comm_type,
        layout.hierarchical_context_parallel_sizes,
        config.mean_packed_length is not None,
        config.transformer_engine_version,
        layout.expert_model_parallel_size,
        layout.expert_tensor_parallel_size,
        config.precision,
        config.cuda_graph_impl,
        config.cuda_graph_modules,
        config.expandable_segments,
        config.optimizer,
        layout.overlap_grad_reduce,
    )


FP8_RECIPES: Final = {
    Precision.FP8_DELAYED: "delayed",
    Precision.FP8_CURRENT: "tensorwise",
    Precision.FP8_BLOCKWISE: "blockwise",
    Precision.MXFP8: "mxfp8",
}
"""``fp8_recipe`` of each 8-bit precision (megatron-core enums.py, Fp8Recipe)."""


@lru_cache(maxsize=16384)
def lower(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> RawSettings:
    """What `revision`'s configuration gets to see of a setting and its job."""
    impl, modules = _graph_fields(facts, revision)
    granularity = setting.granularity
    return RawSettings(
        recompute_granularity=None if granularity is Granularity.NONE else str(granularity),
        recompute_method=None if setting.method is None else str(setting.method),
        recompute_num_layers=setting.num_layers,
        recompute_modules=_modules(setting, revision),
        distribute_saved_activations=setting.distribute_saved_activations,
        cpu_offloading=setting.cpu_offloading_num_layers > 0,
        cpu_offloading_num_layers=setting.cpu_offloading_num_layers,
        fine_grained_activation_offloading=bool(setting.offload_modules),
        offload_modules=setting.offload_modules,
        cuda_graph_impl=impl if revision.cuda_graph_impls else "none",
        cuda_graph_modules=modules,
        enable_cuda_graph=not revision.cuda_graph_impls and impl == "local",
        external_cuda_graph=not revision.cuda_graph_impls and impl == "transformer_engine",
        expandable_segments=facts.expandable_segments,
        optimizer=str(facts.optimizer),
        overlap_grad_reduce=facts.overlap_grad_reduce,
        fp8="hybrid" if facts.precision.is_fp8 else None,
        fp4="e2m1" if facts.precision is Precision.NVFP4 else None,
        fp8_recipe=_fp8_recipe(facts.precision),
        tensor_model_parallel_size=facts.tensor_model_parallel_size,
        sequence_parallel=facts.sequence_parallel,
        pipeline_model_parallel_size=facts.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=facts.virtual_pipeline_model_parallel_size,
        pipeline_model_parallel_layout=facts.pipeline_model_parallel_layout or None,
        context_parallel_size=facts.context_parallel_size,
        cp_comm_type=(str(facts.cp_comm_type),),
        hierarchical_context_parallel_sizes=tuple(
            str(size) for size in facts.hierarchical_context_parallel_sizes or ()
        ),
        packed_sequences=facts.packed_sequences,
        transformer_engine_version=facts.transformer_engine_version,
        expert_model_parallel_size=facts.expert_model_parallel_size,
        expert_tensor_parallel_size=facts.expert_tensor_parallel_size,
        **_model_fields(facts.model, revision),
    )


_SHARED: Final = tuple(f.name for f in fields(RawSettings) if f.name in ModelSpec.__slots__)
"""Fields that a model and TransformerConfig share, name and meaning."""


@lru_cache(maxsize=256)
def _model_fields(model: ModelSpec, revision: Revision) -> dict[str, Any]:
    window = None if model.window_size is None else f"{model.window_size},0"
    values = {name: getattr(model, name) for name in _SHARED} | {"window_size": window}
    if model.experimental_attention_variant is not None and revision.at_least(0, 20):
        values["experimental_attention_variant"] = _VARIANTS_OF_MAIN[
            model.experimental_attention_variant
        ]
    return values


_VARIANTS_OF_MAIN: Final = {AttentionVariant.GATED_DELTA_NET: "gdn"}


def _modules(setting: RecomputeSetting, revision: Revision) -> tuple[str, ...] | None:
    """0.11 has no list of modules: selective there is core attention."""
    core_attention_only = setting.modules == ("core_attn",)
    return None if core_attention_only and not revision.recompute_modules else setting.modules


def _fp8_recipe(precision: Precision) -> str | None:
    """Delayed scaling is what an unset recipe means, in every release."""
    return FP8_RECIPES[precision] if precision in _WITH_RECIPE else None


_WITH_RECIPE: Final = frozenset(FP8_RECIPES) - {Precision.FP8_DELAYED}


def _graph_fields(facts: JobFacts, revision: Revision) -> tuple[str, tuple[str, ...]]:
    """Before 0.18 a graph of the whole iteration is spelt local with scope full_iteration."""
    whole = facts.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION
    if whole and "full_iteration" not in revision.cuda_graph_impls:
        return "local", ("full_iteration",)
    return str(facts.cuda_graph_impl), facts.cuda_graph_modules
