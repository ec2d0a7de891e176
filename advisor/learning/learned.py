"""A calibration with what measured runs say beside it: for which jobs, how much, how surely."""

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.learning.measured_range import MeasuredRange
from advisor.learning.memory_residual import MemoryResidual
from advisor.learning.time_residual import TimeResidual
from advisor.plan.recompute_plan import Setting


class MeasuredSetting(Struct, frozen=True, kw_only=True):
    """One setting of one job as it was run, by so many processes.

    seconds: the median of their medians; peaks the largest, bytes; None where nobody says.
    peak_reserved_bytes: of the card, context and all, where that was measured, else the
    allocator's. ran_out: of memory, one of them at least.
    """

    job: Job
    setting: Setting
    processes: int
    seconds: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    ran_out: bool


class KindResiduals(Struct, frozen=True, kw_only=True):
    """Of jobs of the same kinds: within what sizes, and by how much predictions are off."""

    range: MeasuredRange
    times: TimeResidual
    memory: MemoryResidual


class Learned(Struct, frozen=True, kw_only=True, dict=True):
    """All that was learned on one type of GPU. sources: folders, as they were named; left_out: why
    nothing was learned from so many of their results."""

    sources: tuple[str, ...]
    settings: tuple[MeasuredSetting, ...]
    kinds: tuple[KindResiduals, ...]
    left_out: tuple[tuple[str, int], ...]

    @property
    def trials(self) -> int:
        """Processes whose results were used."""
        return sum(one.processes for one in self.settings)

    @cached_property
    def common(self) -> float:
        """What runs say of all step times alike, as a logarithm: the mean over those that were
        measured. It changes no order, and nobody knows whether it is that of other jobs too."""
        known = [(kind.times.posterior.mean[0], len(kind.times.rows)) for kind in self.kinds]
        rows = sum(count for _, count in known)
        return sum(base * count for base, count in known) / rows if rows else 0.0

    def of(self, job: Job) -> KindResiduals | None:
        """What holds for a job; None where it lies outside of what was measured."""
        return next((kind for kind in self.kinds if not kind.range.outside(job)), None)

    def outside(self, job: Job) -> str:
        """Why nothing holds for it, of the kinds that are the most like its own; "" where it
        does."""
        reasons = [kind.range.outside(job) for kind in self.kinds]
        return "" if "" in reasons or not reasons else max(reasons, key=_nearness)

    def measured(self, job: Job, setting: Setting) -> MeasuredSetting | None:
        """`setting` on `job` as it was run."""
        return self._settings.get((plain_job(job), setting.promoted))

    @cached_property
    def _settings(self) -> dict[tuple[Job, Setting], MeasuredSetting]:
        return {(plain_job(one.job), one.setting): one for one in self.settings}


class LearnedCalibration(Calibration, frozen=True, kw_only=True, cache_hash=True):
    """Efficiencies, and what whole runs say of the predictions made with them."""

    learned: Learned


def plain_job(job: Job) -> Job:
    """`job` without what changes no run: a budget that only predictions know, the model's name."""
    return replace(
        job,
        model=replace(job.model, name=""),
        config=replace(job.config, memory_budget_bytes=None),
    )


def _nearness(reason: str) -> tuple[bool, str]:
    """Sizes that differ are nearer than kinds that do."""
    return any(sign.isdigit() for sign in reason.partition(", measured")[0]), reason
