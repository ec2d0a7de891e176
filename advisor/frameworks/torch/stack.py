"""The PyTorch stacks as the advisor asks for them, in parts whose subclasses say what differs; and
their settings: which are tried, which are refused, what is said of them."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.rule import findings
from advisor.frameworks.framework_parts import (
    FrameworkParts,
    HarnessRuns,
    OptimumSpace,
    RecomputeSettings,
    Spelling,
)
from advisor.frameworks.option import names_by_field
from advisor.frameworks.part_types import JobEvaluator, RulesOverview, Solved
from advisor.frameworks.torch.block_regimes import BlockRegime
from advisor.frameworks.torch.budget import is_known, kernels_note
from advisor.frameworks.torch.memory_model import TorchMemory
from advisor.frameworks.torch.rules import (
    BLOCK_RULES,
    LAYOUT_RULES,
    SETTING_RULES,
    UNKNOWN,
    Rules,
    TorchRule,
    block_shape,
    in_release,
)
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Granularity,
    Modifier,
    OpPolicy,
    TorchSetting,
    as_torch,
    budget,
    by_block,
    every,
    op,
    parse_setting,
    sequential,
    uniform,
    with_options,
)
from advisor.frameworks.torch.supported_jobs import StackFacts, TorchJobs
from advisor.job.job import Job
from advisor.plan.recompute_plan import RecomputePlan, Setting

_AS_WITHOUT: Final = (
    "torch.compile is not modelled for these layers: memory is predicted without torch.compile, "
    "and compiled layers need less"
)
_PLAN_NOTE: Final = (
    "write the plan with --format file > recompute_plan.py; call its apply_plan(model.layers)"
)


class TorchSettings(RecomputeSettings):
    """Settings of a stack; subclasses say what differs."""

    none: Setting = NONE

    layout_rules: ClassVar[Rules] = LAYOUT_RULES
    own_rules: ClassVar[Rules] = {}

    def __init__(self, facts: StackFacts, jobs: TorchJobs, memory: TorchMemory) -> None:
        self.facts, self.jobs, self.memory = facts, jobs, memory
        blocks = BLOCK_RULES if Granularity.BLOCKS in facts.granularities else {}
        self.setting_rules = {**SETTING_RULES, **blocks, **self.own_rules}

    def rules_overview(self, version: str) -> RulesOverview:
        """What the release takes, and its rules with their sources."""
        release = self.jobs.version(version)
        return RulesOverview(
            label=f"{self.facts.label} {release}",
            facts=tuple(self.jobs.takes()),
            rules=tuple(
                ("", name, self._line(name, rule))
                for table in (self.layout_rules, self.setting_rules)
                for name, rule in in_release(table, release).items()
            ),
        )

    def _line(self, name: str, rule: TorchRule) -> str:
        example = self._lacking(rule.example) if name in UNKNOWN else rule.example
        return f"{example}: {rule.says.removesuffix('.')} ({rule.source or self.facts.source})"

    def _lacking(self, example: str) -> str:
        return " ".join(one for one in example.split() if not self._takes(parse_setting(one)))

    def parse(self, text: str) -> Setting:
        """A SPEC of the PyTorch stacks."""
        return parse_setting(text)

    def rejected(self, job: Job) -> tuple[Rejection, ...]:
        """Settings of the other stacks, and own ones that come to nothing, one reason each."""
        found = (self.check(setting, job) for setting in _every_setting(job))
        return tuple(reasons[0] for reasons in found if reasons)

    def tried(self, job: Job) -> tuple[Setting, ...]:
        """Settings in the framework's words; a budget is evaluated when it is asked for, as it
        needs torch.compile."""
        return tuple(setting for setting in _every_setting(job) if self._takes(setting))

    def _takes(self, setting: TorchSetting) -> bool:
        own = setting.granularity in self.facts.granularities
        own = own and all(option in self.facts.options for option in setting.options)
        return own and (setting.policy is None or setting.policy in self.facts.policies)

    def check(self, setting: Setting, job: Job) -> tuple[Rejection, ...]:
        """Every rule against it."""
        own = as_torch(setting)
        for rules in (self.layout_rules, self.setting_rules):
            current = in_release(rules, job.config.framework_version)
            found = tuple(findings(current, own, job, self.facts))
            if found:
                break
        return tuple(
            Rejection(setting=own, rule=one.rule, reason=one.reason, fix=one.fix, source=one.source)
            for one in found
        )

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Remarks: what else a budget may keep, and whether what a compiler keeps is known."""
        own = as_torch(setting)
        if own.blocks:
            return (*self._unknown_to_compiler(job), _PLAN_NOTE)
        if own.budget is None:
            return tuple(self._unknown_to_compiler(job))
        kind, kernel = job.model.layer_kinds[0], self.memory.semantics(job).attention
        note = kernels_note(block_shape(job), kind, own.budget, kernel)
        return (note,) if note else ()

    def _unknown_to_compiler(self, job: Job) -> Iterator[str]:
        known = (is_known(block_shape(job), kind) for kind in {*job.model.layer_kinds})
        if self.memory.compiles_blocks(job) and not all(known):
            yield _AS_WITHOUT


def _every_setting(job: Job) -> Iterator[TorchSetting]:
    """What any of the stacks may be asked for, in the order of what it saves."""
    layers = job.model.num_layers
    yield NONE
    yield FULL
    yield with_options(FULL, Modifier.OFFLOAD)
    yield with_options(FULL, Modifier.CPU_CHECKPOINTING)
    yield from (every(number) for number in (2, 3, 4, 6, 8) if number <= layers)
    yield from (op(policy) for policy in OpPolicy)
    root = max(2, round(layers**0.5))  # Chen et al., arXiv 1604.06174: sqrt(N) segments
    numbers = dict.fromkeys((2, root, layers))
    yield from (sequential(number) for number in numbers if 1 < number <= layers)
    yield from (uniform(number) for number in (2, root) if number <= layers)


class TorchSpelling(Spelling):
    """How jobs of a stack are written; subclasses have the flags."""

    def __init__(self, facts: StackFacts) -> None:
        self.facts = facts

    def option_names(self) -> Mapping[str, Collection[str]]:
        """Keys of its configuration."""
        return names_by_field(self.facts.key_options)

    def title(self, job: Job) -> str:
        """``torchtitan 0.2 with torch layers``."""
        layers = f"{job.model.transformer_impl} layers"
        return f"{self.facts.label} {job.config.framework_version} with {layers}"

    def config_file(self, setting: Setting, job: Job) -> str:
        """A plan of blocks as the module that runs it; UserError for all else."""
        if not as_torch(setting).blocks:
            return super().config_file(setting, job)
        from advisor.frameworks.torch.optimum.plan_file import plan_file

        return plan_file(as_torch(setting), block_shape(job))

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """The allocator's option."""
        if not job.config.expandable_segments:
            return ()
        return ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)


class TorchOptimum(OptimumSpace):
    """A recompute setting for each block, where the stack can be set so."""

    def __init__(self, settings: TorchSettings, memory: TorchMemory) -> None:
        self._settings, self._memory = settings, memory

    def solved(self, evaluator: JobEvaluator) -> Solved | None:
        """See optimum.solve.solved; None where blocks cannot be set one by one."""
        job, (stage,) = evaluator.job, evaluator.stages
        if self._settings.check(by_block((BlockRegime(),) * job.model.num_layers), job):
            return None
        from advisor.frameworks.torch.optimum.solve import solved

        how = replace(self._memory.semantics(job), compiled=self._memory.compiles_blocks(job))
        found = solved(evaluator, how, self._memory.fixed_memory(job, evaluator.shape, stage))
        if found is None:
            return None
        settings = dict.fromkeys(self._in_own_words(one, evaluator) for one in found.settings)
        return replace(found, settings=(*settings, *self._budgets(job)))

    def _in_own_words(self, setting: Setting, evaluator: JobEvaluator) -> Setting:
        """The framework's own setting that comes to the same, if there is one."""
        job, (stage,) = evaluator.job, evaluator.stages
        layers = tuple(kind for chunk in stage for kind in chunk.layers)

        def plan(one: Setting) -> RecomputePlan:
            return self._memory.plan(one, evaluator.shape, layers, job)

        same = (own for own in self._settings.candidates(job) if plan(own) == plan(setting))
        return next(same, setting)

    def _budgets(self, job: Job) -> Iterator[TorchSetting]:
        """Budgets of torch.compile, to be compared with a plan of compiled blocks."""
        if self._memory.compiles_blocks(job):
            every = (budget(tenths / 10) for tenths in range(1, 10))
            yield from (one for one in every if not self._settings.check(one, job))


def torch_parts(
    facts: StackFacts,
    spelling: type[TorchSpelling],
    *,
    settings: type[TorchSettings] = TorchSettings,
    jobs: type[TorchJobs] = TorchJobs,
    memory: type[TorchMemory] = TorchMemory,
    dialect: str = "",
) -> FrameworkParts:
    """The parts of a stack. dialect: in whose words the harness writes a setting into a command."""
    its_jobs, its_memory = jobs(facts), memory()
    its_settings = settings(facts, its_jobs, its_memory)
    return FrameworkParts(
        family=(facts.framework,),
        shown=(facts.framework,),
        settings=its_settings,
        jobs=its_jobs,
        memory=its_memory,
        spelling=spelling(facts),
        harness=HarnessRuns(facts.framework, dialect),
        optimum=TorchOptimum(its_settings, its_memory),
    )
