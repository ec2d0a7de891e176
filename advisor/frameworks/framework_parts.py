"""What the advisor asks of a framework, in parts; everything else knows no framework by name.

A part says here what most frameworks answer alike: a framework alone in its family that runs models
of eager torch layers, shards by data parallelism, and reads no file. What has no such answer is
abstract. Callers take the parts that they need, never a framework as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.frameworks import part_types
from advisor.frameworks.own_options import refuse_options
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import LayerKind
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import RecomputePlan, Setting
from advisor.time.step_tail import Turns


class RecomputeSettings(ABC):
    """The settings of a framework: how they are written, which are worth a try, which it refuses.
    none: no recompute."""

    none: Setting

    @abstractmethod
    def parse(self, text: str) -> Setting:
        """Read a SPEC; UserError on what the framework has no word for."""

    @abstractmethod
    def tried(self, job: Job) -> tuple[Setting, ...]:
        """Settings that differ in what they keep or replay; `check` may refuse some."""

    @abstractmethod
    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """Why no training comes of `setting` in `job`; empty for a legal setting."""

    @abstractmethod
    def rules_overview(self, version: str) -> part_types.RulesOverview:
        """What a release takes, and every rule of it."""

    def check_job(self, job: Job) -> tuple[Rejection, ...]:
        """Why no training comes of `job` without recompute; empty for a legal job."""
        return self.check(self.none, job)

    def candidates(self, job: Job) -> tuple[Setting, ...]:
        """Those of `tried` that are legal."""
        return tuple(setting for setting in self.tried(job) if not self.check(setting, job))

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """Settings that a user might try and that come to nothing."""
        return ()

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """What is to be said of a legal setting."""
        return ()

    def remarks(self, job: Job) -> tuple[str, ...]:
        """What is to be said of the job under any setting."""
        return ()


class JobSupport(ABC):
    """Which jobs a framework runs, and how it completes them.

    framework: its name. own_options: see own_options.refuse_options. degrees: those of a layout
    that a search may choose. untuned: switches of a job that are not modelled next to an adapter or
    with frozen weights. precisions: those that are modelled. sees: whether vision towers are.
    A version is what JobConfig.framework_version holds.
    """

    framework: str
    own_options: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    degrees: part_types.Degrees = part_types.Degrees()
    precisions: tuple[Precision, ...] = tuple(Precision)
    sees: bool = False

    @abstractmethod
    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """The known version that `text` means; empty means the newest, of those that have layers
        for `model`. UserError otherwise."""

    @abstractmethod
    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """Model and job as the framework runs them, except the fields `given` by the user, the
        model's by name and ``job.NAME``; UserError where it cannot run them."""

    @abstractmethod
    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """The layout that `given` fields mean; None: pipeline and tensor degrees decide."""

    def builds(self, model: ModelSpec, *, adapted: bool = False) -> bool:
        """Whether it has the model's layers, with adapters if they are `adapted`: the first that
        has builds what names no framework."""
        return model.transformer_impl.is_eager

    def recipe_options(
        self, model: ModelSpec, precision: Precision, version: str
    ) -> Mapping[str, Any] | None:
        """Fields of a job, by name, that the framework's recipes set unless they say otherwise;
        None where a job starts from no recipe of the framework's."""
        return None

    def for_recipe(self, framework: str | None) -> str:
        """The framework of its family that runs a recipe of `framework`, where none is named."""
        return self.framework

    def check_options(self, config: JobConfig) -> None:
        """Raise UserError on options of the job that the framework or its release has not."""
        refuse_options(config, self.framework, self.own_options)

    def splits(self, config: JobConfig) -> part_types.LayerSplits:
        """How its release can be set to split layers that PP does not divide."""
        return part_types.LayerSplits()

    def job_changes(self, job: Job) -> Iterator[part_types.JobChange]:
        """Changes of its own options by which the job may need less memory or time."""
        return iter(())


class MemoryModel(ABC):
    """What a setting makes a framework keep, and what it holds whatever is recomputed.

    parameter_seconds, runs_compiled: see step_tail.StepFacts.
    """

    parameter_seconds: ClassVar[float] = 0.0
    runs_compiled: ClassVar[bool] = True

    @abstractmethod
    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """What one model chunk of `layers` keeps and replays."""

    @abstractmethod
    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """Memory of one stage except its activations."""

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """`shape` as the job's release has it."""
        return shape

    def turns(self, job: Job) -> Turns:
        """Which microbatches gather and reduce."""
        reductions = self.reductions(job)
        return Turns(job.num_microbatches, reductions, reductions)

    def reductions(self, job: Job) -> int:
        """How many microbatches of a step reduce the gradients of sharded parameters."""
        return job.num_microbatches

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """Submodules whose kernels CUDA graphs launch."""
        return frozenset()

    def graph_capture(self, job: Job) -> Capture | None:
        """The operators whose tensors lie in a pool of CUDA graphs; None where there is none."""
        return None

    def graph_inputs(self, job: Job, shape: RankShape, layers: tuple[LayerKind, ...]) -> int:
        """Bytes that the CUDA graphs of one microbatch of a chunk of `layers` have as inputs of
        their own, outside their pool."""
        return 0

    def graph_buffers(self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
        """Bytes that the CUDA graphs of a stage hold in addition to both."""
        return 0


class Spelling(ABC):
    """How a setting and its job are written for a framework."""

    @abstractmethod
    def title(self, job: Job) -> str:
        """Name, version and kind of layers, for the head of a page."""

    @abstractmethod
    def setting_flags(self, setting: Setting, job: Job) -> str:
        """`setting` in the framework's own spelling; empty where its default is meant."""

    def layout_flags(self, job: Job) -> str:
        """Layout, batch and precision of the job."""
        return ""

    def assumed_flags(self, job: Job) -> str:
        """Without these the job is not the one that was predicted."""
        return ""

    def omitted(self, job: Job) -> str:
        """What of the job its flags omit, and where that is set; empty where they say all."""
        return ""

    def takes_flags(self, job: Job) -> bool:
        """Whether a command line takes its flags; else they are statements of Python, or a file in
        JSON."""
        return True

    def option_names(self) -> Mapping[str, Collection[str]]:
        """Its own options, by the field of a job that they mean as `KEY=VALUE` writes it."""
        return {}

    def config_file(self, setting: Setting, job: Job) -> str:
        """Setting and job as the framework's own configuration file; UserError where it reads
        none."""
        reason = f"{job.config.framework} needs no file for this setting"
        raise UserError("--format", "file", reason, "use --format flags")

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """``NAME=value`` of variables without which the flags are refused or mean less."""
        return ()


class HarnessRuns:
    """How the harness runs a framework's jobs: here by the user's own command, which says where the
    setting goes. dialect: in whose words it writes the setting."""

    def __init__(self, framework: str, dialect: str = "") -> None:
        self.framework, self.dialect = framework, dialect or framework

    def overrides(self, job: Job) -> tuple[str, ...]:
        """KEY=VALUE that say to `harness run` who runs the job: a backend of its own, or a command
        that the user puts in."""
        command = ("backend=command", "command=./train.sh {recompute}", "device=cuda")
        return (*command, f"framework={self.dialect}")

    def job(self, job: Job) -> Job:
        """The job as that one runs it; UserError where it does not."""
        return job

    def rehearsed_by(self, number: int) -> str:
        """Whose code runs its layers on fake tensors for ``--verify NUMBER``; UserError where
        nothing does."""
        reason = f"rehearses only Megatron's layers, which {self.framework} does not use"
        raise UserError("--verify", number, reason, "leave it out")

    def unverified(self, job: Job) -> str:
        """What of the job's layers that one does not run; empty where it runs all of them."""
        return ""


class OptimumSpace:
    """What `--search optimum` may decide beyond the menu of settings."""

    def decisions(self, job: Job) -> part_types.Decisions | None:
        """All settings of the job that it can say, for a search over them, micro batches and
        splits of the layers; None where the menu is all."""
        return None

    def solved(self, evaluator: part_types.JobEvaluator) -> part_types.Solved | None:
        """The optimum of one job by the framework's own solver; None where it has none."""
        return None


class FrameworkParts(Struct, frozen=True, kw_only=True):
    """A framework. family: the frameworks that take the same settings, itself among them; shown:
    those of them whose flags every page shows. cycles: whether its programs run phases in turn."""

    family: tuple[str, ...]
    shown: tuple[str, ...]
    settings: RecomputeSettings
    jobs: JobSupport
    memory: MemoryModel
    spelling: Spelling
    harness: HarnessRuns
    optimum: OptimumSpace = OptimumSpace()
    cycles: bool = False
