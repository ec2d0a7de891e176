"""What no job of a group of layouts undercuts, in seconds and in bytes, known before any of them is
evaluated.

In a microbatch of the whole global batch a sequence takes no longer than in a smaller one, and on
one context-parallel rank no longer than on all of many: what kernels and collectives take grows no
faster than their work. The processor never keeps the GPU waiting, and all that can hide an exchange
of experts does. What experts take is known by EP and ETP, all else by TP and CP, so that there are
few of both. Of samples of several lengths a layout decides the rows: then it is the tokens of all
of them, in a row that is longer than any, where a token attends to those of half a sample or so.
"""

from collections import Counter
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.sharing import first_equal
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout, fits_layout
from advisor.job.microbatches import Microbatches, microbatches
from advisor.job.pipeline_split import SPLIT, pipeline_of, pipeline_stages
from advisor.layers.shape import RankShape
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import FeedForward, LayerKind
from advisor.models.options import CpCommType
from advisor.plan.recompute_plan import RecomputePlan
from advisor.search.changed_options import Root
from advisor.search.layouts import micro_batches, of_group
from advisor.search.rank_shape import rank_shape
from advisor.time.communication import waiting_share
from advisor.time.machine import hidden_exchange, machine_of
from advisor.time.optimizer_time import least_optimizer_seconds
from advisor.time.passes import end_times, part_times
from advisor.time.rank_links import Network, network


class Sequence(Struct, frozen=True):
    """Seconds that a sequence takes at least: through one layer of each kind, and both ends of the
    model; total: through all of it."""

    layers: dict[LayerKind, float]
    embedding: float
    head: float
    total: float


class _Stage(NamedTuple):
    """Layers of a stage by kind, and the ends that it holds."""

    layers: tuple[tuple[LayerKind, int], ...]
    embedding: bool
    head: bool


class Floors:
    """Seconds that a sequence takes at least through all layers and both ends of the model, on the
    ranks of one pipeline; of jobs that differ from `job` in layout and micro batch alone.

    optimizer: seconds that the optimizer's step takes at least. base: those of a job that has other
    options of an exchange, and none else: they share all that is outside the experts.
    """

    def __init__(self, job: Job, calibration: Calibration, base: "Floors | None" = None) -> None:
        self._job, self._calibration = job, calibration
        self._shape, self._whole = rank_shape(job), job.config.global_batch_size
        self._batch, self._has_rows = float(self._whole), True
        if job.config.samples.varies:
            self._take_samples(microbatches(job))
        self._chip = machine_of(job, calibration)
        held = pipeline_stages(job.model, job.layout)
        self._kinds = Counter(k for chunks in held for chunk in chunks for k in chunk.layers)
        self._waits = (1 + waiting_share(job.num_gpus, calibration.speed_spread)) * (1 - _ROUNDED)
        self.optimizer = least_optimizer_seconds(job, self._chip)
        self._outside: dict[tuple[object, ...], Sequence] = base._outside if base else {}
        self._experts: dict[tuple[int, int, int], dict[LayerKind, float]] = {}
        self._splits: dict[tuple[object, ...], tuple[_Stage, ...]] = base._splits if base else {}

    def _take_samples(self, found: Microbatches) -> None:
        """Of packs of seq_length what a token attends to; else all tokens as a part of one row. A
        layout has at most as many microbatches more than samples as it has ranks."""
        config, self._shape = self._job.config, rank_shape(found.mean)
        row, attended = config.seq_length, self._shape.mean_packed_length
        self._has_rows = config.samples.fills_rows
        if not self._has_rows:
            self._whole, self._batch, row = 1, found.tokens / _ROW, _ROW
            mean = min(found.lengths.mean, config.mean_packed_length or row)
            attended = max(1, int(mean / (1 + self._job.num_gpus / found.samples_of_step)))
            self._shape = replace(self._shape, masked=False)
        self._shape = replace(self._shape, seq_length=row, mean_packed_length=attended)

    def of_dense(
        self, dense: ParallelLayout, degrees: tuple[tuple[int, int | None], ...], *, exact: bool
    ) -> float:
        """Seconds of a step with any EP and ETP of `degrees`; exact: False where the exchange and
        the smaller kernels of CP are left out, which is sooner known."""
        cp = dense.context_parallel_size
        if not exact:
            dense = replace(dense, **_ONE_RANK)
        outside = self._of_outside(dense, self._whole).total / (1 if exact else cp)
        tp = dense.tensor_model_parallel_size
        experts = min(self._whole_batch(ep, etp or tp) for ep, etp in degrees) / (tp * cp)
        return self._step(outside + experts, tp * cp)

    def of_group(self, group: ParallelLayout) -> float:
        """Seconds of a step on any layout of a group."""
        ranks = group.tensor_model_parallel_size * group.context_parallel_size
        ep, etp = group.expert_model_parallel_size, group.expert_tensor_degree
        experts = self._whole_batch(ep, etp) / ranks
        return self._step(self._of_outside(group, self._whole).total + experts, ranks)

    def with_size(self, group: ParallelLayout, micro_batch_size: int) -> float:
        """The same, with one micro batch."""
        ranks = group.tensor_model_parallel_size * group.context_parallel_size
        return self._step(self.of_sequence(group, micro_batch_size).total, ranks)

    def _step(self, sequence: float, ranks: int) -> float:
        return sequence * self._batch * ranks / self._job.num_gpus + self.optimizer

    def of_layout(self, layout: ParallelLayout, micro_batch_size: int) -> float:
        """Seconds of a step on one layout: its slowest stage sets the pace, and the others make the
        bubble around it (see JobTime.step). UserError where it cannot split the layers."""
        sequence = self.of_sequence(layout, micro_batch_size)
        slowest = total = 0.0
        for stage in self._split(layout):
            seconds = sequence.embedding * stage.embedding + sequence.head * stage.head
            for kind, count in stage.layers:
                seconds += count * sequence.layers[kind]
            total, slowest = total + seconds, max(slowest, seconds)
        bubble = (total - slowest) / layout.virtual_pipeline_model_parallel_size
        each = self._batch / layout.data_parallel_size
        bubbles = micro_batch_size if self._has_rows else 0  # whose rows may be short
        return each * slowest + bubbles * bubble + self.optimizer

    def of_sequence(self, layout: ParallelLayout, micro_batch_size: int) -> Sequence:
        """Of the group of layouts that `layout` is of; of a micro batch of so many sequences, or of
        a smaller one that divides it."""
        micro_batch_size = micro_batch_size if self._has_rows else self._whole
        outside = self._of_outside(layout, micro_batch_size)
        if self._job.model.num_moe_experts is None:
            return outside
        ranks = layout.tensor_model_parallel_size * layout.context_parallel_size
        tokens = max(1, micro_batch_size * self._shape.seq_length // ranks)
        ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_degree
        experts, layers, total = self._of_experts(tokens, ep, etp), {}, outside.total
        for kind, seconds in outside.layers.items():
            more = experts.get(kind, 0.0) / micro_batch_size
            layers[kind] = seconds + more
            total += more * self._kinds[kind]
        return Sequence(layers, outside.embedding, outside.head, total)

    def _split(self, layout: ParallelLayout) -> tuple[_Stage, ...]:
        key = tuple([getattr(layout, name) for name in SPLIT])
        if key not in self._splits:
            pipeline = pipeline_of(self._job.model, layout)
            stages = []
            for stage in pipeline.stages:
                layers: Counter[LayerKind] = Counter()
                for group, count in stage.groups:
                    for kind in pipeline.groups[group]:
                        layers[kind] += count
                held = [pipeline.chunks[chunk] for chunk in stage.chunks]
                first, last = any(c.embedding for c in held), any(c.head for c in held)
                stages.append(_Stage(tuple(layers.items()), first, last))
            self._splits[key] = tuple(stages)
        return self._splits[key]

    def _of_outside(self, layout: ParallelLayout, micro_batch_size: int) -> Sequence:
        """Of all but the experts."""
        tp, cp = layout.tensor_model_parallel_size, layout.context_parallel_size
        sizes = layout.hierarchical_context_parallel_sizes
        key = (tp, layout.sequence_parallel, cp, layout.cp_comm_type, sizes, micro_batch_size)
        if key not in self._outside:
            self._outside[key] = self._made_outside(layout, micro_batch_size)
        return self._outside[key]

    def _made_outside(self, layout: ParallelLayout, micro_batch_size: int) -> Sequence:
        shape = self.shape_of(layout, micro_batch_size)
        rates = network(layout, self._job.gpu, self._calibration, self._job.model)
        each = self._waits / micro_batch_size
        embedding, head = (
            each * end_times(shape, self._chip, rates, first, not first).total
            for first in (True, False)
        )
        found = self._layers(shape, rates, in_experts=False)
        layers = {kind: each * seconds for kind, seconds in found.items()}
        return Sequence(layers, embedding, head, embedding + head + self._sum(layers))

    def shape_of(self, layout: ParallelLayout, micro_batch_size: int) -> RankShape:
        """Local sizes of a rank, except what experts have."""
        return replace(
            self._shape,
            micro_batch_size=micro_batch_size,
            tensor_model_parallel_size=layout.tensor_model_parallel_size,
            sequence_parallel=layout.sequence_parallel,
            context_parallel_size=layout.context_parallel_size,
            cp_comm_type=layout.cp_comm_type,
            cp_all_to_all_size=layout.cp_all_to_all_size,
            tp_comm_overlap=layout.tp_comm_overlap,
        )

    def _whole_batch(self, ep: int, etp: int) -> float:
        """Of the experts, were a sequence's share of a batch that one rank has whole."""
        if self._job.model.num_moe_experts is None:
            return 0.0
        tokens = self._whole * self._shape.seq_length
        return self._sum(self._of_experts(tokens, ep, etp)) / self._whole

    def _of_experts(self, tokens: int, ep: int, etp: int) -> dict[LayerKind, float]:
        """Of so many tokens of a rank, which no other parallelism cuts."""
        key = (tokens, ep, etp)
        if key not in self._experts:
            layout = ParallelLayout(expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
            shape = replace(
                self.shape_of(layout, 1),
                seq_length=tokens,
                tp_comm_overlap=self._shape.tp_comm_overlap,
                expert_model_parallel_size=ep,
                expert_tensor_parallel_size=etp,
            )
            rates = network(layout, self._job.gpu, self._calibration, self._job.model)
            found = self._layers(shape, rates, in_experts=True)
            self._experts[key] = {kind: self._waits * seconds for kind, seconds in found.items()}
        return self._experts[key]

    def _layers(
        self, shape: RankShape, rates: Network, *, in_experts: bool
    ) -> dict[LayerKind, float]:
        """Of one layer of each kind, what its experts take, or all else."""
        job, chip, found = self._job, self._chip, {}
        shape = parts_of(job.config.framework).memory.shape(job, shape)
        hidden = hidden_exchange(job, rates)
        if job.model.moe_shared_expert_overlap:
            hidden = max(hidden, chip.hidden_fraction)
        for kind in self._kinds:
            if not in_experts or kind.feed_forward is FeedForward.MOE:
                times = part_times(shape, chip, rates, kind, in_experts=in_experts)
                found[kind] = times.total - hidden * times.exchange
        return found

    def _sum(self, layers: dict[LayerKind, float]) -> float:
        return sum(self._kinds[kind] * seconds for kind, seconds in layers.items())


_ROUNDED: Final = 1e-6
"""Share by which bytes and tiles that are rounded up in each part may come to more than in one."""
_ROW: Final = 1 << 22
"""Tokens of a row that is longer than any (a judgement)."""
_ONE_RANK: Final = {
    "context_parallel_size": 1,
    "cp_comm_type": CpCommType.P2P,
    "hierarchical_context_parallel_sizes": None,
}


class TooLarge:
    """What is known of the jobs of some roots: their weights, gradients and optimizer, which no
    recompute changes; the head of the model; micro batches that did not fit.

    floors: of the first root, whose shapes are those of all. smallest: jobs whose states are too
    large already, with their bytes.
    """

    def __init__(self, roots: tuple[Root, ...], floors: Floors, budget_bytes: int) -> None:
        self._roots, self._floors = roots, floors
        self._budget = budget_bytes
        self._framework = parts_of(roots[0].template.config.framework)
        config = roots[0].template.config
        self._longest = config.seq_length
        if not config.samples.fills_rows:
            self._longest = microbatches(roots[0].template).lengths.longest
        self._options = [_optimizer_options(root.template) for root in roots]
        self._states: dict[object, int] = {}
        self._may_hold: dict[object, bool] = {}
        self._ends: dict[object, int] = {}
        self._unfit: dict[tuple[int, ParallelLayout], list[int]] = {}
        self.smallest: list[tuple[int, Job]] = []

    def did_not_fit(self, root: int, job: Job) -> None:
        """No setting of the job does; nor of its layout with a multiple of its micro batch."""
        self._unfit.setdefault((root, job.layout), []).append(job.config.micro_batch_size)

    def is_group(self, root: int, group: ParallelLayout) -> bool:
        """Whether all layouts of a group are, or illegal."""
        if not fits_layout(self._roots[root].resolution.model, group):
            return True
        names = (name for name in HOLDING if name != "pipeline_model_parallel_size")
        key = (self._options[root], *(getattr(group, name) for name in names))
        if key not in self._may_hold:
            resolution = self._roots[root].resolution
            self._may_hold[key] = any(
                not self._holds_too_much(root, layout, size)
                for layout in of_group(resolution, group)
                for size in micro_batches(resolution, layout)[:1]
            )
        return not self._may_hold[key]

    def is_micro_batch(self, group: ParallelLayout, size: int) -> bool:
        """Whether the head and the loss are, which all layouts of a group have."""
        tp, cp = group.tensor_model_parallel_size, group.context_parallel_size
        key = (tp, group.sequence_parallel, cp, size)
        if key not in self._ends:
            job = self._roots[0].template
            shape = replace(self._floors.shape_of(group, size), seq_length=self._longest)
            if job.config.samples.token_budget is not None:
                shape = replace(shape, micro_batch_size=1)
            shape = self._framework.memory.shape(job, shape)
            found = chunk_footprint(shape, _NO_LAYERS, False, True)
            self._ends[key] = max(found.forward.num_bytes, found.backward.num_bytes)
        return self._ends[key] > self._budget

    def is_layout(self, root: int, layout: ParallelLayout, size: int) -> bool:
        """Whether its states are, or a micro batch of which this one is a multiple did not fit."""
        unfit = self._unfit.get((root, layout), ())
        return any(size % small == 0 for small in unfit) or self._holds_too_much(root, layout, size)

    def _holds_too_much(self, root: int, layout: ParallelLayout, size: int) -> bool:
        key = (self._options[root], *(getattr(layout, name) for name in HOLDING))
        if key not in self._states:
            job = self._roots[root].job(layout, size)
            if job is None:
                return False
            held = self._states[key] = _mean_static_bytes(job)
            if held > self._budget and not self._framework.settings.check_job(job):
                self.smallest.append((held, job))
        return self._states[key] > self._budget


def _mean_static_bytes(job: Job) -> int:
    """Weights, gradients and optimizer of a stage, the mean over all: however layers are split over
    so many stages, one of them holds as much."""
    memory = parts_of(job.config.framework).memory
    shape = first_equal(memory.shape(job, rank_shape(job)))
    stages = pipeline_stages(job.model, job.layout)
    return sum(memory.fixed_memory(job, shape, held).static.total for held in stages) // len(stages)


def _optimizer_options(job: Job) -> object:
    """A job's options except those that decide nothing of what a rank holds of parameters."""
    layout, config = job.layout, job.config
    return (
        *(layout.use_distributed_optimizer, config.optimizer_cpu_offload),
        *(config.optimizer_offload_fraction, config.param_cpu_offload),
        *(config.use_precision_aware_optimizer, config.fp8_recipe),
    )


HOLDING: Final = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "data_parallel_sharding"),
)
"""What of a layout decides how much of the states its stages hold in the mean."""
_NO_LAYERS: Final = RecomputePlan(())
