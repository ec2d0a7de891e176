"""A calibration with what measured runs add to it: for which jobs, how much, how surely."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration, Layers
from advisor.job.job import LIKELY, Job
from advisor.learning.memory_residual import MemoryResidual
from advisor.learning.time_residual import TimeResidual
from advisor.plan.recompute_plan import Setting

_KINDS: Final[Mapping[str, Callable[[Job], object]]] = {
    "layers": lambda job: Layers.of_model(job.model),
    "transformer_impl": lambda job: job.model.transformer_impl,
    "attention_backend": lambda job: job.model.attention_backend,
    "precision": lambda job: job.config.precision,
    "CUDA graphs": lambda job: job.config.cuda_graph_impl,
    "torch.compile": lambda job: job.config.torch_compile,
    "sharding": lambda job: job.layout.data_parallel_sharding,
    "optimizer on the host": lambda job: job.config.optimizer_cpu_offload,
    "TP overlap": lambda job: job.layout.tp_comm_overlap,
    "EP overlap": lambda job: job.layout.overlap_moe_expert_parallel_comm,
    "dispatcher": lambda job: (
        job.model.moe_token_dispatcher_type if job.model.num_moe_experts else None
    ),
}
_SIZES: Final[Mapping[str, Callable[[Job], int]]] = {
    "hidden size": lambda job: job.model.hidden_size,
    "experts": lambda job: job.model.num_moe_experts or 0,
    "sequence": lambda job: job.config.seq_length,
    "tokens per microbatch": lambda job: job.config.micro_batch_size * job.config.seq_length,
    "GPUs": lambda job: job.num_gpus,
    "TP": lambda job: job.layout.tensor_model_parallel_size,
    "PP": lambda job: job.layout.pipeline_model_parallel_size,
    "VPP": lambda job: job.layout.virtual_pipeline_model_parallel_size,
    "CP": lambda job: job.layout.context_parallel_size,
    "EP": lambda job: job.layout.expert_model_parallel_size,
}


class Interval(Struct, frozen=True):
    """From the smallest to the largest that was run."""

    least: int
    most: int

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most

    def __str__(self) -> str:
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


class MeasuredRange(Struct, frozen=True):
    """Within which jobs what was measured holds: kinds by name, as text, that must be the same, and
    sizes by name that must lie between the smallest and the largest that were run."""

    kinds: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, Interval], ...]

    def outside(self, job: Job) -> str:
        """Why a job lies outside, ``TP 8, measured 1 to 4``; empty where it lies within."""
        kinds = ((name, _kind(name, job), kind) for name, kind in self.kinds)
        sizes = ((name, _SIZES[name](job), interval) for name, interval in self.sizes)
        others = (f"{name} {its}, measured {kind}" for name, its, kind in kinds if its != kind)
        outside = (f"{name} {its:,}, measured {of}" for name, its, of in sizes if its not in of)
        return next(chain(others, outside), "")

    @property
    def description(self) -> str:
        """``dense layers, bf16, TP 2, PP 1 to 4, …``; degrees of one are left out."""
        said = [kind for name, kind in self.kinds if name in ("layers", "precision")]
        said += [f"{name} {of}" for name, of in self.sizes if of.most > 1]
        return ", ".join(said)


def kinds_of(job: Job) -> tuple[tuple[str, str], ...]:
    """What of a job no measurement of another kind says anything of."""
    return tuple((name, _kind(name, job)) for name in _KINDS)


def _kind(name: str, job: Job) -> str:
    return str(_KINDS[name](job)).lower()


def range_of(jobs: Iterable[Job]) -> MeasuredRange:
    """Of jobs of the same kinds, of which there is one at least."""
    ran = tuple(jobs)
    sizes = ((name, sorted(map(of, ran))) for name, of in _SIZES.items())
    ranges = tuple((name, Interval(found[0], found[-1])) for name, found in sizes)
    return MeasuredRange(kinds_of(ran[0]), ranges)


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

    def residuals_of(self, job: Job) -> KindResiduals | None:
        """What holds for a job; None where it lies outside of what was measured."""
        return next((kind for kind in self.kinds if not kind.range.outside(job)), None)

    def outside(self, job: Job) -> str:
        """Why nothing holds for it, of the kinds that are the most like its own; "" where it
        does."""
        reasons = [kind.range.outside(job) for kind in self.kinds]

        def nearness(reason: str) -> tuple[bool, str]:
            """Sizes that differ are nearer than kinds that do."""
            return any(sign.isdigit() for sign in reason.partition(", measured")[0]), reason

        return "" if "" in reasons else max(reasons, key=nearness, default="")

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
    """`job` without what changes no run: a budget and a certainty that only predictions know, the
    model's name."""
    config = replace(job.config, memory_budget_bytes=None, certainty=LIKELY)
    return replace(job, model=replace(job.model, name=""), config=config)
