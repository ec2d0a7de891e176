"""The PyTorch stacks as the advisor asks for them, in parts whose subclasses say what differs."""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from advisor.frameworks.framework_parts import FrameworkParts, HarnessRuns, OptimumSpace, Spelling
from advisor.frameworks.option import names_by_field
from advisor.frameworks.part_types import JobEvaluator, Solved
from advisor.frameworks.torch.block_regimes import BlockRegime
from advisor.frameworks.torch.memory_model import TorchMemory
from advisor.frameworks.torch.recompute_settings import TorchSettings
from advisor.frameworks.torch.rules import block_shape
from advisor.frameworks.torch.setting import TorchSetting, as_torch, budget, by_block
from advisor.frameworks.torch.supported_jobs import StackFacts, TorchJobs
from advisor.job.job import Job
from advisor.plan.recompute_plan import RecomputePlan, Setting


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
