"""What a golden is: numbers to be held, with whose they are, of what, and why they were taken."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from harness.base.collections import Scalar, flatten
from harness.judge.goldens.series import Process, metric_names, samples
from harness.judge.identity import Place, gpu_type, same_workload, workload_key
from harness.judge.stats import Summary, summarise
from harness.trial.result import TrialStatus


class Provenance(StrEnum):
    """Whose numbers: measured by this harness, or published by somebody else."""

    MEASURED = "measured"
    PUBLISHED = "published"


class Meta(Struct, frozen=True, kw_only=True):
    """Why a golden is what it is. environment: flat fingerprint of the processes measured."""

    provenance: Provenance
    reason: str
    date: str
    source: str = ""
    environment: dict[str, Scalar] = field(default_factory=dict)


class Identity(Struct, frozen=True, kw_only=True):
    """Of what a golden speaks. fields: the workload, flat; all of it where there is a key, else the
    part that the source states. gpus: COUNTxTYPE or ``cpu``."""

    label: str
    gpus: str
    fields: dict[str, Scalar]
    workload_key: str | None = None

    def holds_for(self, workload: dict[str, Any]) -> bool:
        """Whether `workload`, as JSON, is the one meant."""
        return same_workload(self.workload_key, self.fields, workload)

    @property
    def full_gpus(self) -> str:
        """The GPUs with the type's full name: a bare H100 is the 80 GB SXM part."""
        count, separator, name = self.gpus.partition("x")
        return f"{count}x{gpu_type(name)}" if separator and count.isdigit() else self.gpus


class Golden(Struct, frozen=True, kw_only=True):
    """One workload's baseline. status: ok, or oom where the setting is known not to fit, and has no
    numbers. limits: relative limits of its own, by metric."""

    meta: Meta
    identity: Identity
    status: TrialStatus = TrialStatus.OK
    processes: tuple[Process, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Where its numbers come from."""
        return Place(gpus=self.identity.full_gpus, environment=self.meta.environment)

    def summary(self) -> dict[str, Summary]:
        """Summary of every metric that has a number."""
        found = {name: samples(self.processes, name) for name in metric_names(self.processes)}
        return {name: summarise(values) for name, values in found.items() if values}

    def exact(self, metric: str) -> bool:
        """Whether the golden is a single published number: to be held, with no noise of its own."""
        values = samples(self.processes, metric)
        return self.meta.provenance is Provenance.PUBLISHED and [len(v) for v in values] == [1]

    def same_subject(self, other: "Golden") -> bool:
        """Whether `other` is a golden of the same workload on the same GPUs."""
        here, there = self.identity, other.identity
        if here.full_gpus != there.full_gpus or here.workload_key != there.workload_key:
            return False
        return here.workload_key is not None or here.fields == there.fields


def identity_of(workload: dict[str, Any], label: str, place: Place) -> Identity:
    """Full identity of a measured workload."""
    return Identity(
        label=label, gpus=place.gpus, fields=flatten(workload), workload_key=workload_key(workload)
    )
