"""Megatron-LM, Megatron Bridge and NeMo as the advisor asks for them, in parts."""

from typing import Final

from advisor.frameworks.framework_parts import FrameworkParts, OptimumSpace
from advisor.frameworks.megatron.candidates import MegatronSettings
from advisor.frameworks.megatron.memory_model import MegatronMemory
from advisor.frameworks.megatron.on_harness import MegatronOnHarness
from advisor.frameworks.megatron.revisions import revision_of
from advisor.frameworks.megatron.spelling import MegatronSpelling
from advisor.frameworks.megatron.supported_jobs import MegatronJobs
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import Decisions
from advisor.job.job import Job

_SHOWN: Final = (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE)
"""The two that everybody uses."""


class MegatronOptimum(OptimumSpace):
    """All settings that its options can say; it has no solver of its own."""

    def __init__(self, framework: str) -> None:
        self._framework = framework

    def decisions(self, job: Job) -> Decisions | None:
        """See expressible.decisions_of."""
        from advisor.frameworks.megatron.expressible import decisions_of

        return decisions_of(job, revision_of(self._framework, job))


def parts(framework: Framework) -> FrameworkParts:
    """One of the three; the others' flags are those of their own newest release."""
    return FrameworkParts(
        family=(*_SHOWN, Framework.NEMO),
        shown=_SHOWN,
        settings=MegatronSettings(framework),
        jobs=MegatronJobs(framework),
        memory=MegatronMemory(framework),
        spelling=MegatronSpelling(framework),
        harness=MegatronOnHarness(framework),
        optimum=MegatronOptimum(framework),
    )
