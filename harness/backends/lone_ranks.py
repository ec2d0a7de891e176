"""Single ranks of a job, each alone on one device or on fake tensors: who builds and steps them.

Megatron Core's own layers, in the megatron_core backend. torch and megatron-core are loaded by
`lone_ranks` alone; the rest says what would be run.
"""

from contextlib import nullcontext
from importlib import import_module
from typing import Protocol

from msgspec import Struct

from advisor.base.errors import install_hint
from advisor.job.job import Job
from harness.backends.megatron_core.installed import (
    missing,
    nothing_compiled,
    require_megatron,
    under_installed,
)
from harness.backends.megatron_core.translate import megatron_case, runs_transformer_engine
from harness.trial.result import PhaseTime, StagePeaks
from harness.trial.trial import Device, MeasurementPlan, Workload


class Rehearsed(Struct, frozen=True, kw_only=True):
    """What a rehearsal of one stage gave; seconds are those of its measured steps, if any, phases
    where the time of one more went."""

    peaks: StagePeaks
    seconds: tuple[float, ...] = ()
    phases: tuple[PhaseTime, ...] = ()


class LoneRanks(Protocol):
    """The first ranks of a workload's stages, one at a time."""

    def rehearse(self, stage: int, plan: MeasurementPlan) -> Rehearsed:
        """Build the rank on the workload's device, and step it: once, on fake tensors."""
        ...

    def number(self, stage: int) -> int:
        """Which rank of the job it is."""
        ...

    def storage_differences(self) -> str:
        """Storages of one layer that only the prediction or only the rehearsal keeps, in words."""
        ...


def lone_ranks(workload: Workload) -> LoneRanks:
    """The ranks of `workload`; UserError for what is not run."""
    with nullcontext() if workload.device is Device.CUDA else nothing_compiled():
        rank = import_module("harness.backends.megatron_core.rehearsal.rank")
    found: LoneRanks = rank.MegatronRanks(workload, megatron_case(workload))
    return found


def require() -> None:
    """UserError where what they are built of is not installed."""
    require_megatron()


def lacking() -> tuple[str, str] | None:
    """That packages are needed which are not installed, and how to get them; None where all are
    there."""
    packages = missing()
    return (f"needs {packages}", install_hint("megatron")) if packages else None


def as_installed(job: Job) -> tuple[Job, str]:
    """`job` under the release that is here, its own if that is unpacked, and what that changes, in
    words."""
    return under_installed(job)


def check(workload: Workload) -> None:
    """UserError for what is not run."""
    megatron_case(workload)


def computes_in_8_bits(workload: Workload) -> bool:
    """Whether its linear layers can: Transformer Engine's, on a GPU."""
    return runs_transformer_engine(workload)
