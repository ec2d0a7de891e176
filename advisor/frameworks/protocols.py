"""What the advisor asks of a framework; everything else knows no framework by name."""

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from msgspec import Struct

from advisor.answer.answer import Rejection
from advisor.answer.evaluation import Evaluation
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DataParallelSharding, ParallelLayout
from advisor.job.pipeline_split import ModelChunk, Stages
from advisor.layers.operators import Capture, Module
from advisor.layers.shape import RankShape
from advisor.memory.resident import NamedBytes
from advisor.memory.static import GRADIENT_COPIES, StaticMemory
from advisor.memory.working_set import WorkingSet
from advisor.models.layer_kind import LayerKind
from advisor.models.options import CpCommType
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import RecomputePlan, Setting
from advisor.time.machine import Machine
from advisor.time.network.fabric import Network


class StaticLabels(Struct, frozen=True, kw_only=True):
    """What StaticMemory's three parts are made of, for reports: name and source of each."""

    weights: tuple[str, str]
    gradients: tuple[str, str]
    optimizer: tuple[str, str]


class FixedMemory(Struct, frozen=True, kw_only=True, dict=True):
    """Memory of one stage that no recompute setting changes.

    optimizer_step: bytes that it takes while it runs, of step_words.
    pools: reserved beside the peak, but not allocated then (caches of other streams).
    in_buffers: weights are made one by one and then copied into one buffer.
    """

    static: StaticMemory
    words: StaticLabels
    buffers: tuple[NamedBytes, ...]
    optimizer_step: int = 0
    step_words: str = GRADIENT_COPIES
    pools: tuple[NamedBytes, ...] = ()
    working_set: WorkingSet | None = None
    in_buffers: bool = False

    @cached_property
    def resident(self) -> int:
        """Bytes of all buffers."""
        return sum(term.num_bytes for term in self.buffers)

    @cached_property
    def total(self) -> int:
        """Bytes that are there in every moment of a step."""
        return self.static.total + self.resident


class LayerSplits(Struct, frozen=True):
    """Whether a release splits layers unevenly at all, and whether by a text of every chunk."""

    unevenly: bool = False
    by_text: bool = False


class Degrees(Struct, frozen=True, kw_only=True):
    """Degrees of a layout that a framework has, for a search to choose: whether it cuts tensors,
    has pipelines and spreads experts; kinds of context parallelism, none where it has none;
    shardings of data parallelism, None for its own.
    """

    tensor: bool = False
    pipeline: bool = False
    experts: bool = False
    context: tuple[CpCommType, ...] = ()
    shardings: tuple[DataParallelSharding | None, ...] = (None,)


class Effect(StrEnum):
    """What a change of a job's options may do.

    FREE: it never takes more time or memory. LAUNCHES: it takes less time where the GPU waits for
    its processor, and nowhere else. EXCHANGE: what ranks exchange takes other time. MEMORY: it
    takes less memory, and no less time.
    """

    FREE = "free"
    LAUNCHES = "launches"
    EXCHANGE = "exchange"
    MEMORY = "memory"


class JobChange(Struct, frozen=True):
    """Another job in words, why it may help, and how to make it (UserError where it is illegal)."""

    words: str
    why: str
    make: Callable[[], Job]
    effect: Effect


class RulesOverview(Struct, frozen=True, kw_only=True):
    """The rules of a release for `advise rules`.

    label: framework and release. facts: names of what it takes, and values. rules: heading ("" for
    none), name and text of each.
    """

    label: str
    facts: tuple[tuple[str, str], ...]
    rules: tuple[tuple[str, str, str], ...]


class JobEvaluator(Protocol):
    """What evaluates settings of one job: search/evaluate.py's Evaluator."""

    job: Job
    shape: RankShape
    stages: Stages
    budget_bytes: int

    @property
    def rates(self) -> tuple[Machine, Network]:
        """How fast a rank computes and communicates."""
        ...

    def evaluate(self, setting: Setting) -> Evaluation:
        """Memory and time of a legal setting."""
        ...

    def most_allocated(self, setting: Setting) -> int:
        """The most bytes that the first stage may allocate and likely fit, if its allocator leaves
        as many unused as it does under `setting`."""
        ...


class SettingGroup(Struct, frozen=True, dict=True):
    """Legal settings that have a part in common, and groups of them: `fastest` takes no more time
    than any, and `smallest` keeps no more bytes; neither need be legal. any_split: they are with
    every split of the layers, else with the job's own alone."""

    members: "tuple[Setting | SettingGroup, ...]"
    fastest: Setting
    smallest: Setting
    any_split: bool = True

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """All of them."""
        found: list[Setting] = []
        for member in self.members:
            found += member.settings if isinstance(member, SettingGroup) else (member,)
        return tuple(found)


class Decisions(Struct, frozen=True, kw_only=True):
    """All settings of a job that a framework can be told, in groups, and their space in words.
    one_for_all: who cannot say a setting for each pipeline stage, in words."""

    groups: tuple[SettingGroup, ...]
    space: str
    one_for_all: str


class Solved(Struct, frozen=True, kw_only=True):
    """What a framework's own solver says of the optimum of one job, beyond its menu.

    settings: those worth an evaluation, the best among them. bound_seconds: no setting of `space`
    that fits takes less, by the model. space: its decisions, a line each. num_points: how many
    there are, None where nobody counts them. evaluated, excluded: how many were looked at, or left
    out by a proven bound. beyond: what no option of the framework says, and what it would win.
    """

    settings: tuple[Setting, ...]
    bound_seconds: float
    space: tuple[str, ...]
    num_points: int | None
    evaluated: int
    excluded: int
    beyond: tuple[str, ...] = ()


def no_file(framework: str) -> UserError:
    """The answer where a framework is told its settings by options or in Python alone."""
    return UserError(
        "--format", "file", f"{framework} needs no file for this setting", "use --format flags"
    )


def not_rehearsed(framework: str, number: int) -> UserError:
    """The answer to ``--verify NUMBER`` where nothing runs the framework's layers alone."""
    words = f"rehearses only Megatron's layers, which {framework} does not use"
    return UserError("--verify", number, words, "leave it out")


class RecomputeSettings(Protocol):
    """The settings of a framework: how they are written, which are worth a try, which it refuses.

    family: the frameworks that take the same settings, itself among them.
    """

    @property
    def family(self) -> tuple[str, ...]:
        """The frameworks that take the same settings."""
        ...

    @property
    def none(self) -> Setting:
        """No recompute."""
        ...

    def parse(self, text: str) -> Setting:
        """Read a SPEC; UserError on what the framework has no word for."""
        ...

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """Settings that differ in what they keep or replay; `check` may refuse some."""
        ...

    def candidates(self, job: Job) -> tuple[Setting, ...]:
        """Those of `tried` that are legal."""
        ...

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """Settings that a user might try and that come to nothing."""
        ...

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """Why no training comes of `setting` in `job`; empty for a legal setting."""
        ...

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """What is to be said of a legal setting."""
        ...

    def remarks(self, job: Job) -> tuple[str, ...]:
        """What is to be said of the job under any setting."""
        ...

    def rules_overview(self, version: str) -> RulesOverview:
        """What a release takes, and every rule of it."""
        ...


class JobSupport(Protocol):
    """Which jobs a framework runs, and how it completes them.

    A version is what JobConfig.framework_version holds.
    """

    def version(self, text: str, model: ModelSpec | None = None) -> str:
        """The known version that `text` means; empty means the newest, of those that have layers
        for `model`. UserError otherwise."""
        ...

    def builds(self, model: ModelSpec) -> bool:
        """Whether it has the model's layers: the first that has builds what names no framework."""
        ...

    def recipe_options(
        self, model: ModelSpec, precision: Precision, version: str
    ) -> Mapping[str, Any] | None:
        """Fields of a job, by name, that the framework's recipes set unless they say otherwise;
        None where a job starts from no recipe of the framework's."""
        ...

    def for_recipe(self, framework: str | None) -> str:
        """The framework of its family that runs a recipe of `framework`, where none is named."""
        ...

    def check_options(self, config: JobConfig) -> None:
        """Raise UserError on options of the job that the framework or its release has not."""
        ...

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """Model and job as the framework runs them, but for the fields `given` by the user, the
        model's by name and ``job.NAME``; UserError where it cannot run them."""
        ...

    def layout(self, given: dict[str, Any], num_gpus: int) -> ParallelLayout | None:
        """The layout that `given` fields mean; None: pipeline and tensor degrees decide."""
        ...

    @property
    def degrees(self) -> Degrees:
        """Degrees of a layout that a search may choose."""
        ...

    def splits(self, config: JobConfig) -> LayerSplits:
        """How its release can be told to split layers that PP does not divide."""
        ...

    def job_changes(self, job: Job) -> Iterator[JobChange]:
        """Changes of its own options by which the job may need less memory or time."""
        ...


class MemoryModel(Protocol):
    """What a setting makes a framework keep, and what it holds whatever is recomputed."""

    def shape(self, job: Job, shape: RankShape) -> RankShape:
        """`shape` as the job's release has it."""
        ...

    def plan(
        self, setting: Setting, shape: RankShape, layers: tuple[LayerKind, ...], job: Job
    ) -> RecomputePlan:
        """What one model chunk of `layers` keeps and replays."""
        ...

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """Memory of one stage beside its activations."""
        ...

    def graphed_modules(self, job: Job) -> frozenset[Module]:
        """Submodules whose kernels CUDA graphs launch."""
        ...

    def reductions(self, job: Job) -> int:
        """How many microbatches of a step reduce the gradients of sharded parameters."""
        ...

    def graph_capture(self, job: Job) -> Capture | None:
        """The operators whose tensors lie in a pool of CUDA graphs; None where there is none."""
        ...

    def graph_inputs(self, job: Job, shape: RankShape, layers: tuple[LayerKind, ...]) -> int:
        """Bytes that the CUDA graphs of one microbatch of a chunk of `layers` have as inputs of
        their own, outside their pool."""
        ...

    def graph_buffers(self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]) -> int:
        """Bytes that the CUDA graphs of a stage hold beside both."""
        ...

    def rehearsed_by(self, number: int) -> str:
        """Whose code runs its layers on fake tensors for ``--verify NUMBER``; UserError where
        nothing does."""
        ...

    def unverified(self, job: Job) -> str:
        """What of the job's layers that one does not run; empty where it runs all of them."""
        ...


class Spelling(Protocol):
    """How a framework is told a setting and its job."""

    def words(self, job: Job) -> str:
        """Name, version and kind of layers, for the head of a page."""
        ...

    @property
    def shown(self) -> tuple[str, ...]:
        """Frameworks of its family whose flags every page shows."""
        ...

    def option_names(self) -> Mapping[str, Collection[str]]:
        """Its own options, by the field of a job that they mean as `KEY=VALUE` writes it."""
        ...

    def takes_flags(self, job: Job) -> bool:
        """Whether a command line takes its flags; else they are statements of Python, or a file in
        JSON."""
        ...

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """`setting` in the framework's own spelling; empty where its default is meant."""
        ...

    def assumed_flags(self, job: Job) -> str:
        """Without these the job is not the one that was predicted."""
        ...

    def layout_flags(self, job: Job) -> str:
        """Layout, batch and precision of the job."""
        ...

    def unsaid(self, job: Job) -> str:
        """What of the job its flags do not say, and where that is; empty where they say all."""
        ...

    def config_file(self, setting: Setting, job: Job) -> str:
        """Setting and job as the framework's own configuration file; UserError where it reads
        none."""
        ...

    def harness_words(self, job: Job) -> tuple[str, ...]:
        """KEY=VALUE that tell `harness run` who runs the job: a backend of its own, or a command
        that the user puts in."""
        ...

    def harness_job(self, job: Job) -> Job:
        """The job as that one runs it; UserError where it does not."""
        ...

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """``NAME=value`` of variables without which the flags are refused or mean less."""
        ...


class OptimumSpace(Protocol):
    """What `--search optimum` may decide beyond the menu of settings."""

    def decisions(self, job: Job) -> Decisions | None:
        """All settings of the job that can be told, for a search over them, micro batches and
        splits of the layers; None where the menu is all."""
        ...

    def solved(self, evaluator: JobEvaluator) -> Solved | None:
        """The optimum of one job by the framework's own solver; None where it has none."""
        ...


class FrameworkAdapter(
    RecomputeSettings, JobSupport, MemoryModel, Spelling, OptimumSpace, Protocol
):
    """One framework, whole: what the advisor asks of it. `defaults.AdapterDefaults` answers what
    most have in common."""
