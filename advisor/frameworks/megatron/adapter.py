"""Megatron-LM, Megatron Bridge and NeMo as the advisor asks for them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.frameworks.megatron.bridge import (
    assumed_overrides,
    bridge_layout_overrides,
    bridge_overrides,
    left_to_bridge,
)
from advisor.frameworks.megatron.buffers import last_inputs, stage_buffers, stream_pools
from advisor.frameworks.megatron.candidates import (
    enumerate_settings,
    rejected_settings,
    settings_to_try,
)
from advisor.frameworks.megatron.flags import (
    assumed_flags,
    environment,
    layout_flags,
    megatron_lm_flags,
)
from advisor.frameworks.megatron.muon import (
    STATIC_LABELS,
    check_release,
    muon_memory,
    without_narrow_weights,
)
from advisor.frameworks.megatron.nemo import (
    left_to_nemo,
    nemo_layout_overrides,
    nemo_overrides,
)
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.plan import (
    chunk_plan,
    copies_outputs_of,
    of_release,
    reads_full_recompute,
)
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.megatron.rules import check, notes, remarks
from advisor.frameworks.megatron.setting import (
    NONE,
    Granularity,
    RecomputeSetting,
    parse_setting,
)
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Option, names_by_field
from advisor.frameworks.own_options import (
    DETERMINISTIC,
    HOST_OPTIMIZER,
    MEGATRONS,
    MUON,
    PACKED,
    refuse_options,
)
from advisor.frameworks.protocols import (
    Decisions,
    Degrees,
    FixedMemory,
    JobChange,
    JobEvaluator,
    LayerSplits,
    RulesOverview,
    Solved,
    no_file,
)
from advisor.job.job import RECIPES_OF_PRECISIONS, CudaGraphImpl, Fp8Recipe, Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.memory.static import (
    GRADIENT_COPIES,
    STATE_COPIES,
    StaticMemory,
    fp32_states,
    gradient_copies,
    stage_elements,
    stage_expert_elements,
    static_memory,
)
from advisor.models.layer_kind import LayerKind
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import (
    AttentionBackend,
    CpCommType,
    FlexBackend,
    TokenDispatcher,
    TransformerImpl,
)
from advisor.models.spec import ModelSpec
from advisor.models.variants import of_providers
from advisor.plan.recompute_plan import RecomputePlan, Setting


class Megatron(Struct, frozen=True):
    """One of the three; the others' flags are those of their own newest release."""

    framework: Framework

    @property
    def family(self) -> tuple[str, ...]:
        """All three: they take the same settings."""
        return Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, Framework.NEMO

    @property
    def none(self) -> Setting:
        """No recompute."""
        return NONE

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """The release that `text` means."""
        return resolve_revision(self.framework, text).version

    def builds(self, model: ModelSpec) -> bool:
        """Megatron's own layers; those that need a provider's modules Bridge and NeMo alone."""
        provided = next(of_providers(model), None) is not None
        return not model.transformer_impl.is_eager and not (self._is_lm and provided)

    def recipe_options(
        self, model: ModelSpec, precision: Precision, version: str
    ) -> Mapping[str, Any] | None:
        """See library.recipe_options; Megatron-LM has command lines alone."""
        if self._is_lm:
            return None
        from advisor.frameworks.megatron.library import recipe_options

        return recipe_options(self.framework, model, precision, version)

    def for_recipe(self, framework: str | None) -> str:
        """NeMo builds what Bridge builds."""
        bridge = self.framework == Framework.MEGATRON_BRIDGE
        return Framework.NEMO if bridge and framework == Framework.NEMO else self.framework

    @property
    def shown(self) -> tuple[str, ...]:
        """The two that everybody uses."""
        return Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """See option_changes.changes."""
        from advisor.frameworks.megatron.option_changes import changes

        return changes(job, self.framework, loads_mask=self._loads_attention_mask(job.config))

    def rules_overview(self, version: str) -> RulesOverview:
        """See rules_overview.overview."""
        from advisor.frameworks.megatron.rules_overview import overview

        return overview(resolve_revision(self.framework, version))

    def splits(self, config: JobConfig) -> LayerSplits:
        """By numbers of layers at the ends, and from 0.13 on by a text."""
        release = resolve_revision(self.framework, config.framework_version)
        return LayerSplits(release.splits_unevenly, release.splits_by_text)

    def check_options(self, config: JobConfig) -> None:
        """NeMo has no Muon; the optimizer on the host is the precision-aware one; see also
        muon.check_release."""
        muon = () if self.framework == Framework.NEMO else (MUON,)
        refuse_options(
            config, self.framework, (HOST_OPTIMIZER, DETERMINISTIC, PACKED, *MEGATRONS, *muon)
        )
        if config.optimizer_cpu_offload and not config.use_precision_aware_optimizer:
            raise UserError(
                "job.optimizer_cpu_offload",
                True,
                "needs the precision-aware optimizer",
                "set job.use_precision_aware_optimizer=true",
            )
        check_release(config, resolve_revision(self.framework, config.framework_version))

    def words(self, job: Job) -> str:
        """``Megatron Core 0.19 with Transformer Engine``; the others name their version as well."""
        revision = self._revision(job)
        core = f"Megatron Core {revision.core}"
        if not self._is_lm:
            name = "NeMo" if self.framework == Framework.NEMO else "Megatron Bridge"
            core = f"{name} {revision.version} ({core})"
        local = job.model.transformer_impl is TransformerImpl.LOCAL
        return f"{core} with {'local layers' if local else 'Transformer Engine'}"

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """With the Transformer Engine that the release asks for, and without what of a recipe it
        cannot capture or does not read. Megatron has no layers of other frameworks, and its own
        core attention none of multi-latent attention."""
        self._check_variants(model)
        if model.transformer_impl.is_eager:
            raise UserError(
                "model.transformer_impl",
                model.transformer_impl,
                f"is not available in {self.framework}",
                "transformer_engine or local",
            )
        unfused = model.attention_backend in (AttentionBackend.AUTO, AttentionBackend.UNFUSED)
        local = model.transformer_impl is TransformerImpl.LOCAL
        if model.multi_latent_attention and local and unfused:
            raise UserError(
                "model.transformer_impl",
                model.transformer_impl,
                "has a core attention that does not accept the head dimensions of latent "
                "attention (dot_product_attention.py)",
                "use transformer_engine",
            )
        linear = {kind.mixer for kind in model.layer_kinds} & LINEAR_MIXERS
        if local and linear:
            raise UserError(
                "model.transformer_impl",
                model.transformer_impl,
                f"has no {' or '.join(sorted(linear))} layers (their specs need Transformer "
                "Engine)",
                "use transformer_engine",
            )
        self.check_options(config)
        revision = resolve_revision(self.framework, config.framework_version)
        if not SETTINGS["use_fused_weighted_squared_relu"].in_release(revision):
            model = replace(model, use_fused_weighted_squared_relu=False)
        flex = model.moe_token_dispatcher_type is TokenDispatcher.FLEX
        if not flex and "moe_flex_dispatcher_backend" not in given:
            model = replace(model, moe_flex_dispatcher_backend=FlexBackend.DEEPEP)
        if config.cuda_graph_impl is not CudaGraphImpl.NONE or config.cuda_graph_modules:
            from advisor.frameworks.megatron.job_graphs import as_captured

            config = as_captured(model, config, given, revision)
        release = config.transformer_engine_version or revision.transformer_engine
        return model, replace(
            config,
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
        return self._is_lm and config.mean_packed_length is None

    def _check_variants(self, model: ModelSpec) -> None:
        """Refuse the blocks that only transformers has, or only Bridge and NeMo."""
        field = next(of_providers(model), "")
        foreign = model.transformer_impl.is_eager
        if field and (foreign or self._is_lm):
            name = "Megatron Core" if foreign else "Megatron-LM's command line"
            raise UserError(
                f"model.{field}",
                getattr(model, field),
                f"{name} has no such layers",
                f"use --framework {'huggingface' if foreign else 'megatron_bridge'}",
            )

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """Degrees decide; a sharding of other frameworks is refused."""
        if given.get("data_parallel_sharding") is not None:
            raise UserError(
                "layout.data_parallel_sharding",
                given["data_parallel_sharding"],
                f"{self.framework} shards with use_distributed_optimizer",
                "leave it out",
            )
        return None

    @property
    def degrees(self) -> Degrees:
        """All of them; the distributed optimizer is no sharding of the others' kind."""
        return Degrees(tensor=True, pipeline=True, experts=True, context=tuple(CpCommType))

    def parse(self, text: str) -> Setting:
        """A SPEC of Megatron."""
        return parse_setting(text)

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """See candidates.settings_to_try."""
        return settings_to_try(job, self._revision(job))

    def candidates(self, job: Job) -> tuple[Setting, ...]:
        """See candidates.enumerate_settings."""
        return enumerate_settings(job, self._revision(job))

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """See candidates.rejected_settings."""
        return rejected_settings(job, self._revision(job))

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """The rules that refuse it."""
        return check(_own(setting), job, self._revision(job))

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """The rules that say something of it."""
        return notes(_own(setting), job, self._revision(job))

    def remarks(self, job: Job) -> tuple[str, ...]:
        """Options that it does not read beside others, and those that no prediction counts."""
        return remarks(job, self._revision(job))

    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """See plan.chunk_plan; full recompute that a release does not read is none."""
        own, revision = _own(setting), self._revision(job)
        if own.granularity is Granularity.FULL:
            pattern = shape.model.hybrid_layer_pattern
            own = own if pattern is None or reads_full_recompute(pattern, revision) else NONE
        copies = copies_outputs_of(revision)
        return chunk_plan(own, shape.model, layers, job.layout.sequence_parallel, copies)

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """See of_release."""
        overlaps = job.layout.overlap_moe_expert_parallel_comm
        return of_release(shape, self._revision(job), overlaps_exchange=overlaps)

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """16-bit weights, the gradient buffer, the optimizer's shard, Megatron's own buffers."""
        buffers = stage_buffers(shape, chunks, job.gpu)
        if job.config.optimizer.is_muon:
            return muon_memory(job, self._revision(job), shape, chunks, buffers)
        config, static = job.config, StaticMemory(weights=0, gradients=0, optimizer=0)
        largest = 0
        for elements, shards in _gradient_buffers(shape, chunks, job.layout):
            static += static_memory(
                elements, shards, config.main_grads_dtype, config.optimizer_bytes
            )
            largest = max(largest, -(-elements // shards))
        stays = 1 - config.offloaded_fraction
        static = replace(static, optimizer=int(stays * static.optimizer))
        static = without_narrow_weights(static, config, shape, chunks)
        gradients, states = (
            gradient_copies(static, config),
            int(stays * largest) * fp32_states(config),
        )
        return FixedMemory(
            static=static,
            words=STATIC_LABELS,
            buffers=buffers,
            optimizer_step=gradients + states + last_inputs(shape, chunks),
            step_words=STATE_COPIES if states > gradients else GRADIENT_COPIES,
            pools=stream_pools(
                shape,
                chunks,
                overlaps_exchange=job.layout.overlap_moe_expert_parallel_comm,
            ),
            in_buffers=job.layout.use_distributed_optimizer,
        )

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """Those that the job's graphs capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return frozenset()
        from advisor.frameworks.megatron.graphed import graphed_modules

        return graphed_modules(job)

    def reductions(self, job: Job) -> int:
        """The last one."""
        return 1

    def graph_capture(self, job: Job) -> Capture | None:
        """See graphed.graph_capture."""
        if job.config.cuda_graph_impl is CudaGraphImpl.NONE:
            return None
        from advisor.frameworks.megatron.graphed import graph_capture

        return graph_capture(job)

    def graph_inputs(self, job: Job, shape: RankShape, layers: tuple[LayerKind, ...]) -> int:
        """See graphed.graph_inputs."""
        from advisor.frameworks.megatron.graphed import graph_inputs

        return graph_inputs(job.config, shape, layers)

    def graph_buffers(self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
        """See graphed.graph_buffers."""
        from advisor.frameworks.megatron.graphed import graph_buffers

        return graph_buffers(job, shape, chunks, self._revision(job))

    def rehearsed_by(self, number: int) -> str:
        """The same layers under all three."""
        return "Megatron Core"

    def takes_flags(self, job: Job) -> bool:
        """All three do."""
        return True

    def unverified(self, job: Job) -> str:
        """Transformer Engine, which needs a GPU: Megatron's own layers stand in for it."""
        engine = job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
        return "Transformer Engine" if engine else ""

    def option_names(self) -> Mapping[str, Collection[str]]:
        """Flags of Megatron-LM, paths in a configuration of Bridge and NeMo."""
        name: Callable[[Option], str] = {
            Framework.MEGATRON_BRIDGE: lambda row: row.bridge,
            Framework.NEMO: lambda row: row.nemo,
        }.get(self.framework, lambda row: row.flag or row.off)
        return names_by_field(SETTINGS.values(), name)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Options of the command line, or overrides."""
        write = {
            Framework.MEGATRON_LM: megatron_lm_flags,
            Framework.NEMO: nemo_overrides,
        }.get(self.framework, bridge_overrides)
        return write(_own(setting), job, self._revision(job))

    def assumed_flags(self, job: Job) -> str:
        """See flags.assumed_flags, bridge.assumed_overrides; NeMo's recipes have their own."""
        if self.framework == Framework.NEMO:
            return ""
        write = assumed_flags if self._is_lm else assumed_overrides
        return write(job, self._revision(job))

    def layout_flags(self, job: Job) -> str:
        """Degrees and batch, and what else the framework takes from the command line."""
        write = {
            Framework.MEGATRON_LM: layout_flags,
            Framework.NEMO: nemo_layout_overrides,
        }.get(self.framework, bridge_layout_overrides)
        return write(job, self._revision(job))

    def harness_words(self, job: Job) -> tuple[str, ...]:
        """Megatron Core itself, as the harness runs it."""
        return "backend=megatron_core", "device=cuda"

    def harness_job(self, job: Job) -> Job:
        """See on_harness.harness_job."""
        from advisor.frameworks.megatron.on_harness import harness_job

        return harness_job(job)

    def unsaid(self, job: Job) -> str:
        """Of a command line of Megatron-LM nothing."""
        if self._is_lm:
            return ""
        return left_to_nemo(job) if self.framework == Framework.NEMO else left_to_bridge(job)

    def config_file(self, setting: Setting, job: Job) -> str:
        """It reads none."""
        raise no_file(job.config.framework)

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """See flags.environment."""
        return environment(_own(setting), job, self._revision(job))

    def decisions(self, job: Job) -> Decisions | None:
        """See expressible.expressible_settings."""
        from advisor.frameworks.megatron.expressible import decisions_of

        return decisions_of(job, self._revision(job))

    def solved(self, evaluator: JobEvaluator) -> Solved | None:
        """It has no solver of its own."""
        return None

    @property
    def _is_lm(self) -> bool:
        return self.framework == Framework.MEGATRON_LM

    def _revision(self, job: Job) -> Revision:
        """The job's release of its own framework; the newest one of the other framework."""
        own = (job.config.framework or Framework.MEGATRON_LM) == self.framework
        return resolve_revision(self.framework, job.config.framework_version if own else "")


def _gradient_buffers(
    shape: RankShape, chunks: tuple[ModelChunk, ...], layout: ParallelLayout
) -> Iterator[tuple[int, int]]:
    """Parameters of each gradient buffer, and the shards of their optimizer: the routed experts'
    are apart under expert parallelism."""
    experts = 0
    if layout.expert_model_parallel_size > 1:
        experts = stage_expert_elements(shape, chunks)
        yield experts, layout.expert_optimizer_shards
    yield stage_elements(shape, chunks) - experts, layout.optimizer_shards


def _own(setting: Setting) -> RecomputeSetting:
    assert isinstance(setting, RecomputeSetting), f"{setting!r} is not a setting of Megatron"
    return setting
