"""The settings of the PyTorch stacks: which are tried, which are refused, what is said of them."""

from collections.abc import Iterator
from typing import Final

from advisor.answer.answer import Rejection
from advisor.base.units import either
from advisor.frameworks.framework_parts import RecomputeSettings
from advisor.frameworks.part_types import RulesOverview
from advisor.frameworks.torch.block_rules import block_problems
from advisor.frameworks.torch.budget import is_known, kernels_note
from advisor.frameworks.torch.memory_model import TorchMemory
from advisor.frameworks.torch.rules import (
    Problem,
    block_shape,
    foreign_word,
    refused_layout,
    shared_problems,
)
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Modifier,
    OpPolicy,
    TorchSetting,
    as_torch,
    every,
    op,
    parse_setting,
    sequential,
    uniform,
    with_options,
)
from advisor.frameworks.torch.supported_jobs import StackFacts, TorchJobs
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import Setting

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

    def __init__(self, facts: StackFacts, jobs: TorchJobs, memory: TorchMemory) -> None:
        self.facts, self.jobs, self.memory = facts, jobs, memory

    def rules_overview(self, version: str) -> RulesOverview:
        """Found by asking, on a dense model on one node."""
        from advisor.frameworks.torch.rule_catalogue import overview

        return overview(self.facts, self, self._some_job(version))

    def _some_job(self, version: str) -> Job:
        config = JobConfig(
            seq_length=4096,
            micro_batch_size=1,
            global_batch_size=128,
            framework=self.facts.framework,
            framework_version=self.jobs.version(version),
        )
        model, config = self.jobs.configure(load_model("llama3_8b"), config, frozenset())
        layout = self.jobs.layout({}, 8)
        assert layout is not None
        return Job(model=model, layout=layout, config=config, gpu=load_gpu("H100"), num_gpus=8)

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
        found = [*self.layout_problems(job)] or [*self.problems(own, job)]
        return tuple(problem.rejection(own) for problem in found)

    def layout_problems(self, job: Job) -> Iterator[Problem]:
        """Why the stack has no such layout."""
        yield from refused_layout(job, self.facts.context_kinds)

    def problems(self, setting: TorchSetting, job: Job) -> Iterator[Problem]:
        """Every reason against a setting of a job whose layout it has."""
        yield from foreign_word(
            self.facts.framework, setting, self.facts.granularities, self.facts.source
        )
        if setting.policy is not None and setting.policy not in self.facts.policies:
            reason = f"{self.facts.framework} has no policy {setting.policy}"
            fix = f"use {either(self.facts.policies)}" if self.facts.policies else "use none"
            yield Problem("op.unknown_policy", reason, fix, self.facts.source)
        for option in setting.options:
            if option not in self.facts.options:
                reason = f"{self.facts.framework} has no option {option}"
                fix = f"use {either(self.facts.options)}" if self.facts.options else "leave it out"
                yield Problem("option.unknown_to_framework", reason, fix, self.facts.source)
        yield from shared_problems(setting, job)
        if setting.granularity in self.facts.granularities:
            yield from block_problems(setting.blocks, job)

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
        if self.memory.compiles_blocks(job):
            known = (is_known(block_shape(job), kind) for kind in {*job.model.layer_kinds})
            if not all(known):
                yield _AS_WITHOUT


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
