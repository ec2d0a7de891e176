"""What the PyTorch stacks have in common, and plain PyTorch with FSDP2 itself."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.units import either
from advisor.frameworks.defaults import AdapterDefaults
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Option, names_by_field
from advisor.frameworks.own_options import (
    ADAM_KERNELS,
    ATTENTION,
    COMPILE,
    FLAT_PARAMETERS,
    LIGER,
    QUANTIZED_ADAM,
    STEP_IN_BACKWARD,
    TILED_MLP,
    WEIGHTS_DTYPE,
)
from advisor.frameworks.protocols import Degrees, FixedMemory, JobEvaluator, RulesOverview, Solved
from advisor.frameworks.torch.block_regimes import BlockRegime
from advisor.frameworks.torch.block_rules import block_problems
from advisor.frameworks.torch.budget import is_known, kernels_note
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.rules import (
    Problem,
    block_shape,
    configured,
    data_parallel_layout,
    foreign_word,
    refused_layout,
    shared_problems,
)
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Granularity,
    Modifier,
    OpPolicy,
    TorchSetting,
    budget,
    by_block,
    every,
    op,
    parse_setting,
    sequential,
    uniform,
    with_options,
)
from advisor.frameworks.torch.snippet import snippet
from advisor.frameworks.torch.static import eager_memory
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import LayerKind
from advisor.models.options import CpCommType, TransformerImpl
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import RecomputePlan, Setting

_AS_WITHOUT: Final = (
    "torch.compile is not modelled for these layers: memory is predicted without torch.compile, "
    "and compiled layers need less"
)
_PLAN_NOTE: Final = (
    "write the plan with --format file > recompute_plan.py; call its apply_plan(model.layers)"
)


class TorchStack(AdapterDefaults):
    """A stack of data and context parallelism; subclasses say what differs. context_kinds: the
    first is what it does unless told otherwise."""

    versions: ClassVar[tuple[str, ...]]
    newest_with_experts: ClassVar[str | None] = None
    label: ClassVar[str]
    impl: ClassVar[TransformerImpl] = TransformerImpl.TORCH
    granularities: ClassVar[tuple[Granularity, ...]]
    policies: ClassVar[tuple[OpPolicy, ...]] = ()
    options: ClassVar[tuple[Modifier, ...]] = ()
    shardings: ClassVar[tuple[DataParallelSharding, ...]] = (
        DataParallelSharding.FULL,
        DataParallelSharding.GRADIENTS,
    )
    context_kinds: ClassVar[tuple[CpCommType, ...]] = (CpCommType.ALL_GATHER, CpCommType.P2P)
    precisions: ClassVar[tuple[Precision, ...]] = (Precision.BF16,)
    source: ClassVar[str]
    key_options: ClassVar[Collection[Option]] = ()

    @property
    def none(self) -> Setting:
        """No recompute."""
        return NONE

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """A known release, by its first two numbers or in full."""
        newest = self.versions[-1]
        if model is not None and model.num_moe_experts is not None:
            newest = self.newest_with_experts or newest
        wanted = text.strip().lower().removeprefix("v") or newest
        for version in self.versions:
            if wanted == version or wanted.startswith(f"{version}."):
                return version
        raise UserError(
            "--framework-version",
            text,
            f"is not a known version of {self.framework}",
            f"use {either(self.versions)}",
        )

    def rules_overview(self, version: str) -> RulesOverview:
        """Found by asking, on a dense model on one node."""
        from advisor.frameworks.torch.rule_catalogue import overview

        return overview(self, self._some_job(version))

    def _some_job(self, version: str) -> Job:
        config = JobConfig(
            seq_length=4096,
            micro_batch_size=1,
            global_batch_size=128,
            framework=self.framework,
            framework_version=self.version(version),
        )
        model, config = self.configure(load_model("llama3_8b"), config, frozenset())
        layout = self.layout({}, 8)
        assert layout is not None
        return Job(model=model, layout=layout, config=config, gpu=load_gpu("H100"), num_gpus=8)

    def option_names(self) -> Mapping[str, Collection[str]]:
        """Keys of its configuration."""
        return names_by_field(self.key_options)

    def words(self, job: Job) -> str:
        """``torchtitan 0.2 with torch layers``."""
        layers = f"{job.model.transformer_impl} layers"
        return f"{self.label} {job.config.framework_version} with {layers}"

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """See rules.configured."""
        self.check_options(config)
        known, version = self.newest_with_experts, config.framework_version
        if model.num_moe_experts is not None and known not in (None, version):
            raise UserError(
                "--framework-version",
                version,
                "has MoE layers of another kind, which are not modelled",
                f"use --framework-version {known}",
            )
        return configured(self.framework, model, config, self.impl, given, self.precisions)

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """Data parallel, and context parallel where that is asked for."""
        return self._layout(given, num_gpus)

    @property
    def degrees(self) -> Degrees:
        """Data and context parallelism."""
        return Degrees(context=self.context_kinds, shardings=self.shardings)

    def _layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout:
        known = self.shardings, self.context_kinds
        return data_parallel_layout(self.framework, given, num_gpus, *known)

    def parse(self, text: str) -> Setting:
        """A SPEC of the PyTorch stacks."""
        return parse_setting(text)

    def candidates(self, job: Job) -> tuple[Setting, ...]:
        """Those of `tried` that are legal."""
        return tuple(setting for setting in self.tried(job) if not self.check(setting, job))

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """Settings of the other stacks, and own ones that come to nothing, one reason each."""
        found = (self.check(setting, job) for setting in _every_setting(job))
        return tuple(reasons[0] for reasons in found if reasons)

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """Settings in the framework's words; a budget is evaluated when it is asked for, as it
        needs torch.compile."""
        return tuple(setting for setting in _every_setting(job) if self._words(setting))

    def _words(self, setting: TorchSetting) -> bool:
        own = setting.granularity in self.granularities
        own = own and all(option in self.options for option in setting.options)
        return own and (setting.policy is None or setting.policy in self.policies)

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """Every rule against it."""
        own = as_torch(setting)
        found = [*self._layout_problems(job)] or [*self._problems(own, job)]
        return tuple(problem.rejection(own) for problem in found)

    def _layout_problems(self, job: Job) -> Iterator[Problem]:
        yield from refused_layout(job, self.context_kinds)

    def _problems(self, setting: TorchSetting, job: Job) -> Iterator[Problem]:
        yield from foreign_word(self.framework, setting, self.granularities, self.source)
        if setting.policy is not None and setting.policy not in self.policies:
            reason = f"{self.framework} has no policy {setting.policy}"
            fix = f"use {either(self.policies)}" if self.policies else "use none"
            yield Problem("op.unknown_policy", reason, fix, self.source)
        for option in setting.options:
            if option not in self.options:
                reason = f"{self.framework} has no option {option}"
                fix = f"use {either(self.options)}" if self.options else "leave it out"
                yield Problem("option.unknown_to_framework", reason, fix, self.source)
        yield from shared_problems(setting, job)
        if setting.granularity in self.granularities:
            yield from block_problems(setting.blocks, job)

    def semantics(self, job: Job) -> Semantics:
        """How checkpoints run in the job's version."""
        return Semantics()

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Remarks: what else a budget may keep, and whether what a compiler keeps is known."""
        own = as_torch(setting)
        if own.blocks:
            return (*self._unknown_to_compiler(job), _PLAN_NOTE)
        if own.budget is None:
            return tuple(self._unknown_to_compiler(job))
        kind, kernel = job.model.layer_kinds[0], self.semantics(job).attention
        note = kernels_note(block_shape(job), kind, own.budget, kernel)
        return (note,) if note else ()

    def _unknown_to_compiler(self, job: Job) -> Iterator[str]:
        if self.compiles_blocks(job):
            known = (is_known(block_shape(job), kind) for kind in {*job.model.layer_kinds})
            if not all(known):
                yield _AS_WITHOUT

    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """See plan.chunk_plan."""
        how = replace(self.semantics(job), compiled=self.compiles_blocks(job))
        return chunk_plan(as_torch(setting), shape, layers, how)

    def solved(self, evaluator: JobEvaluator) -> Solved | None:
        """See optimum.solve.solved; None where blocks cannot be told one by one."""
        job, (stage,) = evaluator.job, evaluator.stages
        if self.check(by_block((BlockRegime(),) * job.model.num_layers), job):
            return None
        from advisor.frameworks.torch.optimum.solve import solved

        how = replace(self.semantics(job), compiled=self.compiles_blocks(job))
        found = solved(evaluator, how, self.fixed_memory(job, evaluator.shape, stage))
        if found is None:
            return None
        settings = dict.fromkeys(self._in_own_words(one, evaluator) for one in found.settings)
        return replace(found, settings=(*settings, *self._budgets(job)))

    def _in_own_words(self, setting: Setting, evaluator: JobEvaluator) -> Setting:
        """The framework's own setting that comes to the same, if there is one."""
        job, (stage,) = evaluator.job, evaluator.stages
        layers = tuple(kind for chunk in stage for kind in chunk.layers)

        def plan(one: Setting) -> RecomputePlan:
            return self.plan(one, evaluator.shape, layers, job)

        same = (own for own in self.candidates(job) if plan(own) == plan(setting))
        return next(same, setting)

    def _budgets(self, job: Job) -> Iterator[TorchSetting]:
        """Budgets of torch.compile, to stand beside a plan of compiled blocks."""
        if self.compiles_blocks(job):
            every = (budget(tenths / 10) for tenths in range(1, 10))
            yield from (one for one in every if not self.check(one, job))

    def config_file(self, setting: Setting, job: Job) -> str:
        """A plan of blocks as the module that runs it; UserError for all else."""
        if not as_torch(setting).blocks:
            return super().config_file(setting, job)
        from advisor.frameworks.torch.optimum.plan_file import plan_file

        return plan_file(as_torch(setting), block_shape(job))

    def compiles_blocks(self, job: Job) -> bool:
        """Whether a block is one graph of torch.compile."""
        return job.config.torch_compile

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """FSDP2 with embedding and head in the root's group; one device in 16 bits."""
        return eager_memory(job, shape, chunks, root_holds_ends=True)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The setting as the framework reads it."""
        raise NotImplementedError

    def assumed_flags(self, job: Job) -> str:
        """Nothing beside layout_flags."""
        return ""

    def layout_flags(self, job: Job) -> str:
        """Nothing: part of setting_flags."""
        return ""

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """The allocator's option."""
        if not job.config.expandable_segments:
            return ()
        return ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)


class Fsdp2(TorchStack):
    """Plain PyTorch: checkpoint_wrapper on blocks, then fully_shard on blocks and model."""

    framework = Framework.FSDP2
    versions = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13")
    label = "PyTorch FSDP2"
    command_dialect = "other"
    own_options = (
        WEIGHTS_DTYPE,
        ADAM_KERNELS,
        QUANTIZED_ADAM,
        STEP_IN_BACKWARD,
        COMPILE,
        ATTENTION,
        LIGER,
        TILED_MLP,
        FLAT_PARAMETERS,
    )
    granularities = (
        Granularity.NONE,
        Granularity.FULL,
        Granularity.SELECTIVE,
        Granularity.SEQUENTIAL,
        Granularity.OP,
        Granularity.BUDGET,
        Granularity.BLOCKS,
    )
    policies = (OpPolicy.SAVE_ATTENTION, OpPolicy.SAVE_MATMUL)
    options = (Modifier.OFFLOAD,)
    source = "torch 2.13 utils/checkpoint.py, checkpoint_wrapper.py"

    def _problems(self, setting: TorchSetting, job: Job) -> Iterator[Problem]:
        yield from super()._problems(setting, job)
        cut = setting.granularity is Granularity.SEQUENTIAL and job.num_gpus > 1
        if cut and setting.use_reentrant:
            reason = (
                "with use_reentrant the first replayed segment ends FSDP2's backward for all groups"
            )
            source = "torch 2.13 fully_shard/_fsdp_state.py _root_post_backward_final_callback"
            fix = "leave +use_reentrant out"
            yield Problem("checkpoint_sequential.reentrant", reason, fix, source)
        if cut and job.config.flat_parameters:
            reason = "a segment spans several of FSDP1's groups, which is not modelled"
            yield Problem("checkpoint_sequential.fsdp1", reason, "selective or full", "advisor")
        if setting.granularity is Granularity.SEQUENTIAL and setting.options:
            reason = "offload_wrapper takes a module, but checkpoint_sequential takes functions"
            fix = "full+offload"
            source = "torch 2.13 checkpoint_wrapper.py"
            yield Problem("checkpoint_sequential.offload", reason, fix, source)

    def takes_flags(self, job: Job) -> bool:
        """It is told in Python."""
        return False

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Python: `blocks` are the model's transformer blocks."""
        return snippet(as_torch(setting), job)


def as_torch(setting: Setting) -> TorchSetting:
    """The setting as one of the PyTorch stacks."""
    assert isinstance(setting, TorchSetting), f"{setting!r} is not a setting of a PyTorch stack"
    return setting


def _every_setting(job: Job) -> Iterator[TorchSetting]:
    """What any of the stacks may be asked for, in the order of what it saves."""
    layers = job.model.num_layers
    yield NONE
    yield FULL
    for option in (Modifier.OFFLOAD, Modifier.CPU_CHECKPOINTING):
        yield with_options(FULL, option)
    for number in (2, 3, 4, 6, 8):
        if number <= layers:
            yield every(number)
    yield from (op(policy) for policy in OpPolicy)
    root = max(2, round(layers**0.5))  # Chen et al., arXiv 1604.06174: sqrt(N) segments
    for number in dict.fromkeys((2, root, layers)):
        if 1 < number <= layers:
            yield sequential(number)
    for number in (2, root):
        if number <= layers:
            yield uniform(number)
