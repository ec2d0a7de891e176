"""Within which jobs what was measured holds: kinds that must be the same, sizes that must lie
between the smallest and the largest that were run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from advisor.hardware.calibration import Layers
from advisor.job.job import Job

_KINDS: Final[Mapping[str, Callable[[Job], object]]] = {
    "layers": lambda job: Layers.of(job.model),
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
_ALWAYS_SAID: Final = ("layers", "precision")


class Interval(Struct, frozen=True):
    """From the smallest to the largest that was run."""

    least: int
    most: int

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:,}"
        return f"{self.least:,} to {self.most:,}"


class MeasuredRange(Struct, frozen=True):
    """Kinds by name, as text, and sizes by name."""

    kinds: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, Interval], ...]

    def outside(self, job: Job) -> str:
        """Why a job lies outside, ``TP 8, measured 1 to 4``; empty where it lies within."""
        for name, kind in self.kinds:
            if (its := _kind(name, job)) != kind:
                return f"{name} {its}, measured {kind}"
        for name, interval in self.sizes:
            if (size := _SIZES[name](job)) not in interval:
                return f"{name} {size:,}, measured {interval}"
        return ""

    @property
    def words(self) -> str:
        """``dense layers, bf16, TP 2, PP 1 to 4, …``; degrees of one are left out."""
        said = [kind for name, kind in self.kinds if name in _ALWAYS_SAID]
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
    sizes = []
    for name, of in _SIZES.items():
        found = [of(job) for job in ran]
        sizes.append((name, Interval(min(found), max(found))))
    return MeasuredRange(kinds_of(ran[0]), tuple(sizes))
