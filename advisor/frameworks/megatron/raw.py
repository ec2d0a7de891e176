"""Settings as the user wrote them, legal or not: what Megatron's configuration sees.

Every rule is stated on this type. A ranked setting with its job is lowered into it; `advise lint`
fills it from flags or YAML. None means: not given, or (for the model's shape) not known.
"""

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from inspect import get_annotations
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

from msgspec import UNSET, Struct

from advisor.frameworks.megatron.options.table import SECTIONS, SETTINGS
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity, RecomputeSetting
from advisor.frameworks.option import Described
from advisor.job.job import Job


class RawSettings:
    """Every option under its own name and with its own default (megatron-core 0.19.2): the rows of
    options/. An instance holds what it is given; the rest are defaults of the class. Options that
    are read by name are declared, with the types of their values."""

    option_names: ClassVar[frozenset[str]] = frozenset(SETTINGS)

    multi_latent_attention: bool
    window_size: str | None
    softmax_type: str
    mtp_num_layers: int | None
    experimental_attention_variant: str | None
    hybrid_layer_pattern: str | None
    num_layers: int | None
    num_attention_heads: int | None
    num_query_groups: int | None
    max_position_embeddings: int | None
    rotary_percent: float
    add_bias_linear: bool | None
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int | None
    num_moe_experts: int | None
    moe_layer_freq: str
    moe_router_topk: int
    moe_router_score_function: str
    moe_token_dispatcher_type: str
    moe_expert_capacity_factor: float | None
    moe_pad_expert_input_to_capacity: bool
    moe_permute_fusion: bool
    moe_shared_expert_intermediate_size: int | None
    moe_shared_expert_overlap: bool
    moe_flex_dispatcher_backend: str
    moe_router_padding_for_fp8: bool
    moe_router_padding_for_quantization: bool
    moe_input_jitter_eps: float | None
    moe_ncclep_static_shape: bool
    moe_expert_rank_capacity_factor: float | None
    transformer_impl: str
    attention_backend: str
    use_transformer_engine_op_fuser: bool
    hidden_dropout: float
    attention_dropout: float
    fp8: str | None
    fp8_recipe: str | None
    fp4: str | None
    fp8_param: bool
    first_last_layers_bf16: bool
    fp8_output_proj: bool
    fp8_quantizer_factory: str | None
    fp8_dot_product_attention: bool
    optimizer: str
    use_distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    use_megatron_fsdp: bool
    tensor_model_parallel_size: int
    sequence_parallel: bool
    context_parallel_size: int
    cp_comm_type: tuple[str, ...]
    hierarchical_context_parallel_sizes: tuple[str, ...]
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    num_layers_in_first_pipeline_stage: int | None
    num_layers_in_last_pipeline_stage: int | None
    account_for_embedding_in_pipeline_split: bool
    account_for_loss_in_pipeline_split: bool
    pipeline_model_parallel_layout: str | None
    overlap_moe_expert_parallel_comm: bool
    recompute_granularity: str | None
    recompute_modules: tuple[str, ...] | None
    recompute_method: str | None
    recompute_num_layers: int | None
    distribute_saved_activations: bool
    fine_grained_activation_offloading: bool
    offload_modules: tuple[str, ...]
    cpu_offloading: bool
    cpu_offloading_num_layers: int
    moe_layer_recompute: bool
    fine_grained_offloading_max_inflight_offloads: int | None
    activation_offload_fraction: float
    moe_paged_stash: bool
    expandable_segments: bool
    world_size: int | None
    packed_sequences: bool
    transformer_engine_version: str
    cuda_graph_impl: str
    external_cuda_graph: bool
    enable_cuda_graph: bool
    cuda_graph_modules: tuple[str, ...]
    cuda_graph_warmup_steps: int

    def __init_subclass__(cls) -> None:
        cls.option_names = cls.option_names.union(get_annotations(cls))

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.option_names
        if unknown:
            raise TypeError(f"{', '.join(sorted(unknown))}: no option of Megatron")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: cannot be set; use changed(), which returns new settings")

    def __repr__(self) -> str:
        return f"RawSettings({', '.join(f'{k}={v!r}' for k, v in self.given.items())})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RawSettings):
            return NotImplemented
        names = self.given.keys() | other.given.keys()
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def changed(self, **values: Any) -> Self:
        """The same settings except `values`."""
        return type(self)(**{**self.__dict__, **values})

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by name."""
        return dict(self.__dict__)

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
        if pattern.strip().isdigit():
            every = pattern.strip() == "1"
        else:
            every = not re.search(r"\b0\b", pattern)
        return not (self.has_experts and every)

    @property
    def has_capacity(self) -> bool:
        """Whether an expert takes only so many tokens."""
        return self.moe_expert_capacity_factor is not None and self.moe_expert_capacity_factor >= 0

    @property
    def is_dropless(self) -> bool:
        """Whether there are experts that take as many tokens as come."""
        return self.has_experts and not (
            self.has_capacity and self.moe_pad_expert_input_to_capacity
        )

    @property
    def layers_per_chunk(self) -> int | None:
        """Layers of a model chunk: num_layers / PP / VPP; None where unknown or uneven."""
        chunks = self.pipeline_model_parallel_size * (
            self.virtual_pipeline_model_parallel_size or 1
        )
        if self.num_layers is None or self.pipeline_model_parallel_layout or chunks < 1:
            return None
        return None if self.num_layers % chunks else self.num_layers // chunks


for _row in SETTINGS.values():
    setattr(RawSettings, _row.name, _row.default)


class Graphs(Struct, frozen=True):
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


_OF_JOB: Final = tuple(
    row for row in SETTINGS.values() if row.ours and not row.ours.startswith("recompute")
)
_plain_values: Final = attrgetter(
    *(re.sub("^job", "config", row.ours) for row in _OF_JOB if row.value is None)
)


def _getter(part: str) -> Callable[[Any], tuple[Any, ...]]:
    """All fields of a part of the job that options mean, except the batch."""
    paths = sorted({row.ours for row in _OF_JOB if row.ours.startswith(f"{part}.")})
    paths = [path for path in paths if path not in {row.ours for row in SECTIONS["Batch"].rows}]
    return attrgetter(*(path.removeprefix(f"{part}.") for path in paths))


_layout_facts = _getter("layout")
_config_facts = _getter("job")


class JobFacts:
    """A job, equal to every other one that differs in the batch or in data parallelism alone: rules
    do not read them, and a search finds most of its rejections in a cache keyed by this."""

    __slots__ = ("_hash", "_key", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self._key = (job.model, _layout_facts(job.layout), _config_facts(job.config))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobFacts) and self._key == other._key


@lru_cache(maxsize=16384)
def lower(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> RawSettings:
    """What `revision`'s configuration gets to see of a setting, as it is written, and its job; 0.11
    has no list of modules: selective is core attention."""
    named = revision.recompute_modules or setting.modules != ("core_attn",)
    return RawSettings(
        **{
            **_values_of_facts(facts, revision),
            **setting_values(setting),
            "recompute_granularity": _unless_none(setting.granularity),
            "recompute_modules": setting.modules if named else None,
        }
    )


@lru_cache(maxsize=256)
def _values_of_facts(facts: JobFacts, revision: Revision) -> dict[str, Any]:
    return job_values(facts.job, revision)


def job_values(job: Described, revision: Revision) -> dict[str, Any]:
    """Values of Megatron's options that follow from a job, by name; those that do not apply to it
    are left out."""
    values = iter(_plain_values(job))
    found = {
        row.name: next(values) if row.value is None else row.value(job, revision) for row in _OF_JOB
    }
    return {
        name: str(value) if isinstance(value, Enum) else value
        for name, value in found.items()
        if value is not UNSET
    }


def _unless_none(granularity: Granularity) -> str | None:
    return None if granularity is Granularity.NONE else str(granularity)


def setting_values(setting: RecomputeSetting) -> dict[str, Any]:
    """Values of the options that make `setting`, an unset list of modules written out as the
    core_attn that Megatron makes of it, and selective recompute of nothing as no recompute."""
    modules = setting.effective_modules
    acts = setting.granularity is Granularity.FULL or bool(modules)
    layers = setting.cpu_offloading_num_layers
    return {
        "recompute_granularity": _unless_none(setting.granularity) if acts else None,
        "recompute_modules": modules,
        "recompute_method": None if setting.method is None else str(setting.method),
        "recompute_num_layers": setting.num_layers,
        "distribute_saved_activations": setting.distribute_saved_activations,
        "fine_grained_activation_offloading": bool(setting.offload_modules),
        "offload_modules": setting.offload_modules,
        "activation_offload_fraction": setting.offload_fraction,
        "cpu_offloading": layers > 0,
        **({"cpu_offloading_weights": False} if layers else {}),
        "cpu_offloading_num_layers": layers,
    }
