"""Settings as the user wrote them, legal or not: what Megatron's configuration sees.

Every rule is stated on this type. A ranked setting with its job is lowered into it; `advise lint`
fills it from flags or YAML. None means: not given, or (for the model's shape) not known.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from advisor.dtypes import Precision
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.job import CudaGraphImpl, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSettings:
    """Fields of TransformerConfig under their own names and with their own defaults (0.19.2).

    Beside them: recompute_activations and checkpoint_activations, shorthands of Megatron-LM's
    command line, and expandable_segments, an option of PYTORCH_CUDA_ALLOC_CONF.
    """

    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False
    moe_layer_recompute: bool = False
    recompute_activations: bool = False
    checkpoint_activations: bool = False
    cpu_offloading: bool = False
    cpu_offloading_num_layers: int = 0
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] = ()
    fine_grained_offloading_max_inflight_offloads: int | None = None
    use_transformer_engine_op_fuser: bool = False
    cuda_graph_impl: str = "none"
    cuda_graph_modules: tuple[str, ...] = ()
    cuda_graph_warmup_steps: int = 3
    enable_cuda_graph: bool = False
    external_cuda_graph: bool = False
    expandable_segments: bool = False
    fp8: str | None = None
    fp8_recipe: str = "delayed"
    fp8_param: bool = False
    fp8_output_proj: bool = False
    fp8_quantizer_factory: str | None = None
    fp4: str | None = None
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 1
    num_layers_at_end_in_bf16: int = 1
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    add_bias_linear: bool | None = None
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    transformer_impl: str = "transformer_engine"
    attention_backend: str = "auto"
    multi_latent_attention: bool = False
    experimental_attention_variant: str | None = None
    enable_mhc_connections: bool = False
    num_moe_experts: int | None = None
    moe_grouped_gemm: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_overlap: bool = False
    num_layers: int | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None

    @property
    def selective(self) -> bool:
        """Whether recompute_modules is read at all."""
        return self.recompute_granularity == Granularity.SELECTIVE

    @property
    def full(self) -> bool:
        """Whether whole layers are recomputed."""
        return self.recompute_granularity == Granularity.FULL

    @property
    def effective_modules(self) -> tuple[str, ...]:
        """Modules after Megatron's promotion of None to core_attn, whatever the granularity."""
        return ("core_attn",) if self.recompute_modules is None else self.recompute_modules

    @property
    def layers_per_chunk(self) -> int | None:
        """Layers of a model chunk: num_layers / PP / VPP; None where unknown or uneven."""
        chunks = self.pipeline_model_parallel_size * (
            self.virtual_pipeline_model_parallel_size or 1
        )
        if self.num_layers is None or chunks < 1 or self.num_layers % chunks:
            return None
        return self.num_layers // chunks


@dataclass(frozen=True, slots=True)
class Graphs:
    """CUDA graphs after Megatron's own normalisation of old spellings."""

    impl: str
    modules: tuple[str, ...]

    @property
    def on(self) -> bool:
        """Whether anything is captured."""
        return self.impl != "none"

    @property
    def iteration(self) -> bool:
        """Whether one graph holds the whole iteration."""
        return self.impl == "full_iteration" or (
            self.impl == "local" and self.modules == ("full_iteration",)
        )

    def captures(self, module: str) -> bool:
        """Whether `module` of a layer runs inside a graph; no modules means the whole layer."""
        everything = self.iteration or not self.modules or "full_iteration" in self.modules
        return self.on and (everything or module in self.modules)


def graphs_of(raw: RawSettings, revision: Revision) -> Graphs:
    """Resolve enable_cuda_graph, external_cuda_graph, "full" and "full_iteration".

    Source: megatron-core 0.19.2 transformer_config.py:2365-2444, cuda_graph_config.py.
    """
    impl, modules = raw.cuda_graph_impl, raw.cuda_graph_modules
    if raw.enable_cuda_graph:
        impl = "local"
    elif raw.external_cuda_graph:
        impl = "transformer_engine"
    if modules == ("full",):
        modules = ()
    if "full_iteration" in modules and revision.at_least(0, 18) and impl != "transformer_engine":
        impl = "full_iteration"
        modules = tuple(module for module in modules if module != "full_iteration")
    return Graphs(impl, modules)


class JobFacts(NamedTuple):
    """The part of a job that rules read; a tuple because its hash is what a search pays for."""

    num_layers: int
    num_attention_heads: int
    num_query_groups: int
    hidden_dropout: float
    attention_dropout: float
    add_bias_linear: bool
    transformer_impl: str
    attention_backend: str
    tensor_model_parallel_size: int
    sequence_parallel: bool
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    precision: Precision
    cuda_graph_impl: CudaGraphImpl
    cuda_graph_modules: tuple[str, ...]
    expandable_segments: bool


def job_facts(job: Job) -> JobFacts:
    """The facts of `job` that decide whether a setting is legal."""
    model, layout, config = job.model, job.layout, job.config
    return JobFacts(
        model.num_layers, model.num_attention_heads, model.num_query_groups, model.hidden_dropout,
        model.attention_dropout, model.add_bias_linear, model.transformer_impl,
        model.attention_backend,
        layout.tensor_model_parallel_size, layout.sequence_parallel,
        layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size,
        config.precision, config.cuda_graph_impl, config.cuda_graph_modules,
        config.expandable_segments,
    )  # fmt: skip


FP8_RECIPES: Final = {
    Precision.FP8_DELAYED: "delayed", Precision.FP8_CURRENT: "tensorwise",
    Precision.FP8_BLOCKWISE: "blockwise", Precision.MXFP8: "mxfp8",
}  # fmt: skip
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
        recompute_modules=setting.modules,
        distribute_saved_activations=setting.distribute_saved_activations,
        fine_grained_activation_offloading=bool(setting.offload_modules),
        offload_modules=setting.offload_modules,
        cuda_graph_impl=impl if revision.cuda_graph_impls else "none",
        cuda_graph_modules=modules,
        enable_cuda_graph=not revision.cuda_graph_impls and impl == "local",
        external_cuda_graph=not revision.cuda_graph_impls and impl == "transformer_engine",
        expandable_segments=facts.expandable_segments,
        fp8="hybrid" if facts.precision.is_fp8 else None,
        fp8_recipe=FP8_RECIPES.get(facts.precision, "delayed"),
        hidden_dropout=facts.hidden_dropout,
        attention_dropout=facts.attention_dropout,
        add_bias_linear=facts.add_bias_linear,
        tensor_model_parallel_size=facts.tensor_model_parallel_size,
        sequence_parallel=facts.sequence_parallel,
        pipeline_model_parallel_size=facts.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=facts.virtual_pipeline_model_parallel_size,
        transformer_impl=facts.transformer_impl,
        attention_backend=facts.attention_backend,
        num_layers=facts.num_layers,
        num_attention_heads=facts.num_attention_heads,
        num_query_groups=facts.num_query_groups,
    )


def _graph_fields(facts: JobFacts, revision: Revision) -> tuple[str, tuple[str, ...]]:
    """Before 0.18 a graph of the whole iteration is spelt local with scope full_iteration."""
    whole = facts.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION
    if whole and "full_iteration" not in revision.cuda_graph_impls:
        return "local", ("full_iteration",)
    return str(facts.cuda_graph_impl), facts.cuda_graph_modules
