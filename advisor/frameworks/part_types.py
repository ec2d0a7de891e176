"""What the parts of a framework answer with: memory, degrees, changes, rules, decisions."""

from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol

from msgspec import Struct

from advisor.answer.evaluation import Evaluation
from advisor.job.job import Job
from advisor.job.layout import DataParallelSharding
from advisor.job.pipeline_split import Stages
from advisor.layers.shape import RankShape
from advisor.memory.static import GRADIENT_COPIES, NamedBytes, StaticMemory
from advisor.memory.working_set import WorkingSet
from advisor.models.options import CpCommType
from advisor.plan.recompute_plan import Setting
from advisor.time.stage_times import Rates


class StaticLabels(Struct, frozen=True, kw_only=True):
    """What StaticMemory's three parts are made of, for reports: name and source of each."""

    weights: tuple[str, str]
    gradients: tuple[str, str]
    optimizer: tuple[str, str]


class FixedMemory(Struct, frozen=True, kw_only=True, dict=True):
    """Memory of one stage that no recompute setting changes.

    optimizer_step: bytes that it takes while it runs, of step_words.
    pools: reserved in addition to the peak, but not allocated then (caches of other streams).
    computing: the working set without what is in the pool at some peaks.
    in_buffers: weights are made one by one and then copied into one buffer.
    thirds_with_model: of the optimizer's bytes, what is there before the first pass (main
    parameters); the others come with the first step.
    host_bytes: of host memory, of what is offloaded of them.
    """

    static: StaticMemory
    words: StaticLabels
    buffers: tuple[NamedBytes, ...]
    optimizer_step: int = 0
    step_words: str = GRADIENT_COPIES
    pools: tuple[NamedBytes, ...] = ()
    working_set: WorkingSet | None = None
    computing: WorkingSet | None = None
    in_buffers: bool = False
    thirds_with_model: int = 1
    host_bytes: int = 0

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
    takes less memory, and no less time. SPEED: it takes back a change of the last kind. PACKAGE: it
    needs a package that a job may not have, so a remedy names it and no search turns it on. TRAINS:
    it trains another thing, so a remedy names it where no other change is enough.
    """

    FREE = "free"
    LAUNCHES = "launches"
    EXCHANGE = "exchange"
    MEMORY = "memory"
    SPEED = "speed"
    PACKAGE = "package"
    TRAINS = "trains"


SEARCHED: Final = frozenset(Effect) - {Effect.PACKAGE, Effect.TRAINS}
"""Effects of the changes that a search may make by itself."""


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
    rates: Rates

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
        return tuple(
            setting
            for member in self.members
            for setting in (member.settings if isinstance(member, SettingGroup) else (member,))
        )


class Decisions(Struct, frozen=True, kw_only=True):
    """All settings of a job that a framework can say, in groups, and their space in words.
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
