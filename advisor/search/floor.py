"""What no job of a group of layouts undercuts, known before any of them is evaluated.

In a microbatch of the whole global batch a sequence takes no longer than in a smaller one: what
kernels and collectives take grows no faster than their work. The processor never keeps the GPU
waiting, and all that can hide an exchange of experts does. What experts take is known by EP and
ETP, all else by TP and CP, so that there are few of both.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from advisor.frameworks.registry import adapter_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.shape import RankShape
from advisor.models.options import CpCommType
from advisor.search.evaluate import Evaluator
from advisor.search.rank_shape import rank_shape
from advisor.time.job_time import hidden_beside
from advisor.time.machine import machine
from advisor.time.network.fabric import Network, network
from advisor.time.network.scale import waiting_share
from advisor.time.passes import end_times, part_times


class Floors:
    """Seconds that a sequence takes at least through all layers and both ends of the model, on the
    ranks of one pipeline; of jobs that differ from `job` in layout and micro batch alone.

    optimizer: seconds that the optimizer's step takes at least. others: those of jobs with other
    options; what is found for one of them serves all whose sequences take the same.
    """

    def __init__(self, job: Job, calibration: Calibration, others: Iterable["Floors"] = ()) -> None:
        self._job, self._calibration = job, calibration
        self._shape = rank_shape(job)
        self._chip = machine(
            job.gpu,
            calibration,
            job.config.precision,
            eager=job.model.transformer_impl.is_eager,
            compiled=job.config.torch_compile,
        )
        held = pipeline_stages(job.model, job.layout)
        self._kinds = Counter(k for chunks in held for chunk in chunks for k in chunk.layers)
        self._waits = 1 + waiting_share(job.num_gpus, calibration.speed_spread)
        self.optimizer = Evaluator(job, calibration).least_optimizer_seconds
        self._outside: dict[tuple[object, ...], float] = {}
        self._experts: dict[tuple[int, int, int], float] = {}
        for other in others:
            if other._like == self._like:
                self._outside, self._experts = other._outside, other._experts

    @property
    def _like(self) -> tuple[object, ...]:
        """What jobs have in common whose sequences take the same."""
        apart = self._job.layout.overlap_moe_expert_parallel_comm
        return self._shape, self._chip, apart

    def of_sequence(self, layout: ParallelLayout, micro_batch_size: int) -> float:
        """Seconds of the group of layouts that `layout` is of; of a micro batch of so many
        sequences, or of a smaller one that divides it."""
        tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
        sizes = layout.hierarchical_context_parallel_sizes
        key = (tp, layout.sequence_parallel, cp, layout.cp_comm_type, sizes, micro_batch_size)
        if key not in self._outside:
            self._outside[key] = self._seconds_outside(layout, micro_batch_size)
        seconds = self._outside[key]
        if self._job.model.num_moe_experts is not None:
            tokens = micro_batch_size * self._job.config.seq_length // (tp * cp)
            ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_degree
            if (tokens, ep, etp) not in self._experts:
                self._experts[tokens, ep, etp] = self._seconds_of_experts(tokens, ep, etp)
            seconds += self._experts[tokens, ep, etp]
        return seconds * self._waits / micro_batch_size * (1 - _ROUNDED)

    def _seconds_outside(self, layout: ParallelLayout, micro_batch_size: int) -> float:
        shape = replace(
            self._shape,
            micro_batch_size=micro_batch_size,
            tensor_model_parallel_size=layout.tensor_model_parallel_size,
            sequence_parallel=layout.sequence_parallel,
            context_parallel_size=layout.context_parallel_size,
            cp_comm_type=layout.cp_comm_type,
            cp_all_to_all_size=layout.cp_all_to_all_size,
            tp_comm_overlap=layout.tp_comm_overlap,
        )
        rates = network(layout, self._job.gpu, self._calibration, self._job.model)
        ends = end_times(shape, self._chip, rates, True, True).total
        return ends + self._sum(shape, rates, in_experts=False)

    def _seconds_of_experts(self, tokens: int, ep: int, etp: int) -> float:
        """Of so many tokens of a rank, which no other parallelism cuts."""
        shape = replace(
            self._shape,
            seq_length=tokens,
            micro_batch_size=1,
            tensor_model_parallel_size=1,
            sequence_parallel=False,
            context_parallel_size=1,
            cp_comm_type=CpCommType.P2P,
            cp_all_to_all_size=1,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
        )
        layout = ParallelLayout(expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        rates = network(layout, self._job.gpu, self._calibration, self._job.model)
        return self._sum(shape, rates, in_experts=True)

    def _sum(self, shape: RankShape, rates: Network, *, in_experts: bool) -> float:
        """Of all layers, what their experts take, or all else."""
        job, chip, total = self._job, self._chip, 0.0
        shape = adapter_of(job.config.framework).shape(job, shape)
        hidden = hidden_beside(job, self._calibration, rates)
        if job.model.moe_shared_expert_overlap:
            hidden = max(hidden, chip.hidden_fraction)
        for kind, count in self._kinds.items():
            times = part_times(shape, chip, rates, kind, in_experts=in_experts)
            total += count * (times.total - hidden * times.exchange)
        return total


_ROUNDED: Final = 1e-6
"""Share by which bytes and tiles that are rounded up in each part may come to more than in one."""


def step_seconds(
    sequence: float, layout: ParallelLayout, micro_batch_size: int, global_batch_size: int
) -> float:
    """Seconds that a step takes at least, given those of a sequence: stages that share the work
    evenly, and the bubble around them (see JobTime.step)."""
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    each = global_batch_size / layout.data_parallel_size
    return sequence * (each / pp + micro_batch_size * (1 - 1 / pp) / vpp)
