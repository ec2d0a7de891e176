"""Megatron-LM, Megatron Bridge and NeMo as the advisor asks for them, in parts."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from advisor.base.record import defaults
from advisor.frameworks.framework_parts import FrameworkParts, HarnessRuns, OptimumSpace, Spelling
from advisor.frameworks.megatron import bridge, candidates, flags, memory_model, supported_jobs
from advisor.frameworks.megatron.flags import (
    assumed_flags,
    environment,
    layout_flags,
    megatron_lm_flags,
)
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.revisions import MegatronPart, Revision
from advisor.frameworks.megatron.setting import RecomputeSetting, as_megatron
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Option, names_by_field
from advisor.frameworks.part_types import Decisions
from advisor.job.job import Job
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting


class _Writers(NamedTuple):
    """How one of the three is written. label: before its version; option: its name of an option;
    settings, layout, assumed: flags; omitted: what of a job they omit."""

    label: str
    option: Callable[[Option], str]
    settings: Callable[[RecomputeSetting, Job, Revision], str]
    layout: Callable[[Job, Revision], str]
    assumed: Callable[[Job, Revision], str]
    omitted: Callable[[Job], str]


_WRITERS: Final = {
    Framework.MEGATRON_LM: _Writers(
        "",
        lambda row: row.flag or row.off,
        megatron_lm_flags,
        layout_flags,
        assumed_flags,
        lambda job: "",
    ),
    Framework.MEGATRON_BRIDGE: _Writers(
        "Megatron Bridge",
        lambda row: row.bridge,
        bridge.bridge_overrides,
        bridge.bridge_layout_overrides,
        bridge.assumed_overrides,
        bridge.left_to_bridge,
    ),
    Framework.NEMO: _Writers(
        "NeMo",
        lambda row: row.nemo,
        flags.nemo_overrides,
        flags.nemo_layout_overrides,
        lambda job, revision: "",  # its recipes have their own
        flags.left_to_nemo,
    ),
}


class MegatronSpelling(MegatronPart, Spelling):
    """Options of Megatron-LM's command line, overrides of Bridge's and NeMo's recipes."""

    def __init__(self, framework: Framework) -> None:
        super().__init__(framework)
        self._writers = _WRITERS[framework]

    def title(self, job: Job) -> str:
        """``Megatron Core 0.19 with Transformer Engine``; the others name their version as well. Of
        a model that not every release has, the first one that has it."""
        revision, label = self.revision(job.config), self._writers.label
        core = f"Megatron Core {revision.core}"
        local = job.model.transformer_impl is TransformerImpl.LOCAL
        layers = "local layers" if local else "Transformer Engine"
        words = f"{f'{label} {revision.version} ({core})' if label else core} with {layers}"
        since = _first_core(job.model)
        return f"{words} (the model needs core {since})" if since else words

    def option_names(self) -> Mapping[str, list[str]]:
        """Flags of Megatron-LM, paths in a configuration of Bridge and NeMo."""
        return names_by_field(SETTINGS.values(), self._writers.option)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Options of the command line, or overrides."""
        return self._writers.settings(as_megatron(setting), job, self.revision(job.config))

    def assumed_flags(self, job: Job) -> str:
        """What a prediction rests on and they do not do by themselves."""
        return self._writers.assumed(job, self.revision(job.config))

    def layout_flags(self, job: Job) -> str:
        """Degrees and batch, and what else the framework takes from the command line."""
        return self._writers.layout(job, self.revision(job.config))

    def omitted(self, job: Job) -> str:
        """Of a command line of Megatron-LM nothing."""
        return self._writers.omitted(job)

    def environment(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """See flags.environment."""
        return environment(as_megatron(setting), job, self.revision(job.config))


def _first_core(model: ModelSpec) -> str:
    """The first megatron-core with the options that make the model's layers; empty where all that
    are known have them."""
    plain = defaults(ModelSpec)
    set_here = (
        row.since
        for row in SETTINGS.values()
        if row.strict and row.since and row.name in plain
        if getattr(model, row.name) != plain[row.name]
    )
    return "0.19" if model.has_sparse_attention else ".".join(map(str, max(set_here, default=())))


class MegatronOptimum(MegatronPart, OptimumSpace):
    """All settings that its options can say; it has no solver of its own."""

    def decisions(self, job: Job) -> Decisions | None:
        """See expressible.decisions_of."""
        from advisor.frameworks.megatron.expressible import decisions_of

        return decisions_of(job, self.revision(job.config))


class MegatronOnHarness(HarnessRuns):
    """Megatron Core itself runs the jobs of all three."""

    def overrides(self, job: Job) -> tuple[str, ...]:
        """The backend."""
        return "backend=megatron_core", "device=cuda"

    def job(self, job: Job) -> Job:
        """See supported_jobs.harness_job."""
        from advisor.frameworks.megatron.supported_jobs import harness_job

        return harness_job(job)

    def rehearsed_by(self, number: int) -> str:
        """The same layers under all three."""
        return "Megatron Core"

    def unverified(self, job: Job) -> str:
        """Transformer Engine, which needs a GPU: Megatron's own layers stand in for it."""
        engine = job.model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
        return "Transformer Engine" if engine else ""


def parts(framework: Framework) -> FrameworkParts:
    """One of the three; the others' flags are those of their own newest release."""
    shown = (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE)  # that everybody uses
    return FrameworkParts(
        family=(*shown, Framework.NEMO),
        shown=shown,
        settings=candidates.MegatronSettings(framework),
        jobs=supported_jobs.MegatronJobs(framework),
        memory=memory_model.MegatronMemory(framework),
        spelling=MegatronSpelling(framework),
        harness=MegatronOnHarness(framework),
        optimum=MegatronOptimum(framework),
    )
