"""Settings as the user wrote them, legal or not: what Megatron's configuration sees.

Every rule is stated on this type. A ranked setting with its job is lowered into it; `advise lint`
fills it from flags or YAML. None means: not given, or (for the model's shape) not known.
"""

import re
from dataclasses import dataclass

from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSettings:
    """Fields of TransformerConfig under their own names and with their own defaults (0.19.2).

    Beside them: packed_sequences (of several documents, without attention between them), the
    release of Transformer Engine (empty: the newest that the revision admits),
    recompute_activations and checkpoint_activations, shorthands of Megatron-LM's command line,
    expandable_segments, an option of PYTORCH_CUDA_ALLOC_CONF, the optimizer and what goes with it
    (fields of OptimizerConfig and DistributedDataParallelConfig), and three keys of NeMo 1
    (mcore_gpt says whether its own transformer or Megatron Core's trains).
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
    moe_paged_stash: bool = False
    use_transformer_engine_op_fuser: bool = False
    cuda_graph_impl: str = "none"
    cuda_graph_modules: tuple[str, ...] = ()
    cuda_graph_warmup_steps: int = 3
    enable_cuda_graph: bool = False
    external_cuda_graph: bool = False
    expandable_segments: bool = False
    mcore_gpt: bool = True
    num_micro_batches_with_partial_activation_checkpoints: int | None = None
    activations_checkpoint_layers_per_pipeline: int | None = None
    fp8: str | None = None
    fp8_recipe: str | None = None
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
    pipeline_model_parallel_layout: str | None = None
    context_parallel_size: int = 1
    cp_comm_type: tuple[str, ...] = ()
    hierarchical_context_parallel_sizes: tuple[str, ...] = ()
    packed_sequences: bool = False
    transformer_engine_version: str = ""
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    defer_embedding_wgrad_compute: bool = False
    mtp_num_layers: int | None = None
    transformer_impl: str = "transformer_engine"
    attention_backend: str = "auto"
    window_size: str | None = None
    softmax_type: str = "vanilla"
    fp8_dot_product_attention: bool = False
    multi_latent_attention: bool = False
    experimental_attention_variant: str | None = None
    hybrid_layer_pattern: str | None = None
    enable_mhc_connections: bool = False
    mhc_recompute_layer_num: int | None = None
    num_moe_experts: int | None = None
    moe_layer_freq: str = "1"
    moe_ffn_hidden_size: int | None = None
    moe_grouped_gemm: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_overlap: bool = False
    moe_token_dispatcher_type: str = "allgather"
    moe_flex_dispatcher_backend: str = "deepep"
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_router_topk: int = 2
    moe_router_pre_softmax: bool = False
    moe_router_score_function: str = "softmax"
    moe_router_load_balancing_type: str = "aux_loss"
    moe_router_enable_expert_bias: bool = False
    moe_router_padding_for_fp8: bool = False
    moe_router_padding_for_quantization: bool = False
    moe_input_jitter_eps: float | None = None
    optimizer: str = "adam"
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    use_precision_aware_optimizer: bool = False
    fp16: bool = False
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
    def recomputed_modules(self) -> tuple[str, ...]:
        """What selective recompute acts on after both of Megatron's promotions: an unset list is
        core_attn, and moe_layer_recompute makes it selective and appends moe."""
        if self.full or not (self.selective or self.moe_layer_recompute):
            return ()
        added = self.moe_layer_recompute and "moe" not in self.effective_modules
        return (*self.effective_modules, "moe") if added else self.effective_modules

    @property
    def delayed_scaling(self) -> bool:
        """Whether fp8 runs with per-tensor delayed scaling, the recipe of an unset fp8_recipe."""
        return bool(self.fp8) and self.fp8_recipe in (None, "delayed")

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return (self.num_moe_experts or 0) > 1

    @property
    def has_dense_mlp(self) -> bool:
        """Whether any layer has a dense MLP: a moe_layer_freq other than 1, or a 0 in its list."""
        pattern = self.moe_layer_freq
        every = pattern.strip() == "1" or (
            not pattern.strip().isdigit() and not re.search(r"\b0\b", pattern)
        )
        return not (self.has_experts and every)

    @property
    def layers_per_chunk(self) -> int | None:
        """Layers of a model chunk: num_layers / PP / VPP; None where unknown or uneven."""
        chunks = self.pipeline_model_parallel_size * (
            self.virtual_pipeline_model_parallel_size or 1
        )
        if self.num_layers is None or chunks < 1 or self.num_layers % chunks:
            return None
        if self.pipeline_model_parallel_layout:
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
