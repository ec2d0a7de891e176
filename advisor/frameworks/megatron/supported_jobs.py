"""Which jobs Megatron-LM, Megatron Bridge and NeMo run, and how they complete them; and jobs as the
harness runs them on Megatron Core, with all installed that its backend can use.

Sources of what recipes set: nemo_toolkit 2.5.3 collections/llm/gpt/model/base.py and recipes/
(bf16_mixed and its 8-bit forms; pretrain_performance_optimizations, which NeMo's published step
times were measured with); Megatron Bridge 0.3.1 models/gpt_provider.py,
training/mixed_precision.py, training/comm_overlap.py.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError, nearest_divisors
from advisor.base.record import defaults
from advisor.base.rule import Match, R, Rule, refuse, rows_of, rules_of, with_sides
from advisor.frameworks.framework_parts import JobSupport
from advisor.frameworks.loss_heads import check_head, head_changes
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.revisions import FIRST_WITH_MUON, Revision, resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import Degrees, JobChange, LayerSplits
from advisor.job.job import RECIPES_OF_PRECISIONS, CudaGraphImpl, Fp8Recipe, Job, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.job.tuning import ALL_LINEAR, Tuning
from advisor.layers.megatron.adapters import LINEAR_NAMES
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import (
    CpCommType,
    CrossEntropyFusion,
    FlexBackend,
    TokenDispatcher,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec
from advisor.models.variants import PLAIN, of_providers

_OWN: Final = (
    "optimizer_cpu_offload",
    "deterministic_mode",
    "mean_packed_length",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "use_precision_aware_optimizer",
    "fp8_recipe",
    "transformer_engine_version",
)
"""Options of a job that all three have."""
_GATHERED: Final = (Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.MXFP8)
"""Recipes whose mixed precision keeps the linear layers' weights in 8 bits (fp8_param_gather)."""
_OUTER: Final = "outer_dp_sharding_strategy"
_WHOLE: Final = DataParallelSharding.NONE
_FULLY_SHARDED: Final = (DataParallelSharding.OPTIMIZER, DataParallelSharding.FULL)
_SHAPING: Final = tuple(
    f"{kind}_parallel_size" for kind in ("tensor_model", "context", "pipeline_model")
)
_YAML_ALONE: Final = "1"
"""NeMo 1, whose jobs are YAML files with each option written out."""


_NO_LAYERS: Final = "Megatron Core has no such layers"
_BRIDGES_OWN: Final = (
    "Megatron Bridge 0.6.2 has modules of its own for such layers "
    "(models/gemma/modeling_gemma4.py), which are not modelled"
)


class _LayerRule(Rule[[str, ModelSpec]], frozen=True, kw_only=True):
    """What a framework's layers cannot be."""

    names: ClassVar[tuple[str, ...]] = ("framework", "model")


class _OptionRule(Rule[[JobConfig, Revision]], frozen=True, kw_only=True):
    """What an option of a job needs."""

    names: ClassVar[tuple[str, ...]] = ("job", "revision")


class _TuningRule(Rule[[Tuning, Revision]], frozen=True, kw_only=True):
    """What of a model may be frozen, and what may be added."""

    names: ClassVar[tuple[str, ...]] = ("tuning", "revision")


def _only_elsewhere(field: str, plain: object) -> _LayerRule:
    """Blocks that only transformers has, or only Bridge and NeMo."""

    def found(framework: str, model: ModelSpec) -> Match | None:
        if getattr(model, field) == plain:
            return None
        if model.transformer_impl.is_eager:
            own = model.global_kv_channels and framework == Framework.MEGATRON_BRIDGE
            return Match(_BRIDGES_OWN if own else _NO_LAYERS, "use --framework huggingface")
        if framework != Framework.MEGATRON_LM:
            return None
        return Match(
            "Megatron-LM's command line has no such layers", "use --framework megatron_bridge"
        )

    return _LayerRule.on(f"model.{field}", found, "")


def _te_layers(_: str, model: ModelSpec) -> str:
    if model.transformer_impl is not TransformerImpl.LOCAL:
        return ""
    linear = {kind.mixer for kind in model.layer_kinds} & LINEAR_MIXERS
    return "dsa" if model.has_sparse_attention else " or ".join(sorted(linear))


def _unknown_targets(tuning: Tuning, _: Revision) -> Match | None:
    unknown = [name for name in tuning.target_modules if name not in (ALL_LINEAR, *LINEAR_NAMES)]
    fix = f"use {ALL_LINEAR} or {', '.join(LINEAR_NAMES)}"
    return Match(fix=fix, found=unknown[0]) if tuning.has_adapter and unknown else None


def _stated(kind: type[R], table: str, whens: Mapping[str, Callable[..., object]]) -> tuple[R, ...]:
    rows = rows_of("megatron_support.json")[table]
    return tuple(rules_of(kind, rows, whens, partial(with_sides, kind)).values())


_LAYER_RULES: Final = (
    *(_only_elsewhere(field, plain) for field, plain in PLAIN if field != "no_rope_freq"),
    *_stated(_LayerRule, "layers", {"transformer_engine_layers": _te_layers}),
)
_OPTION_RULES: Final = _stated(
    _OptionRule,
    "options",
    {
        "muon_release": lambda job, revision: (
            job.optimizer.is_muon and not revision.at_least(*FIRST_WITH_MUON)
        )
    },
)
_TUNING_RULES: Final = _stated(_TuningRule, "tuning", {"known_targets": _unknown_targets})


class MegatronJobs(JobSupport):
    """Of one of the three. All degrees of a layout, sharded as is given. NeMo has no Muon."""

    degrees = Degrees(tensor=True, pipeline=True, experts=True, context=tuple(CpCommType))

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._is_lm = framework == Framework.MEGATRON_LM
        self.own_options = _OWN if framework == Framework.NEMO else (*_OWN, "optimizer")

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """The release that `text` means."""
        return resolve_revision(self.framework, text).version

    def builds(self, model: ModelSpec, *, adapted: bool = False) -> bool:
        """Megatron's own layers; adapters and those that need a provider's modules Bridge and NeMo
        alone."""
        provided = adapted or next(of_providers(model), None) is not None
        return not model.transformer_impl.is_eager and not (self._is_lm and provided)

    def recipe_options(
        self, model: ModelSpec, precision: Precision, version: str
    ) -> Mapping[str, Any] | None:
        """Of Megatron-LM none: it has command lines alone. The others fuse the loss and gather
        weights in 8 bits. NeMo 2's performance mode reduces gradients in 16 bits, and overlaps the
        communication of TP in its dense models; Bridge's recipes reduce in fp32 and overlap nothing
        of TP unless they say so."""
        if self._is_lm:
            return None
        nemo = self.framework == Framework.NEMO
        if nemo and version == _YAML_ALONE:
            return {}
        options: dict[str, Any] = {"cross_entropy_fusion": CrossEntropyFusion.NATIVE}
        if precision in _GATHERED:
            options["fp8_param_gather"] = True
        if nemo:
            options["main_grads_dtype"] = DType.BF16
            options["tp_comm_overlap"] = model.num_moe_experts is None
        return options

    def for_recipe(self, framework: str | None) -> str:
        """NeMo builds what Bridge builds."""
        bridge = self.framework == Framework.MEGATRON_BRIDGE
        return Framework.NEMO if bridge and framework == Framework.NEMO else self.framework

    def check_options(self, config: JobConfig) -> None:
        """NeMo has no Muon; Megatron-LM's optimizer on the host is the precision-aware one
        (arguments.py, a check that Bridge 0.6.2 and NeMo 2 do not have)."""
        super().check_options(config)
        revision = resolve_revision(self.framework, config.framework_version)
        refuse(_OPTION_RULES, config, revision)
        refuse(_TUNING_RULES, config.tuning, revision)

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """With the Transformer Engine that the release asks for, and without what of a recipe it
        cannot capture, does not read or refuses. Gradients of fp16 are fp16 unless asked for in
        fp32 (0.19.2 training/arguments.py; fp16_mixed of Bridge 0.3.1 and of NeMo 2.5.3)."""
        refuse(_LAYER_RULES, self.framework, model)
        self.check_options(config)
        check_head(model, config)
        revision = resolve_revision(self.framework, config.framework_version)
        if model.has_sparse_attention and not revision.at_least(0, 19):
            runs = "has another form of it" if revision.at_least(0, 18) else "builds no GPT with it"
            reason = f"is modelled as in megatron-core 0.19; {revision.label} {runs}"
            fix = "use --framework-version 0.19 of megatron_lm, or 0.6 of megatron_bridge"
            raise UserError("model.experimental_attention_variant", "dsa", reason, fix)
        if not SETTINGS["use_fused_weighted_squared_relu"].in_release(revision):
            model = replace(model, use_fused_weighted_squared_relu=False)
        engine = model.cross_entropy_fusion is CrossEntropyFusion.TE
        if engine and revision.refuses_engine_loss and "cross_entropy_fusion" not in given:
            model = replace(model, cross_entropy_fusion=CrossEntropyFusion.NATIVE)
        flex = model.moe_token_dispatcher_type is TokenDispatcher.FLEX
        if not flex and "moe_flex_dispatcher_backend" not in given:
            model = replace(model, moe_flex_dispatcher_backend=FlexBackend.DEEPEP)
        if config.cuda_graph_impl is not CudaGraphImpl.NONE or config.cuda_graph_modules:
            from advisor.frameworks.megatron.job_graphs import as_captured

            config = as_captured(model, config, given, revision)
        reduced, half = config.main_grads_dtype, config.precision is Precision.FP16
        if half and (reduced is not DType.FP32 or "job.main_grads_dtype" not in given):
            reduced = DType.FP16
        release = config.transformer_engine_version or revision.transformer_engine
        return model, replace(
            config,
            main_grads_dtype=reduced,
            transformer_engine_version=release,
            create_attention_mask=self._loads_attention_mask(config),
            fp8_recipe=self._optimizer_recipe(config),
        )

    def _optimizer_recipe(self, config: JobConfig) -> Fp8Recipe:
        """Without FP8 the one that Megatron-LM's argument has by default, or Bridge's bf16_mixed
        and bf16_with_nvfp4_mixed (training/mixed_precision.py, v0.2 to v0.6.2)."""
        bridge = self.framework == Framework.MEGATRON_BRIDGE
        default = Fp8Recipe.TENSORWISE if bridge else Fp8Recipe.DELAYED
        return RECIPES_OF_PRECISIONS.get(config.precision, config.fp8_recipe or default)

    def _loads_attention_mask(self, config: JobConfig) -> bool:
        """In Megatron-LM alone, and not with packed sequences, where it is not said: Bridge 0.6
        leaves it out (training/config.py, skip_getting_attention_mask_from_dataset), NeMo 2 makes
        none with Transformer Engine (llm/gpt/data/pre_training.py)."""
        if config.create_attention_mask is not None:
            return config.create_attention_mask
        return self._is_lm and not config.is_packed

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """Degrees decide. Of NeMo Megatron-FSDP is not modelled."""
        sharding, outer = given.get("data_parallel_sharding"), given.get(_OUTER, _WHOLE)
        if sharding is not None and self.framework == Framework.NEMO:
            reason = "Megatron-FSDP is not modelled for nemo"
            raise UserError("layout.data_parallel_sharding", sharding, reason, "leave it out")
        if outer is not _WHOLE and (outer, sharding) != _FULLY_SHARDED:
            nearest = f"layout.{_OUTER}=optimizer with layout.data_parallel_sharding=full"
            raise UserError(f"layout.{_OUTER}", outer, "is not modelled", nearest)
        if given.get("double_buffers") and sharding is None:
            reason = "needs layout.data_parallel_sharding"
            raise UserError("layout.double_buffers", True, reason, "leave it out")
        replicas = given.get("data_parallel_replicate_size", 1)
        if replicas > 1 and sharding is None and not given.get("use_distributed_optimizer", True):
            reason = "needs layout.use_distributed_optimizer"
            raise UserError("layout.data_parallel_replicate_size", replicas, reason, "use 1")
        ranks = num_gpus // max(1, prod(given.get(name, 1) for name in _SHAPING))
        if replicas < 1 or ranks % replicas:
            nearest = f"nearest: {nearest_divisors(ranks, replicas)}"
            reason = f"must divide the data-parallel ranks = {ranks}"
            raise UserError("layout.data_parallel_replicate_size", replicas, reason, nearest)
        if replicas > 1 and given.get("expert_model_parallel_size", 1) > 1:
            reason = "replicas of shards are not modelled with EP"
            raise UserError("layout.data_parallel_replicate_size", replicas, reason, "use 1")
        return None

    def splits(self, config: JobConfig) -> LayerSplits:
        """By numbers of layers at the ends, and from 0.13 on by a text."""
        release = resolve_revision(self.framework, config.framework_version)
        return LayerSplits(release.splits_unevenly, release.splits_by_text)

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """See option_changes.changes."""
        from advisor.frameworks.megatron.option_changes import changes

        yield from changes(job, self.framework, loads_mask=self._loads_attention_mask(job.config))
        yield from head_changes(job)


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
_CONFIG_DEFAULTS: Final = defaults(JobConfig)


def harness_config(config: JobConfig) -> JobConfig:
    """Its mock data has no mask, experts get equal shares, nothing is captured in CUDA graphs,
    optimizer states are fp32 and not on the host."""
    plain: dict[str, Any] = {name: _CONFIG_DEFAULTS[name] for name in _PLAIN_FIELDS}
    own = {"create_attention_mask": False, "moe_router_force_load_balancing": True}
    return replace(config, **own, **plain)


def harness_job(job: Job) -> Job:
    """UserError where its context parallelism or sharding is of a kind that the backend lacks."""
    layout = job.layout
    if layout.data_parallel_sharding is not None:
        reason = "is not run by the megatron_core backend"
        raise UserError("layout.data_parallel_sharding", layout.data_parallel_sharding, reason)
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.P2P:
        reason = "must be p2p on the megatron_core backend"
        raise UserError("layout.cp_comm_type", str(layout.cp_comm_type), reason)
    config = harness_config(job.config)
    if job.model.num_moe_experts is None:
        routes = job.config.moe_router_force_load_balancing
        config = replace(config, moe_router_force_load_balancing=routes)
    return replace(job, config=config)
